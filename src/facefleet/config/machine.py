"""What machine this is: processor, how many of them this process may use, graphics cards.

Reads the system, runs nothing and touches no device. What is measured here holds for machines of the same facts only.
"""

from __future__ import annotations

import hashlib
import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from facefleet.config.threads import available_threads

_GPUS = Path("/proc/driver/nvidia/gpus")


@dataclass(frozen=True, slots=True)
class Machine:
    """What decides how fast something runs here.

    Attributes:
        cpu: Name of the processor.
        instructions: Digest of its instruction sets.
        threads: Processors that this process may use.
        gpus: Names of the NVIDIA cards, in the order of their bus.
        memory_bytes: Memory of the machine; 0 where unknown. Does not count in comparisons.
        system: Operating system and kernel. Does not count either.
    """

    cpu: str
    instructions: str
    threads: int
    gpus: tuple[str, ...] = ()
    memory_bytes: int = 0
    system: str = ""

    def differences(self, other: Machine) -> list[str]:
        """In what another machine differs, in words; empty where figures of one hold for the other."""
        found = []
        for name in ("cpu", "instructions", "threads", "gpus"):
            mine, others = getattr(self, name), getattr(other, name)
            if mine != others:
                found.append(f"{name}: {_shown(mine)} there, {_shown(others)} here")
        return found

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self) | {"gpus": list(self.gpus)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Machine:
        """From `as_json`; unknown keys are left out.

        Raises:
            KeyError: Something is missing.
        """
        return cls(
            str(data["cpu"]),
            str(data["instructions"]),
            int(data["threads"]),
            tuple(str(gpu) for gpu in data["gpus"]),
            int(data.get("memory_bytes", 0)),
            str(data.get("system", "")),
        )


def this_machine() -> Machine:
    """The facts of this machine."""
    name, instructions = cpu_facts()
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        memory = 0
    return Machine(
        name, instructions, available_threads(), _gpus(), memory, f"{platform.system()} {platform.release()}"
    )


def cpu_facts(path: Path = Path("/proc/cpuinfo")) -> tuple[str, str]:
    """Name of the processor, and a digest of its instruction sets."""
    name, flags = platform.processor() or platform.machine(), ""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            name = value.strip()
        elif key.strip() in ("flags", "Features"):
            flags = value.strip()
            break
    return name, hashlib.sha256(flags.encode()).hexdigest()[:16]


def _gpus() -> tuple[str, ...]:
    """Names of NVIDIA's cards; asks NVML only where the driver's files do not tell."""
    names = []
    for path in sorted(_GPUS.glob("*/information")):
        try:
            lines = path.read_text().splitlines()
        except OSError:
            continue
        names += [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
    return tuple(names) or _nvml_names()


def _nvml_names() -> tuple[str, ...]:
    try:
        import pynvml
    except ImportError:
        return ()
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        names = [pynvml.nvmlDeviceGetName(handle) for handle in handles]
    except pynvml.NVMLError:
        return ()
    return tuple(name.decode() if isinstance(name, bytes) else str(name) for name in names)


def _shown(value: object) -> str:
    return (", ".join(map(str, value)) or "none") if isinstance(value, tuple) else str(value)
