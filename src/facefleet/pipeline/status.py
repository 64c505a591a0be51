"""What an engine is doing, once a second: for `facefleet top` and the metrics of devices.

Owns the reading; `telemetry.status` owns the file. Runs in the status writer's thread.
"""

from __future__ import annotations

import os
import time

from facefleet.pipeline.fleet import FleetEngine
from facefleet.pipeline.local import LocalEngine
from facefleet.telemetry.devices import Cores, DeviceLoad, memory_total_bytes, read_devices, resident_bytes
from facefleet.telemetry.record import record_devices
from facefleet.telemetry.status import Status, WorkerLoad
from facefleet.workers import WorkerStatus


class StatusReader:
    """Reads the status of an engine.

    Args:
        running: Its parts, open.
        pack: Name of its pack.
        device: What a local engine runs on.
    """

    def __init__(self, running: LocalEngine | FleetEngine, pack: str, device: str) -> None:
        self._running = running
        self._pack = pack
        self._device = device
        self._started = time.time()
        self._cores = Cores()
        self._cores.read()

    def read(self) -> Status:
        """The status now; shows device loads in the metrics."""
        running = self._running
        loads = {load.device: load for load in (*read_devices(), *self._cores.read())}
        record_devices(list(loads.values()))
        if isinstance(running, FleetEngine):
            placement = "stage" if running.placement.embed else "data"
            workers = tuple(_worker(status, loads.get(status.name)) for status in running.status())
        else:
            placement = "local"
            workers = (_local(running, self._device, loads),)
        return Status(
            pid=os.getpid(),
            started=self._started,
            time=time.time(),
            pack=self._pack,
            placement=placement,
            images=running.door.images,
            faces=running.door.faces,
            queue=running.queues(),
            workers=workers,
        )


def _worker(status: WorkerStatus, load: DeviceLoad | None) -> WorkerLoad:
    stages = status.facts.get("stage_seconds", {})
    batches = status.facts.get("batches") or status.facts.get("times", (0,))[0]
    on_gpu = load is not None and status.name.startswith("cuda")
    return WorkerLoad(
        name=status.name,
        role=status.stage,
        state=status.state.value,
        in_flight=status.in_flight,
        batches=int(batches),
        items=status.items,
        busy_s=status.busy_s or sum(seconds for _, seconds in stages.values()),
        restarts=status.restarts,
        memory_bytes=load.memory_bytes if load is not None and on_gpu else status.facts.get("rss_bytes"),
        memory_total_bytes=load.memory_total_bytes if load is not None else memory_total_bytes() or None,
        utilization=None if load is None else load.utilization,
        temperature=None if load is None else load.temperature_celsius,
    )


def _local(running: LocalEngine, device: str, loads: dict[str, DeviceLoad]) -> WorkerLoad:
    stages = running.stage_seconds()
    load = loads.get("cuda:0" if device == "cuda" else device)
    if load is None:  # all processors together
        busy = [each.utilization for each in loads.values() if each.device.startswith("cpu") and each.utilization]
        utilization = sum(busy) / max(1, sum(each.device.startswith("cpu") for each in loads.values()))
        load = DeviceLoad(device, "", utilization, resident_bytes(os.getpid()), memory_total_bytes() or None)
    return WorkerLoad(
        name=device,
        role="photo",
        state="ready",
        in_flight=running.door.inside,
        batches=running.batches(),
        items=running.door.images,
        busy_s=sum(seconds for _, seconds in stages.values()),
        memory_bytes=load.memory_bytes,
        memory_total_bytes=load.memory_total_bytes,
        utilization=load.utilization,
        temperature=load.temperature_celsius,
    )
