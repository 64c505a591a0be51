"""Batch size and delay of a stage, moved to hold a latency target.

Owns the measuring of service times when an engine opens, and what a stage tells its controller afterwards. The
scheduler calls it with its lock held.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from facefleet.batching import Batcher, LatencyCurve, ModelBased

_ROUNDS = 3


def buckets_up_to(largest: int) -> tuple[int, ...]:
    """Powers of two below `largest`, and `largest`."""
    return (*(1 << power for power in range(largest.bit_length()) if 1 << power < largest), largest)


def measured_curve(run: Callable[[int], object], largest: int) -> LatencyCurve:
    """Seconds a batch takes, for every bucket up to `largest`: the least of three runs after one to warm up.

    Args:
        run: Runs a batch of so many.
        largest: The largest batch.
    """
    curve = LatencyCurve(buckets_up_to(largest))
    for bucket in reversed(curve.buckets):  # the largest first: what follows fits into its memory
        run(bucket)
        seconds = []
        for _ in range(_ROUNDS):
            started = time.perf_counter()
            run(bucket)
            seconds.append(time.perf_counter() - started)
        curve.seed(bucket, max(min(seconds), 1e-6))
    return curve


class Adapter:
    """Keeps one batcher at what its controller says.

    Args:
        batcher: Whose policy is moved.
        curve: Its service times.
        target_s: 99 of 100 items are to be done so long after they came to this stage.
        servers: Batches that run at a time.
    """

    def __init__(self, batcher: Batcher[Any], curve: LatencyCurve, target_s: float, servers: int) -> None:
        self._batcher = batcher
        self._controller = ModelBased(curve, target_s=target_s, devices=servers, base=batcher.policy)

    def arrived(self, count: int, now: float) -> None:
        """Items came."""
        self._controller.observe_arrivals(count, now)

    def ran(self, queued_at: Sequence[float], seconds: float, now: float) -> None:
        """A batch ended.

        Args:
            queued_at: When each of its items came.
            seconds: How long it ran.
            now: The time.
        """
        self._controller.observe_batch(len(queued_at), seconds, [now - each for each in queued_at], now)
        self._batcher.policy = self._controller.policy(now, pending=len(self._batcher))
