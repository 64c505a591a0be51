"""Photos into an engine at a fixed number in flight, or at given times; how long each answer took.

Owns no thread: the caller's submits, the engine's answer. In an open loop a photo's time begins when it was due, not
when it could be submitted, so that a stall counts for all that it delayed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from facefleet.errors import FacefleetError, QueueFullError

Submit = Callable[[int], "Future[Any]"]


@dataclass(slots=True)
class Driven:
    """What came back.

    Attributes:
        seconds: From the first submission that counts to the last answer.
        latencies_s: Of every answer.
        faces: In them.
        failed: Answers that were errors, or refusals.
    """

    seconds: float = 0.0
    latencies_s: list[float] = field(default_factory=list)
    faces: int = 0
    failed: int = 0

    @property
    def images_per_s(self) -> float:
        """Results a second."""
        return len(self.latencies_s) / self.seconds if self.seconds else 0.0


class _Tally:
    """Counts answers; callbacks come from any thread."""

    def __init__(self) -> None:
        self.lock = threading.Condition()
        self.inside = 0
        self.driven = Driven()
        self.counting = False
        self.first = self.last = 0.0

    def begin(self) -> None:
        """Count from now on."""
        with self.lock:
            self.counting = True
            self.first = self.last = time.perf_counter()

    def answered(self, future: Future[Any], due: float) -> None:
        now = time.perf_counter()
        outcome = future.result()
        with self.lock:
            self.inside -= 1
            if self.counting:
                self.last = now
                if outcome.ok:
                    self.driven.latencies_s.append(now - due)
                    self.driven.faces += len(outcome.unwrap())
                else:
                    self.driven.failed += 1
            self.lock.notify_all()

    def end(self) -> Driven:
        """Wait for what is inside, and give what was counted."""
        with self.lock:
            while self.inside:
                self.lock.wait()
            self.driven.seconds = max(self.last - self.first, 1e-9)
            return self.driven


def closed_loop(submit: Submit, *, in_flight: int, seconds: float, warmup: int = 0, whole: int = 1) -> Driven:
    """Keep so many photos inside; the next one goes in when one comes out.

    Args:
        submit: Submits photo number i and returns the future of its `Outcome`.
        in_flight: Photos inside.
        seconds: Submissions that count end after so long.
        warmup: Photos that go first and do not count.
        whole: Submissions that count end after a multiple of so many, where that takes no more than thrice as long: as
            many of each photo for everything that is compared.
    """
    tally = _Tally()
    number = 0
    started = 0.0
    while True:
        with tally.lock:
            while tally.inside >= in_flight:
                tally.lock.wait()
            tally.inside += 1
        if number == warmup:
            tally.begin()
            started = tally.first
        due = time.perf_counter()
        elapsed = due - started
        full = (number - warmup) % whole == 0 or elapsed >= 3 * seconds
        if number > warmup and elapsed >= seconds and full:
            with tally.lock:
                tally.inside -= 1
            break
        submit(number).add_done_callback(lambda future, due=due: tally.answered(future, due))  # type: ignore[misc]
        number += 1
    # The house empties now; answers of that time came with fewer photos inside, and count for the rate as well.
    return tally.end()


def open_loop(submit: Submit, due_s: Sequence[float]) -> Driven:
    """Submit at given times, whatever has become of the photos before.

    Args:
        submit: As for `closed_loop`; a refusal (`QueueFullError`) counts as failed.
        due_s: When each photo comes, in seconds from now, rising.
    """
    tally = _Tally()
    tally.begin()
    for number, offset in enumerate(due_s):
        due = tally.first + offset
        pause = due - time.perf_counter()
        if pause > 0:
            time.sleep(pause)
        with tally.lock:
            tally.inside += 1
        try:
            future = submit(number)
        except (QueueFullError, FacefleetError):
            with tally.lock:
                tally.inside -= 1
                tally.driven.failed += 1
            continue
        future.add_done_callback(lambda done, due=due: tally.answered(done, due))  # type: ignore[misc]
    return tally.end()
