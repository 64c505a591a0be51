"""Whether what a closed loop found also holds its target when photos come at random moments, as at a server.

Pure: the caller measures. A closed loop never has more photos inside than it was told; callers that know nothing of
each other do, and a photo of many faces delays those behind it. So the fastest configurations are asked at random
moments at four fifths of their throughput, and the first that holds the target then is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from facefleet.bench.tune.search import Candidate, Found, Measured

LOAD = 0.8
"""Of its throughput in a closed loop."""
_TRIES = 3

C = TypeVar("C", bound=Candidate)


@dataclass(frozen=True, slots=True)
class Arrivals(Generic[C]):
    """A configuration under photos that come at random moments.

    Attributes:
        choice: The configuration.
        rate: Photos a second that came.
        seen: What was measured.
        holds: Whether its p99 was within the target.
    """

    choice: C
    rate: float
    seen: Measured
    holds: bool


def settle(
    found: Found[C],
    ask: Callable[[C, float], Measured],
    *,
    target_s: float,
    memory_bytes: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[Found[C], list[Arrivals[C]]]:
    """Ask the fastest at random moments, until one holds the target.

    Args:
        found: By the search.
        ask: Measures a configuration at a rate of random arrivals.
        target_s: The p99 to hold.
        memory_bytes: Most memory; 0: any.
        progress: Is told what happens next.

    Returns:
        What the search found, its best replaced by the first that holds the target, or left where none of those asked
        does; and what was asked, in that order.
    """
    asked: list[Arrivals[C]] = []
    if found.best is None:
        return found, asked
    held = [each for each in found.tried if each is not found.best and each.holds(target_s, memory_bytes)]
    held.sort(key=lambda each: (len(each.shots) < 2, -each.images_per_s))
    for each in [found.best, *held][:_TRIES]:
        rate = LOAD * each.images_per_s
        progress(f"random arrivals, {rate:.0f}/s: {each.choice.key}")
        seen = ask(each.choice, rate)
        asked.append(Arrivals(each.choice, rate, seen, not seen.error and seen.p99_s <= target_s))
        if asked[-1].holds:
            return replace(found, best=each), asked
    return found, asked
