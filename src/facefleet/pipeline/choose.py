"""Whether an engine runs in this process or in worker processes.

One device in this process is the simple default; several devices, pinned processors, and a device that is to be kept
apart get a process each.
"""

from __future__ import annotations

import re

from facefleet.backends import device_names
from facefleet.config import Settings
from facefleet.errors import ConfigError
from facefleet.pipeline.fleet import FleetEngine
from facefleet.pipeline.handlers import for_device
from facefleet.pipeline.local import LocalEngine
from facefleet.workers.placement import Placement, data_parallel, first_split


def make_engine(settings: Settings, pack: str) -> LocalEngine | FleetEngine:
    """The parts of an engine, not open.

    Raises:
        ConfigError: Devices or placement that cannot be.
        BackendUnavailableError: A device that is not there.
    """
    runtime = settings.runtime
    devices = device_names(runtime.devices)
    alone = len(devices) == 1 and not runtime.isolated and not devices[0].startswith("cpu:")
    if alone and not runtime.placement.startswith("stage"):
        return LocalEngine(for_device(settings, devices[0]), pack)
    return FleetEngine(settings, pack, devices, _placement(runtime.placement, len(devices)))


def _placement(wanted: str, devices: int) -> Placement:
    if not wanted.startswith("stage"):
        return data_parallel(devices)
    given = re.search(r"(\d+)\+(\d+)$", wanted)
    if given is None:
        return first_split(devices)
    placement = Placement(int(given[1]), int(given[2]), fixed=True)
    if placement.detect + placement.embed != devices:
        raise ConfigError(
            f"runtime.placement={wanted} with {devices} devices", hint="the two numbers must add up to all devices"
        )
    return placement
