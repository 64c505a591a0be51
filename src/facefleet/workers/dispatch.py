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

    def has_room(self) -> bool:
        """Whether it may be given a batch that needs no seat to itself."""
        return self.open and not self.alone and len(self.batches) < self.depth


@dataclass(slots=True, eq=False)
class _Stage:
    """What waits for the workers of a stage, and their seats.

    Attributes:
        batcher: New works.
        upstream: The stage whose works become works of this one.
        seats: Of its workers.
        suspects: Works that were running when a worker ended.
        returned: Works that a worker held then, but cannot have ended it.
        running: How many works its workers have.
    """

    batcher: Batcher[Work]
    upstream: _Stage | None = None
    seats: list[Seat] = field(default_factory=list)
    suspects: deque[Work] = field(default_factory=deque)
    returned: deque[Work] = field(default_factory=deque)
    running: int = 0

    def waiting(self) -> int:
        """Works that no worker has."""
        return len(self.batcher) + len(self.suspects) + len(self.returned)

    def expecting(self) -> bool:
        """Whether more works are known to be on their way."""
        return self.upstream is not None and self.upstream.waiting() + self.upstream.running > 0


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
        self._stages = {name: _Stage(batcher) for name, batcher in self.batchers.items()}
        for name, before in (upstream or {}).items():
            self._stages[name].upstream = self._stages[before]
        self._max_crashes = max_crashes
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
            live = sum(stage.waiting() + stage.running for stage in self._stages.values())
            if len(self._deadlines) > 2 * live + 64:  # most of them have their answer: let them go
                self._deadlines = [entry for entry in self._deadlines if not _settled(entry[2])]
                heapq.heapify(self._deadlines)
            heapq.heappush(self._deadlines, (work.deadline, work.number, work))
        work.state = WorkState.WAITING
        work.ticket = batcher.add(work, now=now, shape=work.shape, priority=work.priority, cost=work.cost)

    def waiting(self, stage: str) -> int:
        """Works that no worker has."""
        return self._stages[stage].waiting()

    def running(self, stage: str) -> int:
        """Works that workers have."""
        return self._stages[stage].running

    def seat(self, name: str, stage: str, *, instances: int, depth: int) -> Seat:
        """A worker is ready."""
        seat = self.seats[name] = Seat(name, stage, instances, max(depth, instances))
        self._stages[stage].seats.append(seat)
        return seat

    def dispatch(self, now: float) -> list[Batch]:
        """Hand out what may go now; the caller sends it."""
        sent: list[Batch] = []
        for stage in self._stages.values():
            if stage.suspects:
                sent += self._send_suspects(stage, now)
            free = [seat for seat in stage.seats if seat.has_room()]
            if free and stage.waiting():
                sent += self._send_batches(stage, free, now)
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
        self._stages[seat.stage].seats.remove(seat)
        held = seat.works()
        given_up = []
        for work in held:
            self._put_down(seat, work)
            if work.answered:
                work.state = WorkState.ANSWERED
                continue
            work.state = WorkState.WAITING
            stage = self._stages[work.stage]
            if work in innocent:
                (stage.suspects if work.crashes else stage.returned).append(work)
                continue
            work.crashes += 1
            if work.crashes > self._max_crashes:
                work.state = WorkState.ANSWERED
                given_up.append(work)
            else:
                stage.suspects.append(work)
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
        left = self._stages[stage]
        works = [*left.suspects, *left.returned]
        left.suspects.clear()
        left.returned.clear()
        while batch := left.batcher.take(float("inf")):
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
        for stage in self._stages.values():
            # Only waiting for company ends by itself; where no seat is free, a seat will say so.
            batcher = stage.batcher
            if len(batcher) and any(seat.has_room() and len(seat.batches) < seat.instances for seat in stage.seats):
                times.append(batcher.oldest() + batcher.policy.max_delay_s)
        return min(times, default=None)

    def _send_suspects(self, stage: _Stage, now: float) -> list[Batch]:
        """Every suspect gets a seat to itself; at most half of the seats are kept for that."""
        suspects = stage.suspects
        sent = []
        seats = [seat for seat in stage.seats if seat.open]
        kept = sum(seat.alone for seat in seats)
        for seat in sorted(seats, key=_outstanding):
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

    def _send_batches(self, stage: _Stage, seats: list[Seat], now: float) -> list[Batch]:
        sent = []
        expecting = stage.expecting()
        # First those that run nothing, then those that would hold a full batch in hand.
        for idle in (True, False):
            free = [
                seat
                for seat in seats
                if len(seat.batches) < seat.depth and (len(seat.batches) < seat.instances) == idle
            ]
            while free:
                works = _next(stage, now, len(free), expecting=expecting, only_full=not idle)
                if not works:
                    break
                seat = min(free, key=_outstanding)
                sent.append(self._hand_out(seat, works, now))
                if len(seat.batches) >= (seat.instances if idle else seat.depth):
                    free.remove(seat)
        return sent

    def _hand_out(self, seat: Seat, works: list[Work], now: float) -> Batch:
        batch = Batch(next(self._batch_numbers), seat.name, works)
        seat.batches[batch.number] = {work.number: work for work in works}
        for work in works:
            work.state = WorkState.RUNNING
            work.sent_at = now
            seat.cost += work.cost
        self._stages[seat.stage].running += len(works)
        return batch

    def _put_down(self, seat: Seat, work: Work) -> None:
        seat.cost -= work.cost
        if not any(seat.batches.values()):
            seat.cost = 0.0  # rounding does not add up
        self._stages[work.stage].running -= 1

    def _unqueue(self, work: Work) -> None:
        stage = self._stages[work.stage]
        if work.ticket is not None and stage.batcher.cancel(work.ticket):
            return
        for queue in (stage.suspects, stage.returned):
            if work in queue:
                queue.remove(work)


def _next(stage: _Stage, now: float, seats: int, *, expecting: bool, only_full: bool) -> list[Work]:
    """What the next of so many free seats is given; empty where nothing may go."""
    if stage.returned:
        works = _together(stage.returned, stage.batcher.policy)
        for work in works:
            stage.returned.remove(work)
        return works
    waiting = len(stage.batcher)
    if not waiting:
        return []
    share = None if only_full else -(-waiting // seats)
    return stage.batcher.take(now, expecting=expecting, only_full=only_full, at_most=share)


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
