"""Pending items grouped by shape, and the rule for when a group leaves.

Owns order, grouping, deadlines and cancellation. Refuses locks, threads and clocks: the caller holds a lock and hands
the time in, on one clock that never goes back.

Within a group, items go in the order of arrival plus `bulk_penalty_s` for bulk items: a virtual start time, which
needs no counting of turns and bounds what a bulk item can lose (the idea of start-time fair queueing, Goyal, Vin and
Cheng 1996, with a constant offset in place of weights).
"""

from __future__ import annotations

import enum
import heapq
import itertools
import math
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from facefleet.batching.policy import BatchPolicy, Priority

T = TypeVar("T")


class TicketState(enum.Enum):
    """Where an item is; it leaves PENDING once."""

    PENDING = "pending"
    TAKEN = "taken"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


@dataclass(slots=True, eq=False)
class Ticket(Generic[T]):
    """An item's place in a batcher.

    Attributes:
        item: What was added.
        shape: What it may share a batch with.
        arrived: When it was added.
        priority: Who goes first.
        cost: In a unit of the caller's: pixels, faces.
        deadline: When it is not worth running any more.
        state: Whether it is still pending.
    """

    item: T
    shape: Hashable
    arrived: float
    priority: Priority
    cost: float
    deadline: float | None
    state: TicketState = TicketState.PENDING


@dataclass(slots=True)
class _Group(Generic[T]):
    """Items of one shape: a queue for each priority, in the order of arrival; `count` and `cost` of those pending."""

    queues: tuple[deque[Ticket[T]], ...] = field(default_factory=lambda: tuple(deque() for _ in Priority))
    count: int = 0
    cost: float = 0.0

    def first(self, bulk_penalty_s: float) -> Ticket[T] | None:
        """The pending ticket whose turn comes first."""
        interactive, bulk = self.queues
        one, two = _head(interactive), _head(bulk)
        if one is None or two is None:
            return one or two
        return one if one.arrived <= two.arrived + bulk_penalty_s else two

    def oldest(self) -> float:
        """When the item that has waited longest came; infinite for an empty group."""
        heads = (_head(queue) for queue in self.queues)
        return min((ticket.arrived for ticket in heads if ticket is not None), default=math.inf)


def _head(queue: deque[Ticket[T]]) -> Ticket[T] | None:
    """The first ticket that is pending; those before it have left and are dropped."""
    while queue:
        if queue[0].state is TicketState.PENDING:
            return queue[0]
        queue.popleft()
    return None


