"""What scheduling costs an item: works that take no time, through two worker processes.

Seconds of the parent's processors (all its threads) and of the clock, divided by the items.

    python benchmarks/scheduler_overhead.py [--items 20000]
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from facefleet.batching import BatchPolicy
from facefleet.types import Outcome
from facefleet.workers import BatchHandler, Fleet, HandlerSpec, Payload, Work, WorkerSpec


class Nothing(BatchHandler):
    """Answers at once."""

    def open(self) -> Mapping[str, Any]:
        """Ready."""
        return {}

    def close(self) -> None:
        """Nothing to give back."""

    def run(self, batch: Sequence[Payload]) -> Sequence[Outcome[Payload]]:
        """An empty answer to each."""
        return [Outcome(Payload(None)) for _ in batch]


def measure(items: int, max_batch: int, size: int) -> tuple[float, float]:
    """Microseconds of the parent's processors, and of the clock, for an item of `size` bytes."""
    specs = [WorkerSpec(f"cpu:{number}", "null", HandlerSpec(Nothing)) for number in range(2)]
    fleet = Fleet(specs, {"null": BatchPolicy(max_batch, 0.002)})
    fleet.open()
    try:
        room = threading.Semaphore(512)
        left = threading.Semaphore(0)
        data = bytes(size)

        def done(_: Outcome[Payload]) -> None:
            room.release()
            left.release()

        used, started = time.process_time(), time.perf_counter()
        for _ in range(items):
            room.acquire()
            fleet.submit(Work("null", Payload(None, (data,)), done))
        for _ in range(items):
            left.acquire()
        return (time.process_time() - used) / items * 1e6, (time.perf_counter() - started) / items * 1e6
    finally:
        fleet.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--items", type=int, default=20_000)
    items = parser.parse_args().items
    print("largest batch   bytes an item   processor us an item   clock us an item")
    for max_batch, size in ((1, 100), (8, 100), (8, 100_000), (64, 100)):
        rounds = [measure(items, max_batch, size) for _ in range(3)]
        processor, clock = (sorted(values)[1] for values in zip(*rounds, strict=True))
        print(f"{max_batch:13d} {size:15d} {processor:22.1f} {clock:18.1f}")


if __name__ == "__main__":
    from scheduler_overhead import main as imported  # workers find `Nothing` by the name of this module

    imported()
