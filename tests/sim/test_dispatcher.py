"""Any order of submissions, answers, deaths, cancellations and passing time: what the dispatcher owes every work."""

from __future__ import annotations

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from facefleet.batching import BatchPolicy, Priority
from facefleet.workers.dispatch import Dispatcher
from facefleet.workers.work import Batch, Payload, Work, WorkState

CRASHES = 2
POLICIES = {"detect": BatchPolicy(3, 0.5, bulk_penalty_s=1.0), "embed": BatchPolicy(4, 0.5, max_cost=6.0)}


class DispatcherMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.dispatcher = Dispatcher(POLICIES, upstream={"embed": "detect"}, max_crashes=CRASHES)
        self.now = 0.0
        self.works: list[Work] = []
        self.answers: dict[int, str] = {}
        self.deaths: dict[int, int] = {}
        self.batches: dict[str, list[Batch]] = {}
        self.seats = 0

    def send(self) -> None:
        for batch in self.dispatcher.dispatch(self.now):
            policy = POLICIES[batch.works[0].stage]
            seat = self.dispatcher.seats[batch.worker]
            assert len(batch.works) <= policy.max_batch
            assert len(batch.works) == 1 or sum(work.cost for work in batch.works) <= policy.max_cost
            assert {work.stage for work in batch.works} == {seat.stage}
            assert len(seat.batches) <= seat.depth
            for work in batch.works:
                assert work.number not in self.answers
                assert work.deadline is None or work.deadline > self.now
            if any(work.crashes for work in batch.works):
                assert len(batch.works) == 1, "a suspect shares its batch"
                assert len(seat.batches) == 1, "a suspect shares its worker"
            self.batches.setdefault(batch.worker, []).append(batch)

    def answer(self, work: Work, how: str) -> None:
        assert work.number not in self.answers, "answered twice"
        self.answers[work.number] = how
        work.answered = True

    @rule(stage=st.sampled_from(["detect", "embed"]), instances=st.integers(1, 2), extra=st.integers(0, 2))
    def worker_ready(self, stage: str, instances: int, extra: int) -> None:
        if len(self.dispatcher.seats) < 5:
            self.dispatcher.seat(f"w{self.seats}", stage, instances=instances, depth=instances + extra)
            self.seats += 1
            self.send()

    @rule(
        stage=st.sampled_from(["detect", "embed"]),
        cost=st.sampled_from([1.0, 2.0, 9.0]),
        priority=st.sampled_from(Priority),
        wait=st.one_of(st.none(), st.sampled_from([0.2, 2.0])),
    )
    def submit(self, stage: str, cost: float, priority: Priority, wait: float | None) -> None:
        deadline = None if wait is None else self.now + wait
        work = Work(stage, Payload(None), lambda _: None, cost=cost, priority=priority, deadline=deadline)
        self.dispatcher.submit(work, self.now)
        self.works.append(work)
        self.send()

    @precondition(lambda self: any(self.batches.values()))
    @rule(data=st.data())
    def worker_answers(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(sorted(name for name, held in self.batches.items() if held)))
        batch = self.batches[worker].pop(0)
        for work in batch.works:
            assert self.dispatcher.finished(worker, batch.number, work.number) is work
            assert self.dispatcher.finished(worker, batch.number, work.number) is None
            if not work.answered:
                self.answer(work, "done")
        self.send()

    @precondition(lambda self: self.dispatcher.seats)
    @rule(data=st.data(), innocent=st.booleans())
    def worker_dies(self, data: st.DataObject, *, innocent: bool) -> None:
        worker = data.draw(st.sampled_from(sorted(self.dispatcher.seats)))
        held = self.dispatcher.seats[worker].works()
        given_up, moved = self.dispatcher.lost(worker, innocent=held[:1] if innocent else ())
        assert sorted(work.number for work in moved) == sorted(work.number for work in held)
        for work in held[1:] if innocent else held:
            self.deaths[work.number] = self.deaths.get(work.number, 0) + (not work.answered)
        for work in given_up:
            assert self.deaths[work.number] == CRASHES + 1
            self.answer(work, "quarantined")
        self.batches.pop(worker, None)
        assert self.dispatcher.lost(worker) == ([], [])
        self.send()

    @precondition(lambda self: self.dispatcher.seats)
    @rule(data=st.data())
    def worker_drains(self, data: st.DataObject) -> None:
        self.dispatcher.seats[data.draw(st.sampled_from(sorted(self.dispatcher.seats)))].open = False

    @precondition(lambda self: self.works)
    @rule(data=st.data())
    def take_back(self, data: st.DataObject) -> None:
        work = data.draw(st.sampled_from(self.works))
        waiting = work.state is WorkState.WAITING
        if self.dispatcher.cancel(work):
            assert waiting
            self.answer(work, "cancelled")
        self.send()

    @rule(wait=st.sampled_from([0.0, 0.1, 0.6, 3.0]))
    def time_passes(self, wait: float) -> None:
        wake = self.dispatcher.wake_at()
        self.now += wait
        late = self.dispatcher.expire(self.now)
        if late:
            assert wake is not None
            assert wake <= self.now, "nobody was told to wake up for a deadline"
        for work in late:
            assert work.deadline is not None
            assert work.deadline <= self.now
            self.answer(work, "late")
        for work in self.works:
            assert work.answered or work.deadline is None or work.deadline > self.now
        self.send()

    @invariant()
    def counts_add_up(self) -> None:
        for stage in POLICIES:
            of_stage = [work for work in self.works if work.stage == stage]
            waiting = [work for work in of_stage if work.state is WorkState.WAITING]
            running = [work for work in of_stage if work.state is WorkState.RUNNING]
            assert self.dispatcher.waiting(stage) == len(waiting)
            assert self.dispatcher.running(stage) == len(running)
            assert not any(work.answered for work in waiting)
        for seat in self.dispatcher.seats.values():
            assert abs(seat.cost - sum(work.cost for work in seat.works())) < 1e-9

    @invariant()
    def nothing_waits_for_nothing(self) -> None:
        """An idle worker has nothing to do, or something is on its way, or time will tell."""
        for stage in POLICIES:
            idle = [seat for seat in self.dispatcher.seats.values() if seat.stage == stage and seat.open]
            idle = [seat for seat in idle if not seat.batches]
            if idle and self.dispatcher.waiting(stage):
                wake = self.dispatcher.wake_at()
                alone = any(seat.alone for seat in self.dispatcher.seats.values())
                upstream = self.dispatcher.waiting("detect") + self.dispatcher.running("detect")
                assert alone or (stage == "embed" and upstream and wake is not None)

    def teardown(self) -> None:
        for stage in POLICIES:
            self.dispatcher.seat(f"last {stage}", stage, instances=1, depth=1)
        for _ in range(10_000):
            self.now += 1.0
            for work in self.dispatcher.expire(self.now):
                self.answer(work, "late")
            self.send()
            busy = [(name, held) for name, held in self.batches.items() if held]
            if not busy:
                break
            for name, held in busy:
                batch = held.pop(0)
                for work in batch.works:
                    assert self.dispatcher.finished(name, batch.number, work.number) is work
                    if not work.answered:
                        self.answer(work, "done")
        assert sorted(self.answers) == [work.number for work in self.works], "lost"


TestDispatcherMachine = DispatcherMachine.TestCase
# Not shrunk: that takes longer than pytest lets a test run, and would hide the failure.
TestDispatcherMachine.settings = settings(
    max_examples=150, stateful_step_count=50, deadline=None, phases=[Phase.reuse, Phase.generate]
)
