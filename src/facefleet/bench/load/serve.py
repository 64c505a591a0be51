"""A server under load: rounds of a load, and the search for the most that it takes."""

from __future__ import annotations

import asyncio
import random
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from facefleet.bench.load.connection import Target
from facefleet.bench.load.generator import Generator, Sent
from facefleet.bench.load.schedule import ARRIVALS
from facefleet.bench.stats import Repeated, distribution, latencies, quantile

_SEED = 20261201
_ORDER = 4096
_MOST_FAILED = 0.001
_KEPT_UP = 0.98


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """How requests are made.

    Attributes:
        target: The server.
        bodies: Encoded photos.
        headers: Of every request.
        connections: Most at a time.
        timeout_s: A request without an answer for so long has failed.
    """

    target: Target
    bodies: Sequence[bytes]
    headers: dict[str, str]
    connections: int = 256
    timeout_s: float = 30.0

    def closed(self, users: int, seconds: float) -> Sent:
        """As `Generator.closed`, in an event loop of its own."""
        return asyncio.run(self._run(lambda generator: generator.closed(users, seconds)))

    def open(self, due_s: Sequence[float]) -> Sent:
        """As `Generator.open`, in an event loop of its own."""
        return asyncio.run(self._run(lambda generator: generator.open(due_s)))

    async def _run(self, go: Callable[[Generator], Any]) -> Sent:
        draw = random.Random(_SEED)  # noqa: S311  # an order, no secret
        order = [draw.randrange(len(self.bodies)) for _ in range(_ORDER)]
        generator = Generator(
            self.target,
            self.bodies,
            order,
            self.headers,
            connections=self.connections,
            timeout_s=self.timeout_s,
        )
        sent: Sent = await go(generator)
        return sent


def load_figures(key: str, offered: float | None, rounds: Sequence[Sent]) -> dict[str, Any]:
    """What one load came to.

    Args:
        key: Names it.
        offered: Requests a second that were due; None in a closed loop.
        rounds: A round each.
    """
    answered = [each for sent in rounds for each in sent.latencies_s]
    late = sorted(each for sent in rounds for each in sent.late_s)
    faces = [sent.faces.get(photo, -1) for sent in rounds for photo in sent.photos]
    by_faces: dict[int, list[float]] = {}
    for count, seconds in zip(faces, answered, strict=True):
        if count >= 0:
            by_faces.setdefault(count, []).append(seconds)
    statuses: Counter[int] = sum((sent.statuses for sent in rounds), Counter())
    total_s = sum(sent.seconds for sent in rounds)
    return {
        "key": key,
        "offered_per_s": None if offered is None else round(offered, 3),
        "answers_per_s": Repeated(tuple(len(sent.latencies_s) / sent.seconds for sent in rounds)).as_json(),
        "faces_per_s": round(sum(count for count in faces if count > 0) / total_s, 3),
        "latency": latencies(answered).as_json() if answered else {},
        "service": latencies([each for sent in rounds for each in sent.services_s]).as_json() if answered else {},
        "failed": sum(sent.failed for sent in rounds),
        "statuses": {str(status): count for status, count in sorted(statuses.items())},
        "schedule_error": None if offered is None else round(schedule_error(rounds), 5),
        "late_p99_ms": round(1000 * quantile(late, 99), 4) if late else 0.0,
        "by_faces": {
            str(count): latencies(seconds).as_json() for count, seconds in sorted(by_faces.items()) if len(seconds) > 4
        },
        "cdf": distribution(sorted(answered)) if answered else [],
    }


def schedule_error(rounds: Sequence[Sent]) -> float:
    """How far the rate that was sent is off the rate that was due, as a share of it.

    The last request decides: handed over later than it was due, the same number took longer.
    """
    off = []
    for sent in rounds:
        late = sent.late_s[-1] if sent.late_s else 0.0
        off.append(abs(late) / max(sent.send_s - late, 1e-9))
    return statistics.fmean(off)


def saturation(
    client: Client,
    *,
    p99_ms: float,
    seconds: float,
    start: float = 10.0,
    arrivals: str = "poisson",
    steps: int = 6,
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The highest rate whose answers keep up and within a p99.

    Doubles the rate until it is too much, then halves the interval that is left.

    Args:
        client: Whom to ask.
        p99_ms: 99 of 100 answers within so many milliseconds.
        seconds: Of each load.
        start: First rate, in requests a second.
        arrivals: Key of `ARRIVALS`.
        steps: Halvings; each gains a binary digit.
        progress: Is told what happens next.

    Returns:
        What was found, and the figures of every load that was tried.
    """
    tried: list[dict[str, Any]] = []

    def holds(rate: float) -> bool:
        progress(f"{rate:.1f} requests/s")
        sent = client.open(ARRIVALS[arrivals](rate, seconds))
        figures = load_figures(f"{arrivals} {rate:.1f}/s", rate, [sent])
        tried.append(figures)
        kept_up = figures["answers_per_s"]["median"] >= _KEPT_UP * rate * (seconds / max(sent.seconds, seconds))
        in_time = bool(figures["latency"]) and figures["latency"]["p99_ms"] <= p99_ms
        return kept_up and in_time and sent.failed <= _MOST_FAILED * sent.planned

    low, high = 0.0, start
    while holds(high):
        low, high = high, 2 * high
        if high > 1_000_000:
            break
    for _ in range(steps):
        middle = (low + high) / 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return {"rate_per_s": round(low, 3), "p99_ms": p99_ms, "upper_per_s": round(high, 3)}, tried
