"""Pending items grouped by shape, and the rule for when a group leaves.

Owns order and grouping. Refuses locks, threads and clocks: the caller holds a lock and hands the time in.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """When a batch leaves.

    Attributes:
        max_batch: A group of this many leaves at once.
        max_delay_s: A group whose oldest item has waited this long leaves even if more could join it.
    """

    max_batch: int
    max_delay_s: float


class Batcher(Generic[T]):
    """Pending items by shape, first in, first out within a shape.

    Args:
        policy: When a batch leaves.
    """

    def __init__(self, policy: BatchPolicy) -> None:
        self.policy = policy
        self._groups: OrderedDict[Hashable, deque[tuple[float, T]]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, item: T, *, shape: Hashable, now: float) -> None:
        """Append an item; only items of one `shape` share a batch."""
        self._groups.setdefault(shape, deque()).append((now, item))
        self._count += 1

    def due(self, now: float) -> bool:
        """Whether a batch has to leave: it is full, or its oldest item has waited long enough."""
        return self._due_shape(now) is not None

    def take(self, now: float, *, at_most: int | None = None) -> list[T]:
        """Remove the next batch: one that is due, else the one whose oldest item has waited longest.

        Args:
            now: The time, on the clock of `add`.
            at_most: A smaller limit than the policy's, to share work among idle workers.

        Returns:
            One to `max_batch` items of one shape; empty when nothing is pending.
        """
        if not self._count:
            return []
        shape = self._due_shape(now)
        if shape is None:
            shape = min(self._groups, key=lambda key: self._groups[key][0][0])
        group = self._groups[shape]
        size = min(len(group), self.policy.max_batch, at_most or self.policy.max_batch)
        batch = [group.popleft()[1] for _ in range(size)]
        if not group:
            del self._groups[shape]
        self._count -= size
        return batch

    def _due_shape(self, now: float) -> Hashable | None:
        late = now - self.policy.max_delay_s
        for shape, group in self._groups.items():
            if len(group) >= self.policy.max_batch or group[0][0] <= late:
                return shape
        return None
