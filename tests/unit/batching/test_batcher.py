"""The batching policy, with a clock of the test's own."""

from __future__ import annotations

import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from facefleet.batching import Batcher, BatchPolicy, Priority, Ticket, TicketState


def test_full_batches_leave_at_once() -> None:
    batcher: Batcher[int] = Batcher(BatchPolicy(3, 1.0))
    for i in range(2):
        batcher.add(i, shape="a", now=0.0)
    assert batcher.take(0.5, expecting=True) == []
    batcher.add(2, shape="a", now=0.5)
    assert batcher.take(0.5, expecting=True) == [0, 1, 2]
    assert len(batcher) == 0
    assert batcher.take(9.0) == []


def test_an_idle_device_waits_for_company_only_while_some_is_coming() -> None:
    batcher: Batcher[int] = Batcher(BatchPolicy(8, 1.0))
    batcher.add(1, now=0.0)
    assert batcher.take(0.0, expecting=True) == []
    assert batcher.wake_at() == 1.0
    assert batcher.take(0.0) == [1]
    batcher.add(2, now=2.0)
    assert batcher.take(2.99, expecting=True) == []
    assert batcher.take(3.0, only_full=True) == []
    assert batcher.take(3.0, expecting=True) == [2]


def test_shapes_do_not_mix_and_work_is_shared() -> None:
    batcher: Batcher[tuple[str, int]] = Batcher(BatchPolicy(4, 1.0))
    for i in range(6):
        batcher.add(("ab"[i % 2], i), shape="ab"[i % 2], now=float(i))
    assert batcher.take(2.0, at_most=2) == [("a", 0), ("a", 2)]
    assert batcher.take(2.0, at_most=2) == [("b", 1), ("b", 3)]


def test_interactive_items_go_first_and_bulk_items_do_not_starve() -> None:
    batcher: Batcher[str] = Batcher(BatchPolicy(1, 0.0, bulk_penalty_s=1.0))
    batcher.add("bulk", now=0.0)
    batcher.add("early", now=0.9, priority=Priority.INTERACTIVE)
    batcher.add("late", now=1.1, priority=Priority.INTERACTIVE)
    assert [batcher.take(2.0)[0] for _ in range(3)] == ["early", "bulk", "late"]


def test_cost_bounds_a_batch_but_not_a_single_item() -> None:
    batcher: Batcher[str] = Batcher(BatchPolicy(8, 1.0, max_cost=10.0))
    batcher.add("huge", now=0.0, cost=50.0)
    batcher.add("a", now=0.0, cost=6.0)
    batcher.add("b", now=0.0, cost=4.0)
    batcher.add("c", now=0.0, cost=1.0)
    assert [batcher.take(0.0) for _ in range(3)] == [["huge"], ["a", "b"], ["c"]]
    assert batcher.cost == 0


def test_part_filled_batches_are_cut_to_a_bucket_while_the_rest_can_wait() -> None:
    policy = BatchPolicy(8, 1.0, preferred=(1, 2, 4, 8))
    assert (policy.padded(5), policy.trimmed(5), policy.padded(9)) == (8, 4, 9)
    batcher: Batcher[int] = Batcher(policy)
    for i in range(4):
        batcher.add(i, now=0.0)
    batcher.add(4, now=0.9)
    assert batcher.take(1.0, expecting=True) == [0, 1, 2, 3]
    assert batcher.take(1.0, expecting=True) == []
    assert batcher.take(1.9, expecting=True) == [4]


def test_expired_and_cancelled_items_never_run() -> None:
    batcher: Batcher[str] = Batcher(BatchPolicy(8, 1.0))
    batcher.add("late", now=0.0, deadline=1.0)
    ticket = batcher.add("taken back", now=0.0)
    batcher.add("fine", now=0.0, deadline=9.0)
    assert batcher.cancel(ticket)
    assert not batcher.cancel(ticket)
    assert batcher.wake_at() == 1.0
    assert batcher.take(1.0) == ["fine"]
    assert batcher.expire(1.0) == ["late"]
    assert batcher.expire(99.0) == []
    assert batcher.wake_at() is None


def test_forgets_the_deadlines_of_what_has_left() -> None:
    batcher: Batcher[int] = Batcher(BatchPolicy(1, 0.0))
    for i in range(10_000):
        batcher.add(i, now=float(i), deadline=1e9)
        batcher.take(float(i))
    assert len(batcher._deadlines) < 100


def test_unusable_policies() -> None:
    for wrong in ({"max_batch": 0}, {"max_delay_s": -1.0}, {"preferred": (2, 2)}, {"max_cost": 0.0}):
        with pytest.raises(ValueError, match=r"policy|rise"):
            BatchPolicy(**({"max_batch": 4, "max_delay_s": 1.0} | wrong))  # type: ignore[arg-type]


