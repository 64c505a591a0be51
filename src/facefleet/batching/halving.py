"""The doubling and halving of the batch by measured latency alone: the baseline of `adaptive`.

Owns the latencies of the last period. Refuses clocks, locks and batchers, as `adaptive` does.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from facefleet.batching.policy import BatchPolicy


class RecentLatency:
    """The p99 of the latest items: up to so many seconds and so many items back.

    Args:
        window_s: How far back.
        max_items: Most items kept.
    """

    def __init__(self, window_s: float, max_items: int = 4096) -> None:
        self._window_s = window_s
        self._seen: deque[tuple[float, float]] = deque(maxlen=max_items)

    def __len__(self) -> int:
        return len(self._seen)

    def add(self, latencies_s: Sequence[float], now: float) -> None:
        """These items were answered now."""
        self._seen.extend((now, latency) for latency in latencies_s)

    def clear(self) -> None:
        """Forget all."""
        self._seen.clear()

    def p99_s(self, now: float) -> float:
        """Nearest rank; 0.0 where there was nothing."""
        while self._seen and self._seen[0][0] < now - self._window_s:
            self._seen.popleft()
        if not self._seen:
            return 0.0
        ordered = sorted(latency for _, latency in self._seen)
        return ordered[math.ceil(0.99 * len(ordered)) - 1]


class HalvingRule:
    """Doubles the batch while the measured p99 is under 70 % of the target, halves it over 90 %.

    The rule that is common in articles on serving, a coarser form of the additive increase and multiplicative
    decrease of Clipper (Crankshaw et al., NSDI 2017, section 4.3.1). It sees latency only: under overload it takes
    the queue for slow batches, makes them smaller, and so the queue longer.

    Args:
        start: The policy to begin with; its delay stays.
        target_s: The p99 to hold.
        max_batch: The bound never leaves 1 to this.
        period_s: Between two steps, and the window of the p99; by default ten targets.
    """

    def __init__(self, start: BatchPolicy, *, target_s: float, max_batch: int, period_s: float | None = None) -> None:
        check_target(target_s)
        self.target_s = target_s
        self._policy = start
        self._max_batch = max_batch
        self._period_s = period_s or 10 * target_s
        self._latency = RecentLatency(self._period_s)
        self._next: float | None = None

    def observe_arrivals(self, count: int, now: float) -> None:
        """Not used by this rule."""

    def observe_batch(self, size: int, service_s: float, latencies_s: Sequence[float], now: float) -> None:
        """Remember the latencies."""
        del size, service_s
        self._latency.add(latencies_s, now)

    def policy(self, now: float, *, pending: int = 0) -> BatchPolicy:
        """One step a period."""
        del pending
        if self._next is None:
            self._next = now + self._period_s
        if now < self._next:
            return self._policy
        self._next = now + self._period_s
        p99_s = self._latency.p99_s(now)
        if not p99_s:
            return self._policy
        if p99_s < 0.7 * self.target_s:
            self._step(self._policy.max_batch * 2)
        elif p99_s > 0.9 * self.target_s:
            self._step(self._policy.max_batch // 2)
        return self._policy

    def _step(self, size: int) -> None:
        size = min(max(size, 1), self._max_batch)
        if size != self._policy.max_batch:
            self._policy = replace(self._policy, max_batch=size)
            self._latency.clear()


def check_target(target_s: float) -> None:
    """Refuse what is not a positive number of seconds."""
    if not 0 < target_s < math.inf:
        raise ValueError(f"not a latency target: {target_s} s")
