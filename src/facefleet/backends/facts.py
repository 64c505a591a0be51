"""What an answer or an engine depends on besides the model: runtime version, driver and device.

Reads, never changes. A device is touched only where it is asked about by name.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from facefleet.config.machine import cpu_facts

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
    name, instructions = cpu_facts()
    return {"cpu": name, "instructions": instructions}


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
