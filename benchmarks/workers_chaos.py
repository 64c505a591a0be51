"""Worker processes under fire: works with known answers, processes killed at random, faults on purpose.

Part 1: `--items` works through four workers; processes are killed with SIGKILL at random, and batches sleep, fail, run
out of memory, come back short, lose their device, hang or end their process. Every work must come back once, rightly.
Part 2: 64 threads, each with answers of its own. Part 3: clients that take their works back at random; then a healthy
call.

    python benchmarks/workers_chaos.py [--items 20000] [--seed 1]
"""

from __future__ import annotations

import argparse
import collections
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable

from facefleet.batching import BatchPolicy
from facefleet.errors import CancelledError, InferenceError, OutOfMemoryError, QuarantinedError
from facefleet.testing import Fault, FaultPlan, KnownAnswers, known_answer
from facefleet.types import Outcome
from facefleet.workers import Fleet, FleetOptions, HandlerSpec, Payload, Work, WorkerSpec

RATES = {
    Fault.SLEEP: 0.01,
    Fault.RAISE: 0.01,
    Fault.MEMORY: 0.01,
    Fault.SHORT: 0.01,
    Fault.DEVICE_LOST: 0.001,
    Fault.EXIT: 0.001,
    Fault.HANG: 0.001,
}


class Collected:
    """Answers by key, counted."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.answers: dict[int, str] = {}
        self.counts: collections.Counter[int] = collections.Counter()
        self.events: dict[int, threading.Event] = {}

    def work(self, key: int, data: bytes) -> Work:
        """A work whose answer is counted and checked."""

        def done(outcome: Outcome[Payload]) -> None:
            if outcome.error is not None:
                answer = f"error {type(outcome.error).__name__}"
            else:
                payload = outcome.unwrap()
                right = payload.meta == known_answer(data) and bytes(payload.buffers[0]) == data[::-1]
                answer = "right" if right else "wrong"
            with self.lock:
                self.counts[key] += 1
                self.answers[key] = answer
                event = self.events.pop(key, None)
            if event is not None:
                event.set()

        return Work("answer", Payload("", (data,)), done)

    def totals(self) -> collections.Counter[str]:
        """Kinds of answers."""
        with self.lock:
            return collections.Counter(self.answers.values())


def fleet_of(count: int, plan: FaultPlan) -> Fleet:
    handler = HandlerSpec(KnownAnswers, {"plan": plan, "service_s": (0.0005, 0.0001)})
    specs = [WorkerSpec(f"cpu:{number}", "answer", handler, result_bytes=4096) for number in range(count)]
    options = FleetOptions(arena_bytes=32 << 20, hang_s=3.0, max_failures=50)
    return Fleet(specs, {"answer": BatchPolicy(16, 0.005)}, options=options)


def storm(fleet: Fleet, items: int, draw: random.Random) -> bool:
    """Part 1."""
    collected = Collected()
    room = threading.Semaphore(512)
    stop = threading.Event()
    kills = 0

    def killer() -> None:
        nonlocal kills
        while not stop.wait(draw.uniform(0.1, 0.6)):
            pids = [status.pid for status in fleet.status() if status.pid and status.state.value == "ready"]
            if len(pids) > 1:
                try:
                    os.kill(draw.choice(pids), signal.SIGKILL)
                    kills += 1
                except ProcessLookupError:
                    continue

    thread = threading.Thread(target=killer)
    thread.start()
    started = time.monotonic()
    again: list[int] = list(range(items))
    data = {key: draw.randbytes(draw.choice([16, 500, 3000, 20000])) for key in range(items)}
    rounds = 0
    retryable = {f"error {kind.__name__}" for kind in (InferenceError, OutOfMemoryError, QuarantinedError)}
    repeated = 0
    # A fault that hits a work alone is its answer; as a job does, those that may be repeated are.
    while again and rounds < 6:
        repeated += len(again) if rounds else 0
        for key in again:
            room.acquire()
            event = threading.Event()
            collected.events[key] = event
            work = collected.work(key, data[key])
            inner = work.done

            def done(outcome: Outcome[Payload], inner: Callable[[Outcome[Payload]], None] = inner) -> None:
                inner(outcome)
                room.release()

            work.done = done
            fleet.submit(work)
        for key in again:
            event = collected.events.get(key)  # type: ignore[assignment]
            if event is not None and not event.wait(120):
                print(f"work {key} was never answered")
                return False
        again = [key for key in again if collected.answers[key] in retryable or "BadOutput" in collected.answers[key]]
        rounds += 1
    stop.set()
    thread.join()
    totals = collected.totals()
    answered = sum(collected.counts.values())
    restarts = sum(status.restarts for status in fleet.status())
    seconds = time.monotonic() - started
    print(f"{items} works in {seconds:.0f} s: {dict(totals)}; {answered} answers to {items + repeated} submissions")
    print(f"{kills} processes killed by us, {restarts} restarts, {fleet.requeued} works moved to other workers")
    return totals == {"right": items} and answered == items + repeated


def callers(fleet: Fleet, draw: random.Random) -> bool:
    """Part 2."""
    collected = Collected()

    def call(number: int) -> None:
        own = random.Random(number)
        for turn in range(50):
            key = number * 1000 + turn
            event = threading.Event()
            collected.events[key] = event
            fleet.submit(collected.work(key, b"%d:%d:" % (number, turn) + own.randbytes(200)))
            event.wait(60)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    del draw
    totals = collected.totals()
    print(f"64 threads, 50 calls each: {dict(totals)}")
    return set(collected.counts.values()) == {1} and totals == {"right": 3200}


def cancellations(fleet: Fleet, draw: random.Random) -> bool:
    """Part 3."""
    collected = Collected()
    works = [collected.work(key, draw.randbytes(100)) for key in range(3000)]
    cancelled = 0
    for number, work in enumerate(works):
        fleet.submit(work)
        if draw.random() < 0.5:
            cancelled += fleet.cancel(works[draw.randrange(max(0, number - 30), number + 1)])
    healthy = threading.Event()
    collected.events[9999] = healthy
    fleet.submit(collected.work(9999, b"still well?"))
    answered = healthy.wait(60)
    while sum(collected.counts.values()) < 3001:
        time.sleep(0.01)
    totals = collected.totals()
    print(f"3,000 works, {cancelled} taken back: {dict(totals)}; a healthy call after that: {collected.answers[9999]}")
    gone = totals[f"error {CancelledError.__name__}"]
    return answered and set(collected.counts.values()) == {1} and gone == cancelled and gone + totals["right"] == 3001


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    good = True
    stormy = fleet_of(4, FaultPlan(rates=RATES, seed=options.seed))
    stormy.open()
    try:
        good &= storm(stormy, options.items, draw)
    finally:
        stormy.close()
    calm = fleet_of(4, FaultPlan())
    calm.open()
    try:
        good &= callers(calm, draw)
        good &= cancellations(calm, draw)
    finally:
        calm.close()
    print("every work came back once, rightly" if good else "FAILED")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
