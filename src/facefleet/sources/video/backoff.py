"""How long to wait before trying again: longer each time, and never all at once. No clock, no threads."""

from __future__ import annotations

import random


class Backoff:
    """Waiting times that double up to a limit, with jitter.

    Source: Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog 2015, "equal jitter": half of the time is
    fixed, half is random, so that many streams of one camera host do not come back in step.

    Args:
        first_s: Upper end of the first wait.
        most_s: Upper end of the longest.
        chance: Source of randomness.
    """

    def __init__(self, first_s: float, most_s: float, chance: random.Random | None = None) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._chance = chance or random.Random()  # noqa: S311  # nothing secret
        self.failures = 0

    def reset(self) -> None:
        """It worked: the next wait is a short one."""
        self.failures = 0

    def next_s(self) -> float:
        """How long to wait after one more failure."""
        limit = min(self._most_s, self._first_s * 2.0 ** min(self.failures, 60))
        self.failures += 1
        return limit * (0.5 + self._chance.random() / 2)
