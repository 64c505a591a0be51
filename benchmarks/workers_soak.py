"""Memory of a fleet over many works, and what fifty reloads leave behind.

Works of random sizes go through two workers in batches that vary; the resident memory of every process is looked at
19 times after a warm-up of every batch size, and may not grow by more than 5 %. Then workers are replaced fifty times
while works go on; threads, open files and shared memory must be what they were.

    python benchmarks/workers_soak.py [--items 200000] [--reloads 50]
"""

from __future__ import annotations

import argparse
import functools
import os
import random
import sys
import threading
from pathlib import Path

from facefleet.batching import BatchPolicy
from facefleet.telemetry.devices import resident_bytes
from facefleet.testing import KnownAnswers, known_answer
from facefleet.types import Outcome
from facefleet.workers import Fleet, HandlerSpec, Payload, Work, WorkerSpec


class Feeder:
    """Works whose answers are checked, at most `window` at a time."""

    def __init__(self, fleet: Fleet, window: int, seed: int) -> None:
        self.fleet = fleet
        self.window = window
        self.room = threading.Semaphore(window)
        self.draw = random.Random(seed)
        self.right = self.wrong = 0

    def feed(self, items: int) -> None:
        """Hand in so many works."""
        for _ in range(items):
            data = self.draw.randbytes(self.draw.choice([10, 200, 2000, 8000]))
            self.room.acquire()
            self.fleet.submit(Work("answer", Payload("", (data,)), functools.partial(self.done, data)))

    def done(self, data: bytes, outcome: Outcome[Payload]) -> None:
        """Check an answer."""
        if outcome.ok and outcome.unwrap().meta == known_answer(data):
            self.right += 1
        else:
            self.wrong += 1
        self.room.release()

    def settle(self) -> None:
        """Wait until all are answered."""
        for _ in range(self.window):
            self.room.acquire()
        for _ in range(self.window):
            self.room.release()


def specs() -> list[WorkerSpec]:
    handler = HandlerSpec(KnownAnswers, {"service_s": (0.0, 0.0)})
    return [WorkerSpec(f"cpu:{number}", "answer", handler, result_bytes=12_288) for number in range(2)]


def memory(fleet: Fleet) -> list[int]:
    """Resident bytes of the parent and of every worker."""
    return [resident_bytes(pid) for pid in (os.getpid(), *(status.pid for status in fleet.status()))]


def things() -> dict[str, int]:
    """What must not pile up."""
    files = list(Path("/proc/self/fd").iterdir())
    maps = Path("/proc/self/maps").read_text().count("memfd:facefleet")
    return {"threads": threading.active_count(), "files": len(files), "shared memory": maps}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--items", type=int, default=200_000)
    parser.add_argument("--reloads", type=int, default=50)
    options = parser.parse_args()
    before = things()
    fleet = Fleet(specs(), {"answer": BatchPolicy(32, 0.002)})
    fleet.open()
    opened = things()
    feeder = Feeder(fleet, 512, 1)
    draw = random.Random(2)
    sizes = [64, 32, 17, 8, 3, 1]
    step = max(1, options.items // 25)
    seen: list[list[int]] = []
    for number in range(25):
        size = sizes[number] if number < len(sizes) else draw.choice(sizes)
        fleet.dispatcher.batchers["answer"].policy = BatchPolicy(size, 0.002)
        feeder.feed(step)
        feeder.settle()
        if number >= len(sizes):
            seen.append(memory(fleet))
    ratios = [max(values) / values[0] for values in zip(*seen, strict=True)]
    shown = ", ".join(f"{last / 2**20:.1f} MiB (x{ratio:.3f})" for last, ratio in zip(seen[-1], ratios, strict=True))
    print(f"{feeder.right} right, {feeder.wrong} wrong answers; resident memory of parent and workers: {shown}")

    stop = threading.Event()

    def go_on() -> None:
        while not stop.is_set():
            feeder.feed(50)

    thread = threading.Thread(target=go_on)
    thread.start()
    for _ in range(options.reloads):
        fleet.reload(specs())
    stop.set()
    thread.join()
    feeder.settle()
    left = things()
    fleet.close()
    closed = things()
    print(f"{options.reloads} reloads, {feeder.right} right, {feeder.wrong} wrong answers in all")
    print(f"before {before}; open {opened}; after the reloads {left}; closed {closed}")
    good = not feeder.wrong and max(ratios) <= 1.05 and left == opened and closed == before
    print("flat, and nothing left behind" if good else "FAILED")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
