"""What an answer or an engine depends on besides the model: runtime version, driver and device.

Reads, never changes. A device is touched only where it is asked about by name.
"""

from __future__ import annotations

import hashlib
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_DISTRIBUTIONS = {"tensorrt": ("tensorrt", "tensorrt-rtx-cu13-bindings", "tensorrt-rtx-cu13")}


def runtime_version(backend: str) -> str:
    """Version of the library behind a backend; ``missing`` where it is not installed."""
    for name in _DISTRIBUTIONS.get(backend, (backend,)):
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
    return "missing"


def device_facts(device: str) -> dict[str, str]:
    """What identifies a kind of device.

    Args:
        device: ``cpu`` or ``cuda[:N]``.

    Returns:
        For a CPU its name and a digest of its instruction sets; for a GPU its name, compute capability, CUDA version
        and the major version of the driver.
    """
    return _cuda(device) if device.startswith("cuda") else _cpu()


def _cpu() -> dict[str, str]:
    name, flags = platform.processor() or platform.machine(), ""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            name = value.strip()
        elif key.strip() in ("flags", "Features"):
            flags = value.strip()
            break
    return {"cpu": name, "instructions": hashlib.sha256(flags.encode()).hexdigest()[:16]}


def _cuda(device: str) -> dict[str, str]:
    import torch

    index = int(device.partition(":")[2] or 0)
    properties = torch.cuda.get_device_properties(index)
    facts = {
        "gpu": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "cuda": str(torch.version.cuda),
    }
    try:
        driver = Path("/proc/driver/nvidia/version").read_text().split("Module")[1].split()
        facts["driver"] = next(word for word in driver if word[:1].isdigit()).partition(".")[0]
    except (OSError, IndexError, StopIteration):
        facts["driver"] = "unknown"
    return facts
