"""The rules of a batcher: how large, how long, who first."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass


class Priority(enum.IntEnum):
    """Who goes first; within a priority, first come, first served."""

    INTERACTIVE = 0
    """Somebody is waiting."""
    BULK = 1
    """A job that wants throughput."""


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """When a batch leaves and what is in it.

    Attributes:
        max_batch: Most items a batch; so many leave at once.
        max_delay_s: The longest an item waits for company that is known to be coming.
        preferred: Sizes that run without padding, rising. A part-filled batch is cut down to one of them while what is
            left behind can still wait.
        max_cost: Most cost a batch, in the unit of the items' `cost`; a single item may exceed it.
        bulk_penalty_s: Interactive items go before bulk items that came up to this much earlier. So it is also the
            bound on starvation: nothing that arrives more than this after a bulk item overtakes it.
    """

    max_batch: int
    max_delay_s: float
    preferred: tuple[int, ...] = ()
    max_cost: float = math.inf
    bulk_penalty_s: float = 1.0

    def __post_init__(self) -> None:
        if self.max_batch < 1 or self.max_delay_s < 0 or self.max_cost <= 0 or self.bulk_penalty_s < 0:
            raise ValueError(f"not a policy: {self}")
        if any(low >= high for low, high in zip(self.preferred, self.preferred[1:], strict=False)):
            raise ValueError(f"preferred sizes must rise: {self.preferred}")

    def padded(self, size: int) -> int:
        """The size that a batch of `size` runs at: the next preferred one, or `size` itself."""
        return next((bucket for bucket in self.preferred if bucket >= size), size)

    def trimmed(self, size: int) -> int:
        """The largest preferred size that `size` items fill; `size` itself where there is none."""
        return next((bucket for bucket in reversed(self.preferred) if bucket <= size), size)