class BatcherMachine(RuleBasedStateMachine):
    """Any order of additions, cancellations, takes and passing time, against what is owed to every item."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = BatchPolicy(4, 2.0, preferred=(1, 2, 4), max_cost=12.0, bulk_penalty_s=3.0)
        self.batcher: Batcher[int] = Batcher(self.policy)
        self.now = 0.0
        self.tickets: dict[int, Ticket[int]] = {}
        self.answered: dict[int, str] = {}
        self.run: dict[tuple[str, Priority], list[int]] = {}

    @rule(wait=st.sampled_from([0.0, 0.1, 0.5, 1.0, 2.5]))
    def time_passes(self, wait: float) -> None:
        self.now += wait
        self.expire()

    @rule(
        shape=st.sampled_from("ab"),
        priority=st.sampled_from(Priority),
        cost=st.sampled_from([0.5, 1.0, 5.0, 20.0]),
        wait=st.one_of(st.none(), st.sampled_from([0.1, 1.0, 4.0])),
    )
    def add(self, shape: str, priority: Priority, cost: float, wait: float | None) -> None:
        number = len(self.tickets)
        deadline = None if wait is None else self.now + wait
        self.tickets[number] = self.batcher.add(
            number, now=self.now, shape=shape, priority=priority, cost=cost, deadline=deadline
        )

    @precondition(lambda self: self.tickets)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.tickets)))
        if self.batcher.cancel(self.tickets[number]):
            self.answer(number, "cancelled")

    @rule(expecting=st.booleans(), only_full=st.booleans(), at_most=st.one_of(st.none(), st.integers(1, 5)))
    def take(self, *, expecting: bool, only_full: bool, at_most: int | None) -> None:
        pending = self.pending()
        ready = self.batcher.ready(self.now, expecting=expecting, only_full=only_full)
        batch = self.batcher.take(self.now, expecting=expecting, only_full=only_full, at_most=at_most)
        assert bool(batch) == ready
        if not batch:
            # Nothing left: so nothing was full, or late, or (with nothing coming) there at all.
            assert not pending or expecting or only_full
            return
        tickets = [self.tickets[number] for number in batch]
        shape = tickets[0].shape
        assert all(ticket.shape == shape for ticket in tickets)
        assert len(batch) <= min(self.policy.max_batch, at_most or self.policy.max_batch)
        assert len(batch) == 1 or sum(ticket.cost for ticket in tickets) <= self.policy.max_cost
        group = [self.tickets[number] for number in pending if self.tickets[number].shape == shape]
        full = len(group) >= self.policy.max_batch or sum(ticket.cost for ticket in group) >= self.policy.max_cost
        if only_full:
            assert full
        elif expecting and not full:
            assert min(ticket.arrived for ticket in group) + self.policy.max_delay_s <= self.now
        # Starvation: nothing that was left behind came `bulk_penalty_s` before something that went.
        last = max(ticket.arrived for ticket in tickets)
        left = [ticket for ticket in group if ticket.state is TicketState.PENDING]
        assert all(ticket.arrived + self.policy.bulk_penalty_s >= last for ticket in left)
        for number, ticket in zip(batch, tickets, strict=True):
            assert ticket.deadline is None or ticket.deadline > self.now
            self.run.setdefault((str(shape), ticket.priority), []).append(number)
            self.answer(number, "run")

    def expire(self) -> None:
        for number in self.batcher.expire(self.now):
            deadline = self.tickets[number].deadline
            assert deadline is not None
            assert deadline <= self.now
            self.answer(number, "expired")
        for number in self.pending():
            deadline = self.tickets[number].deadline
            assert deadline is None or deadline > self.now

    def answer(self, number: int, how: str) -> None:
        assert number not in self.answered, "answered twice"
        self.answered[number] = how

    def pending(self) -> list[int]:
        return [number for number, ticket in self.tickets.items() if ticket.state is TicketState.PENDING]

    @invariant()
    def order_is_kept(self) -> None:
        for numbers in self.run.values():
            assert numbers == sorted(numbers)

    @invariant()
    def nothing_is_lost(self) -> None:
        pending = self.pending()
        assert len(self.batcher) == len(pending)
        assert self.batcher.cost == pytest.approx(sum(self.tickets[number].cost for number in pending))
        assert self.batcher.oldest() == min((self.tickets[n].arrived for n in pending), default=math.inf)
        wake = self.batcher.wake_at()
        assert (wake is None) == (not pending)

    def teardown(self) -> None:
        self.now += 100.0
        self.expire()
        while batch := self.batcher.take(self.now):
            for number in batch:
                self.answer(number, "run")
        assert sorted(self.answered) == sorted(self.tickets)


TestBatcherMachine = BatcherMachine.TestCase
TestBatcherMachine.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
