"""Which work goes to which worker, and what becomes of it when that worker ends: pure, no I/O, no clock, no threads.

Workers pull: a seat with a free place is given the next batch, the seat with the least outstanding cost first, so a
slow device takes less by itself. A work that was running when its worker ended is a suspect and runs alone next, so
that guilt is proved on nobody else: a poison item ends at most `max_crashes` + 1 workers, and never costs a neighbor
its answer.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from facefleet.batching import Batcher, BatchPolicy
from facefleet.errors import InternalError
from facefleet.workers.work import Batch, Work, WorkState


@dataclass(slots=True, eq=False)
class Seat:
    """The dispatcher's view of a ready worker.

    Attributes:
        name: Unique.
        stage: What it does.
        instances: Batches it runs at a time.
        depth: Batches it may hold, the running ones included; more than `instances` keeps the next one at hand.
        open: Whether it is given more.
        alone: Whether it is kept free of company for a suspect.
        batches: What it holds.
        cost: Outstanding cost.
    """

    name: str
    stage: str
    instances: int
    depth: int
    open: bool = True
    alone: bool = False
    batches: dict[int, dict[int, Work]] = field(default_factory=dict)
    cost: float = 0.0

    def works(self) -> list[Work]:
        """Everything it holds."""
        return [work for batch in self.batches.values() for work in batch.values()]


class Dispatcher:
    """Queues by stage, seats, and the works between them. The caller holds a lock and hands the time in.

    Args:
        policies: Stage -> rules of its batches.
        upstream: Stage -> the stage whose works become works of it: while there are any, a part-filled batch may
            wait.
        max_crashes: A work that was running at more than so many ends of workers is given up.
    """

    def __init__(
        self, policies: Mapping[str, BatchPolicy], *, upstream: Mapping[str, str] | None = None, max_crashes: int = 2
    ) -> None:
        self.batchers: dict[str, Batcher[Work]] = {stage: Batcher(policy) for stage, policy in policies.items()}
        self.seats: dict[str, Seat] = {}
        self._upstream = dict(upstream or {})
        self._max_crashes = max_crashes
        self._suspects: dict[str, deque[Work]] = {stage: deque() for stage in policies}
        self._returned: dict[str, deque[Work]] = {stage: deque() for stage in policies}
        self._running = dict.fromkeys(policies, 0)
        self._numbers = itertools.count()
        self._batch_numbers = itertools.count()
        self._deadlines: list[tuple[float, int, Work]] = []

    def submit(self, work: Work, now: float) -> None:
        """Queue a new work."""
        batcher = self.batchers.get(work.stage)
        if batcher is None:
            raise InternalError(f"no stage {work.stage!r}")
        work.number = next(self._numbers)
        if work.deadline is not None:
            live = sum(self.waiting(stage) + self._running[stage] for stage in self.batchers)
            if len(self._deadlines) > 2 * live + 64:  # most of them have their answer: let them go
                self._deadlines = [entry for entry in self._deadlines if not _settled(entry[2])]
                heapq.heapify(self._deadlines)
            heapq.heappush(self._deadlines, (work.deadline, work.number, work))
        self._queue(work, now)

    def waiting(self, stage: str) -> int:
        """Works that no worker has."""
        return len(self.batchers[stage]) + len(self._suspects[stage]) + len(self._returned[stage])

    def running(self, stage: str) -> int:
        """Works that workers have."""
        return self._running[stage]

    def seat(self, name: str, stage: str, *, instances: int, depth: int) -> Seat:
        """A worker is ready."""
        seat = self.seats[name] = Seat(name, stage, instances, max(depth, instances))
        return seat

    def dispatch(self, now: float) -> list[Batch]:
        """Hand out what may go now; the caller sends it."""
        sent: list[Batch] = []
        for stage, batcher in self.batchers.items():
            suspects = self._suspects[stage]
            if not (len(batcher) or suspects or self._returned[stage]):
                continue
            seats = [seat for seat in self.seats.values() if seat.stage == stage and seat.open]
            if suspects:
                sent += self._send_suspects(stage, seats, now)
            sent += self._send_batches(stage, seats, now)
        return sent

    def finished(self, worker: str, batch: int, number: int) -> Work | None:
        """A worker answered a work; None if it does not have it (any more)."""
        seat = self.seats.get(worker)
        works = seat.batches.get(batch) if seat is not None else None
        work = works.pop(number, None) if works is not None else None
        if seat is None or works is None or work is None:
            return None
        self._put_down(seat, work)
        if not works:
            del seat.batches[batch]
            seat.alone = seat.alone and bool(seat.batches)
        work.state = WorkState.ANSWERED
        return work

    def lost(self, worker: str, *, innocent: Collection[Work] = ()) -> tuple[list[Work], list[Work]]:
        """A worker ended.

        Args:
            worker: Its name.
            innocent: Works that cannot have been the reason; they keep their standing.

        Returns:
            Works that are given up, and all works that it held (their shared memory is free now).
        """
        seat = self.seats.pop(worker, None)
        if seat is None:
            return [], []
        held = seat.works()
        given_up = []
        for work in held:
            self._put_down(seat, work)
            if work.answered:
                work.state = WorkState.ANSWERED
                continue
            work.state = WorkState.WAITING
            if work in innocent:
                (self._suspects if work.crashes else self._returned)[work.stage].append(work)
                continue
            work.crashes += 1
            if work.crashes > self._max_crashes:
                work.state = WorkState.ANSWERED
                given_up.append(work)
            else:
                self._suspects[work.stage].append(work)
        return given_up, held

    def cancel(self, work: Work) -> bool:
        """Take a work out that no worker has; False if one has it, or it is answered."""
        if work.state is not WorkState.WAITING:
            return False
        self._unqueue(work)
        work.state = WorkState.ANSWERED
        return True

    def expire(self, now: float) -> list[Work]:
        """Works whose deadline has come; those that no worker has are taken out."""
        late = []
        while self._deadlines and (self._deadlines[0][0] <= now or _settled(self._deadlines[0][2])):
            work = heapq.heappop(self._deadlines)[2]
            if _settled(work):
                continue
            if work.state is WorkState.WAITING:
                self._unqueue(work)
                work.state = WorkState.ANSWERED
            late.append(work)
        return late

    def give_up(self, stage: str) -> list[Work]:
        """Take out everything that waits for a stage: there is nobody left to do it."""
        works = [*self._suspects[stage], *self._returned[stage]]
        self._suspects[stage].clear()
        self._returned[stage].clear()
        batcher = self.batchers[stage]
        while batch := batcher.take(float("inf")):
            works += batch
        for work in works:
            work.state = WorkState.ANSWERED
        return works

    def overdue(self, now: float, limit_s: float) -> list[tuple[Seat, list[Work]]]:
        """Seats with works that have been out for longer than `limit_s`, and those works."""
        found = []
        for seat in self.seats.values():
            late = [work for work in seat.works() if work.sent_at + limit_s <= now]
            if late:
                found.append((seat, late))
        return found

    def wake_at(self) -> float | None:
        """When `dispatch` or `expire` may have something new to do without an event; None: never."""
        times = [self._deadlines[0][0]] if self._deadlines else []
        for stage, batcher in self.batchers.items():
            # Only waiting for company ends by itself; where no seat is free, a seat will say so.
            seats = (s for s in self.seats.values() if s.stage == stage and s.open and not s.alone)
            if len(batcher) and any(len(seat.batches) < seat.instances for seat in seats):
                times.append(batcher.oldest() + batcher.policy.max_delay_s)
        return min(times, default=None)

    def _send_suspects(self, stage: str, seats: list[Seat], now: float) -> list[Batch]:
        """Every suspect gets a seat to itself; at most half of the seats are kept for that."""
        suspects = self._suspects[stage]
        sent = []
        kept = sum(seat.alone for seat in seats)
        for seat in sorted(seats, key=lambda seat: seat.cost):
            if not suspects:
                break
            if not seat.alone and kept >= max(1, len(seats) // 2):
                continue
            kept += not seat.alone
            seat.alone = True
            if not seat.batches:
                sent.append(self._hand_out(seat, [suspects.popleft()], now))
        if not suspects:
            for seat in seats:
                seat.alone = seat.alone and bool(seat.batches)
        return sent

    def _send_batches(self, stage: str, seats: list[Seat], now: float) -> list[Batch]:
        sent = []
        batcher = self.batchers[stage]
        upstream = self._upstream.get(stage)
        expecting = upstream is not None and self.waiting(upstream) + self._running[upstream] > 0
        # First those that run nothing, then those that would hold a full batch in hand.
        for idle in (True, False):
            free = [
                seat
                for seat in seats
                if not seat.alone and len(seat.batches) < seat.depth and (len(seat.batches) < seat.instances) == idle
            ]
            while free and (len(batcher) or self._returned[stage]):
                seat = min(free, key=_outstanding) if len(free) > 1 else free[0]
                works = self._next(stage, now, len(free), expecting=expecting, only_full=not idle)
                if not works:
                    break
                sent.append(self._hand_out(seat, works, now))
                if len(seat.batches) >= (seat.instances if idle else seat.depth):
                    free.remove(seat)
        return sent

    def _next(self, stage: str, now: float, seats: int, *, expecting: bool, only_full: bool) -> list[Work]:
        returned = self._returned[stage]
        batcher = self.batchers[stage]
        if returned:
            works = _together(returned, batcher.policy)
            for work in works:
                returned.remove(work)
            return works
        share = None if only_full else -(-len(batcher) // seats) or 1
        return batcher.take(now, expecting=expecting, only_full=only_full, at_most=share)

    def _hand_out(self, seat: Seat, works: list[Work], now: float) -> Batch:
        batch = Batch(next(self._batch_numbers), seat.name, works)
        seat.batches[batch.number] = {work.number: work for work in works}
        for work in works:
            work.state = WorkState.RUNNING
            work.sent_at = now
            seat.cost += work.cost
        self._running[seat.stage] += len(works)
        return batch

    def _put_down(self, seat: Seat, work: Work) -> None:
        seat.cost -= work.cost
        if not any(seat.batches.values()):
            seat.cost = 0.0  # rounding does not add up
        self._running[work.stage] -= 1

    def _queue(self, work: Work, now: float) -> None:
        work.state = WorkState.WAITING
        work.ticket = self.batchers[work.stage].add(
            work, now=now, shape=work.shape, priority=work.priority, cost=work.cost
        )

    def _unqueue(self, work: Work) -> None:
        if work.ticket is not None and self.batchers[work.stage].cancel(work.ticket):
            return
        for queue in (self._suspects[work.stage], self._returned[work.stage]):
            if work in queue:
                queue.remove(work)


def _together(works: Collection[Work], policy: BatchPolicy) -> list[Work]:
    """The first of some works and those that can share its batch."""
    batch: list[Work] = []
    cost = 0.0
    for work in works:
        fits = not batch or (work.shape == batch[0].shape and cost + work.cost <= policy.max_cost)
        if fits and len(batch) < policy.max_batch:
            batch.append(work)
            cost += work.cost
    return batch


def _outstanding(seat: Seat) -> float:
    return seat.cost


def _settled(work: Work) -> bool:
    return work.answered or work.state is WorkState.ANSWERED