class Batcher(Generic[T]):
    """Pending items, and which of them make the next batch.

    Args:
        policy: The rules; may be replaced at any time.
    """

    def __init__(self, policy: BatchPolicy) -> None:
        self.policy = policy
        self._groups: dict[Hashable, _Group[T]] = {}
        self._deadlines: list[tuple[float, int, Ticket[T]]] = []
        self._numbers = itertools.count()
        self._expired: list[T] = []
        self._count = 0
        self._cost = 0.0

    def __len__(self) -> int:
        """How many items are pending."""
        return self._count

    @property
    def cost(self) -> float:
        """Cost of all pending items."""
        return self._cost

    def add(
        self,
        item: T,
        *,
        now: float,
        shape: Hashable = None,
        priority: Priority = Priority.BULK,
        cost: float = 1.0,
        deadline: float | None = None,
    ) -> Ticket[T]:
        """Append an item.

        Args:
            item: Anything.
            now: The time.
            shape: Only items of one shape share a batch.
            priority: Who goes first.
            cost: In a unit of the caller's.
            deadline: From then on the item is not handed out any more; `expire` returns it.
        """
        ticket = Ticket(item, shape, now, priority, cost, deadline)
        group = self._groups.get(shape)
        if group is None:
            group = self._groups[shape] = _Group()
        group.queues[priority].append(ticket)
        group.count += 1
        group.cost += cost
        self._count += 1
        self._cost += cost
        if deadline is not None:
            if len(self._deadlines) > 2 * self._count + 64:  # most of them have left: forget those
                self._deadlines = [entry for entry in self._deadlines if entry[2].state is TicketState.PENDING]
                heapq.heapify(self._deadlines)
            heapq.heappush(self._deadlines, (deadline, next(self._numbers), ticket))
        return ticket

    def cancel(self, ticket: Ticket[T]) -> bool:
        """Take an item out; False if it has left already."""
        return self._leave(ticket, TicketState.CANCELLED)

    def expire(self, now: float) -> list[T]:
        """The items whose deadline has come since the last call, taken out."""
        self._take_out_expired(now)
        expired, self._expired = self._expired, []
        return expired

    def ready(self, now: float, *, expecting: bool = False, only_full: bool = False) -> bool:
        """Whether `take` with the same arguments would return a batch."""
        self._take_out_expired(now)
        return self._next_group(now, expecting=expecting, only_full=only_full) is not None

    def take(
        self, now: float, *, expecting: bool = False, only_full: bool = False, at_most: int | None = None
    ) -> list[T]:
        """Remove the next batch.

        Args:
            now: The time.
            expecting: Whether more items are known to be on their way. Then a part-filled batch waits until its oldest
                item is `max_delay_s` old; otherwise an idle device gets what there is at once.
            only_full: Only a full batch, however old: for a device that is busy still.
            at_most: A smaller limit than the policy's, to share work among idle devices.

        Returns:
            Items of one shape, at most `max_batch`, none of them expired or cancelled; empty when none should go.
        """
        self._take_out_expired(now)
        group = self._next_group(now, expecting=expecting, only_full=only_full)
        if group is None:
            return []
        size = min(group.count, self.policy.max_batch, at_most or self.policy.max_batch)
        trimmed = size if size == self.policy.max_batch else self.policy.trimmed(size)
        batch: list[T] = []
        spent = 0.0
        while len(batch) < size:
            ticket = group.first(self.policy.bulk_penalty_s)
            assert ticket is not None
            if batch and spent + ticket.cost > self.policy.max_cost:
                break
            if len(batch) == trimmed and expecting and group.oldest() + self.policy.max_delay_s > now:
                break
            self._leave(ticket, TicketState.TAKEN)
            batch.append(ticket.item)
            spent += ticket.cost
        return batch

    def oldest(self) -> float:
        """When the item that has waited longest was added; infinite when nothing is pending."""
        return min((group.oldest() for group in self._groups.values()), default=math.inf)

    def age(self, now: float) -> float:
        """How long the item that has waited longest has waited; 0.0 when nothing is pending."""
        return now - self.oldest() if self._count else 0.0

    def wake_at(self) -> float | None:
        """When `take` or `expire` may have something new to say without a new arrival; None: never."""
        while self._deadlines and self._deadlines[0][2].state is not TicketState.PENDING:
            heapq.heappop(self._deadlines)
        times = [self._deadlines[0][0]] if self._deadlines else []
        if self._count:
            times.append(self.oldest() + self.policy.max_delay_s)
        return min(times, default=None)

    def _take_out_expired(self, now: float) -> None:
        while self._deadlines and (
            self._deadlines[0][0] <= now or self._deadlines[0][2].state is not TicketState.PENDING
        ):
            ticket = heapq.heappop(self._deadlines)[2]
            if self._leave(ticket, TicketState.EXPIRED):
                self._expired.append(ticket.item)

    def _next_group(self, now: float, *, expecting: bool, only_full: bool) -> _Group[T] | None:
        """Of the groups that may leave, the one whose turn comes first."""
        best: _Group[T] | None = None
        first = math.inf
        for group in self._groups.values():
            full = group.count >= self.policy.max_batch or group.cost >= self.policy.max_cost
            if not full and (only_full or (expecting and group.oldest() + self.policy.max_delay_s > now)):
                continue
            if len(self._groups) == 1:
                return group
            ticket = group.first(self.policy.bulk_penalty_s)
            assert ticket is not None
            start = ticket.arrived + (self.policy.bulk_penalty_s if ticket.priority is Priority.BULK else 0.0)
            if best is None or start < first:
                best, first = group, start
        return best

    def _leave(self, ticket: Ticket[T], state: TicketState) -> bool:
        if ticket.state is not TicketState.PENDING:
            return False
        ticket.state = state
        group = self._groups[ticket.shape]
        group.count -= 1
        group.cost -= ticket.cost
        self._count -= 1
        self._cost -= ticket.cost
        if not group.count:
            del self._groups[ticket.shape]  # with whatever was cancelled in it
        if not self._count:
            self._cost = 0.0  # rounding does not add up over the life of a batcher
        return True
