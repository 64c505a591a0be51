"""How busy, full and warm devices are: NVIDIA's from NVML, processor cores from psutil or /proc.

Owns one NVML session a process, opened at the first question. Where there is no NVIDIA device that is no error:
`read_devices` finds none and `why_none` says why. Called from any thread, about once a second; NVML's answers take
milliseconds, so not on the path of a batch.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class DeviceLoad:
    """One device at one moment; what it does not say is None.

    Attributes:
        device: As in ``runtime.devices``: ``cuda:0``, ``cpu:1``.
        name: What it is called by its maker; empty where unknown.
        utilization: Share of the last moments that it was busy, 0 to 1.
        memory_bytes: In use on it, by anybody; for a core: resident memory of the process asked for.
        memory_total_bytes: What it has; for a core: what this process may use of the machine's.
        temperature_celsius: Of the chip.
    """

    device: str
    name: str = ""
    utilization: float | None = None
    memory_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature_celsius: float | None = None


class Nvml:
    """NVIDIA's devices, numbered as CUDA numbers them in this process.

    Args:
        library: The module ``pynvml``; imported at the first reading where None.
    """

    def __init__(self, library: Any = None) -> None:  # noqa: ANN401  # a module without types
        self._library = library
        self._handles: list[Any] | None = None
        self._lock = threading.Lock()
        self.why_none = ""

    def read(self) -> list[DeviceLoad]:
        """Every device that this process may use; empty where there is none, with `why_none` set."""
        with self._lock:
            if self._handles is None:
                self._handles = self._open()
            return [self._load(number, handle) for number, handle in enumerate(self._handles)]

    def _open(self) -> list[Any]:
        if self._library is None:
            try:
                import pynvml

                self._library = pynvml
            except ImportError:
                self.why_none = 'nvidia-ml-py is not installed: pip install "facefleet[gpu]"'
                return []
        nvml = self._library
        try:
            nvml.nvmlInit()
            handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
            visible = _visible(handles, [_text(nvml.nvmlDeviceGetUUID(handle)) for handle in handles])
        except nvml.NVMLError as error:
            self.why_none = f"NVML: {error}"
            return []
        if not visible:
            self.why_none = "CUDA_VISIBLE_DEVICES hides every device" if handles else "NVML: no device"
        return visible

    def _load(self, number: int, handle: Any) -> DeviceLoad:  # noqa: ANN401  # a handle of NVML
        nvml = self._library

        def ask(question: str, *arguments: object) -> Any:  # noqa: ANN401  # whatever NVML answers
            try:
                return getattr(nvml, question)(handle, *arguments)
            except nvml.NVMLError:
                return None  # this card, its driver or MIG does not say

        rates = ask("nvmlDeviceGetUtilizationRates")
        # The second version leaves out what the driver keeps for itself, as nvidia-smi does; old drivers lack it.
        memory = ask("nvmlDeviceGetMemoryInfo", getattr(nvml, "nvmlMemory_v2", None)) or ask("nvmlDeviceGetMemoryInfo")
        temperature = ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU)
        return DeviceLoad(
            device=f"cuda:{number}",
            name=_text(ask("nvmlDeviceGetName") or ""),
            utilization=None if rates is None else rates.gpu / 100,
            memory_bytes=None if memory is None else int(memory.used),
            memory_total_bytes=None if memory is None else int(memory.total),
            temperature_celsius=None if temperature is None else float(temperature),
        )


_NVML = Nvml()


def read_devices() -> list[DeviceLoad]:
    """NVIDIA's devices that this process may use, in CUDA's order; empty where there is none."""
    return _NVML.read()


def why_none() -> str:
    """Why `read_devices` found none; empty before it was called and where it found some."""
    return _NVML.why_none


class Cores:
    """Processor cores; utilization is that since the reading before, so the first one has none.

    Args:
        pid: Of the process whose resident memory is shown; 0: this one.
    """

    def __init__(self, pid: int = 0) -> None:
        self._pid = pid or os.getpid()
        self._before: dict[int, tuple[float, float]] = {}

    def read(self, cores: Collection[int] | None = None) -> list[DeviceLoad]:
        """These cores, or all that this process may run on; cores that the system does not show are left out."""
        now = _core_times()
        wanted = _allowed_cores() if cores is None else cores
        resident, total = resident_bytes(self._pid), memory_total_bytes()
        loads = []
        for core in sorted(set(wanted) & set(now)):
            busy, all_s = (
                after - before for after, before in zip(now[core], self._before.get(core, now[core]), strict=True)
            )
            share = min(max(busy / all_s, 0.0), 1.0) if all_s > 0 else None
            loads.append(DeviceLoad(f"cpu:{core}", "", share, resident or None, total or None))
        self._before = now
        return loads


def process_memory() -> tuple[int, int]:
    """Resident memory of this process and what it may use, in bytes; 0 where the system does not say."""
    return resident_bytes(os.getpid()), memory_total_bytes()


def resident_bytes(pid: int) -> int:
    """Resident memory of a process; 0 where it is gone or the system does not say."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        psutil = _psutil()
        try:
            return int(psutil.Process(pid).memory_info().rss) if psutil else 0
        except psutil.Error:
            return 0


def processor_seconds(pid: int) -> float:
    """Processor time that a process has used; 0.0 where it is gone or the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0


def memory_total_bytes() -> int:
    """Memory that this process may use: the machine's, or less where its cgroup says so; 0 where nothing says."""
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        psutil = _psutil()
        total = int(psutil.virtual_memory().total) if psutil else 0
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            total = min(total, int(Path(limit).read_text()))
        except (OSError, ValueError):
            continue  # no cgroup, or "max"
    return total


def _core_times() -> dict[int, tuple[float, float]]:
    """Core -> seconds busy and seconds in all, since the machine started."""
    psutil = _psutil()
    if psutil:
        rows = [(times._asdict()) for times in psutil.cpu_times(percpu=True)]
        return {core: _busy(row) for core, row in enumerate(rows)}
    names = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
    try:
        lines = Path("/proc/stat").read_text().splitlines()
    except OSError:
        return {}
    found = {}
    for line in lines:
        title, *numbers = line.split()
        if title.startswith("cpu") and title[3:].isdigit():
            found[int(title[3:])] = _busy(dict(zip(names, map(float, numbers), strict=False)))
    return found


def _busy(times: dict[str, float]) -> tuple[float, float]:
    # What a guest used is part of "user" and would count twice.
    total = sum(value for name, value in times.items() if not name.startswith("guest"))
    return total - times.get("idle", 0.0) - times.get("iowait", 0.0), total


def _allowed_cores() -> Collection[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)


def _psutil() -> Any:  # noqa: ANN401  # a module without types, or None
    try:
        import psutil
    except ImportError:
        return None
    return psutil


def _visible(handles: Sequence[Any], uuids: Sequence[str]) -> list[Any]:
    """What CUDA_VISIBLE_DEVICES leaves, in its order: numbers or beginnings of UUIDs, up to the first that is none."""
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return list(handles)
    found = []
    for text in (part.strip() for part in wanted.split(",")):
        if text.isdigit() and int(text) < len(handles):
            found.append(handles[int(text)])
            continue
        matching = [handle for handle, uuid in zip(handles, uuids, strict=True) if text and uuid.startswith(text)]
        if len(matching) != 1:
            break
        found += matching
    return found


def _text(value: Any) -> str:  # noqa: ANN401  # old versions of the binding answer bytes
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
