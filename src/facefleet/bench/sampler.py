"""What the machine does while something is measured: processor use, memory, and how busy a device is.

Owns one thread while it is open. Reads; a device is asked through NVML, ten times a second.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from facefleet.telemetry.devices import DeviceLoad, processor_seconds, read_devices, resident_bytes

_PERIOD_S = 0.1


@dataclass(slots=True)
class Use:
    """What was used.

    Attributes:
        seconds: How long it was watched.
        cpu: Processors that this process and its workers kept busy on average; 1.0 is one of them.
        memory_peak_bytes: Most resident memory of this process that was seen.
        device_busy: Median share that the device was busy; None without a device.
        device_memory_peak_bytes: Most memory in use on it, by anybody.
    """

    seconds: float = 0.0
    cpu: float = 0.0
    memory_peak_bytes: int = 0
    device_busy: float | None = None
    device_memory_peak_bytes: int | None = None

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "cpu": round(self.cpu, 3),
            "memory_peak_bytes": self.memory_peak_bytes,
            "device_busy": self.device_busy,
            "device_memory_peak_bytes": self.device_memory_peak_bytes,
        }


@dataclass(slots=True)
class _Seen:
    memory: list[int] = field(default_factory=list)
    loads: list[DeviceLoad] = field(default_factory=list)


class Sampler:
    """Watches this process, and a device, inside a ``with`` block; `use` is there afterwards.

    Args:
        device: ``cpu``, or ``cuda[:N]`` to watch that one too.
        workers: Gives the processes whose processor time counts too, at the start and at the end.
    """

    def __init__(self, device: str = "cpu", workers: Callable[[], Sequence[int]] = tuple) -> None:
        self._workers = workers
        kind, _, number = device.partition(":")
        self._device = f"cuda:{number or 0}" if kind == "cuda" else None
        self._stopping = threading.Event()
        self._seen = _Seen()
        self.use = Use()

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._watch, name="facefleet-bench-sampler", daemon=True)
        self._started, self._cpu = time.perf_counter(), self._processor_s()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        seconds = time.perf_counter() - self._started
        cpu = max(self._processor_s() - self._cpu, 0.0)
        self._stopping.set()
        self._thread.join()
        self._look()
        busy = [load.utilization for load in self._seen.loads if load.utilization is not None]
        held = [load.memory_bytes for load in self._seen.loads if load.memory_bytes is not None]
        self.use = Use(
            seconds,
            cpu / seconds,
            max(self._seen.memory, default=0),
            statistics.median(busy) if busy else None,
            max(held) if held else None,
        )

    def _processor_s(self) -> float:
        return time.process_time() + sum(processor_seconds(pid) for pid in self._workers())

    def _watch(self) -> None:
        while not self._stopping.wait(_PERIOD_S):
            self._look()

    def _look(self) -> None:
        self._seen.memory.append(resident_bytes(os.getpid()))
        if self._device is not None:
            self._seen.loads += [load for load in read_devices() if load.device == self._device]
