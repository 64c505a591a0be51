"""Worker processes: every work is answered once and rightly, whatever ends in between."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from facefleet.batching import BatchPolicy, Priority
from facefleet.errors import (
    CancelledError,
    ClosedError,
    DeadlineError,
    FacefleetError,
    InputError,
    QuarantinedError,
    SelfTestError,
    WorkerLostError,
)
from facefleet.testing import Fault, FaultPlan, KnownAnswers, known_answer
from facefleet.types import Outcome
from facefleet.workers import Fleet, FleetOptions, Handler, HandlerSpec, Payload, Work, WorkerSpec, WorkerState

_QUICK = FleetOptions(arena_bytes=8 << 20, hang_s=2.0, silence_s=5.0)


def specs(count: int, **options: Any) -> list[WorkerSpec]:
    handler = HandlerSpec(KnownAnswers, options)
    return [WorkerSpec(f"cpu:{i}", "answer", handler, result_bytes=4096) for i in range(count)]


def make(count: int = 2, *, max_batch: int = 8, options: FleetOptions = _QUICK, **handler: Any) -> Fleet:
    return Fleet(specs(count, **handler), {"answer": BatchPolicy(max_batch, 0.005)}, options=options)


class Answers:
    """Collects what comes back."""

    def __init__(self) -> None:
        self.got: dict[int, list[Outcome[Payload]]] = {}
        self.changed = threading.Condition()

    def work(self, key: int, data: bytes, meta: str = "", **options: Any) -> Work:
        def done(outcome: Outcome[Payload]) -> None:
            if outcome.ok:  # the buffers are lent for the call
                payload = outcome.unwrap()
                outcome = Outcome(Payload(payload.meta, tuple(bytes(buffer) for buffer in payload.buffers)))
            with self.changed:
                self.got.setdefault(key, []).append(outcome)
                self.changed.notify_all()

        return Work("answer", Payload(meta, (data,) if data else ()), done, **options)

    def wait(self, count: int, timeout: float = 60.0) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.got) >= count, timeout), f"{len(self.got)} of {count}"

    def error(self, key: int) -> Exception:
        (outcome,) = self.got[key]
        assert outcome.error is not None
        return outcome.error

    def check(self, data: Mapping[int, bytes]) -> None:
        """Exactly one answer to each, and the right one."""
        for key, value in data.items():
            (outcome,) = self.got[key]
            payload = outcome.unwrap()
            assert payload.meta == known_answer(value)
            assert b"".join(payload.buffers) == value[::-1]


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    fleet = make()
    fleet.open()
    yield fleet
    fleet.close(deadline_s=5.0)


def random_data(count: int, seed: int = 1) -> dict[int, bytes]:
    draw = random.Random(seed)
    return {key: draw.randbytes(draw.choice([1, 10, 1000, 3000, 20_000])) for key in range(count)}


def test_answers_are_right_whatever_their_size(fleet: Fleet) -> None:
    answers, data = Answers(), random_data(300)
    data[300] = b""
    data[301] = random.Random(0).randbytes(9 << 20)  # more than the whole arena
    for key, value in data.items():
        fleet.submit(answers.work(key, value))
    answers.wait(len(data))
    answers.check(data)
    assert fleet._supervisor.shipping is not None
    with fleet._changed:
        assert fleet._changed.wait_for(lambda: fleet._supervisor.shipping.arena.used == 0, 5)
    assert {status.state for status in fleet.status()} == {WorkerState.READY}


def test_a_bad_item_fails_alone(fleet: Fleet) -> None:
    answers, data = Answers(), random_data(40)
    for key, value in data.items():
        fleet.submit(answers.work(key, value, "bad" if key == 17 else ""))
    answers.wait(40)
    assert isinstance(answers.error(17), InputError)
    del data[17]
    answers.check(data)


@pytest.mark.parametrize("fault", [Fault.RAISE, Fault.MEMORY, Fault.SHORT])
def test_faults_of_a_batch_do_not_reach_its_items(fault: Fault) -> None:
    fleet = make(1, plan=FaultPlan({0: fault, 3: fault}))
    fleet.open()
    try:
        answers, data = Answers(), random_data(64)
        for key, value in data.items():
            fleet.submit(answers.work(key, value))
        answers.wait(64)
        failed = [key for key, (outcome,) in answers.got.items() if not outcome.ok]
        assert len(failed) <= 2  # where the fault hit an item alone: it has nobody to blame
        answers.check({key: value for key, value in data.items() if key not in failed})
    finally:
        fleet.close()


@pytest.mark.parametrize("fault", [Fault.DEVICE_LOST, Fault.EXIT, Fault.HANG])
def test_the_works_of_a_worker_that_ends_go_to_others(fault: Fault, tmp_path: Path) -> None:
    fleet = make(2, plan=FaultPlan({3: fault}, once=str(tmp_path / "happened")))
    fleet.open()
    try:
        answers, data = Answers(), random_data(100)
        for key, value in data.items():
            fleet.submit(answers.work(key, value))
        answers.wait(100)
        answers.check(data)
        assert sum(status.restarts for status in fleet.status()) >= 1
    finally:
        fleet.close()


@pytest.mark.parametrize("kind", ["poison", "hang"])
def test_a_poison_item_is_quarantined_and_costs_no_neighbor(kind: str) -> None:
    fleet = make(2, options=FleetOptions(arena_bytes=8 << 20, hang_s=0.7))
    fleet.open()
    try:
        answers, data = Answers(), random_data(60)
        for key, value in data.items():
            fleet.submit(answers.work(key, value, kind if key == 20 else ""))
        answers.wait(60)
        assert isinstance(answers.error(20), QuarantinedError)
        del data[20]
        answers.check(data)
        assert sum(status.restarts for status in fleet.status()) <= 3
        assert fleet.quarantined == 1
    finally:
        fleet.close()


def test_killed_workers_lose_nothing() -> None:
    fleet = make(3, service_s=(0.001, 0.0005))
    fleet.open()
    try:
        answers, data = Answers(), random_data(1500)
        draw = random.Random(3)
        for key, value in data.items():
            fleet.submit(answers.work(key, value))
            if key % 150 == 149:
                pids = [status.pid for status in fleet.status() if status.pid]
                if pids:
                    os.kill(draw.choice(pids), signal.SIGKILL)
                time.sleep(0.05)
        answers.wait(len(data))
        answers.check(data)
        assert sum(status.restarts for status in fleet.status()) >= 3
    finally:
        fleet.close()


def test_deadlines_are_kept_though_the_worker_is_busy() -> None:
    fleet = make(1, max_batch=1, service_s=(0.4, 0.0))
    fleet.open()
    try:
        answers = Answers()
        now = time.monotonic()
        for key in range(4):
            fleet.submit(answers.work(key, b"x"))
        fleet.submit(answers.work(9, b"late", deadline=now + 0.05, priority=Priority.INTERACTIVE))
        answers.wait(1)
        assert list(answers.got) == [9]
        assert isinstance(answers.error(9), DeadlineError)
        answers.wait(5)
        answers.check(dict.fromkeys(range(4), b"x"))
    finally:
        fleet.close()


def test_an_answered_work_holds_no_bytes(fleet: Fleet) -> None:
    answers = Answers()
    deadline = time.monotonic() + 3600  # it stays in the list of deadlines
    works = [answers.work(key, bytes(20_000), deadline=deadline) for key in range(3)]
    for work in works:
        fleet.submit(work)
    answers.wait(3)
    fleet.close(deadline_s=5.0)  # ends the thread, which lets go after the call
    assert all(not work.payload.buffers and work.ticket is None for work in works)


def test_works_can_be_taken_back() -> None:
    fleet = make(1, max_batch=1, service_s=(0.2, 0.0))
    fleet.open()
    try:
        answers = Answers()
        works = [answers.work(key, b"x") for key in range(6)]
        for work in works:
            fleet.submit(work)
        assert all(fleet.cancel(work) for work in works[1:5])
        answers.wait(6)
        assert all(isinstance(answers.error(key), CancelledError) for key in range(1, 5))
        answers.check({0: b"x", 5: b"x"})
        assert not fleet.cancel(works[0])
    finally:
        fleet.close()


def test_close_finishes_what_is_inside_and_refuses_more() -> None:
    fleet = make(2, service_s=(0.01, 0.0))
    fleet.open()
    answers, data = Answers(), random_data(200)
    for key, value in data.items():
        fleet.submit(answers.work(key, value))
    fleet.close(deadline_s=30.0)
    answers.check(data)
    with pytest.raises(ClosedError):
        fleet.submit(answers.work(999, b"x"))
    fleet.close()


def test_close_at_once_answers_everybody() -> None:
    fleet = make(1, service_s=(0.3, 0.0), max_batch=1)
    fleet.open()
    answers = Answers()
    for key in range(10):
        fleet.submit(answers.work(key, b"x"))
    fleet.close(deadline_s=0.0)
    assert len(answers.got) == 10
    assert any(isinstance(answers.error(key), ClosedError) for key in range(10))
    assert all(len(got) == 1 for got in answers.got.values())


class Refusing(Handler):
    def open(self) -> Mapping[str, Any]:
        raise SelfTestError("wrong answers")

    def close(self) -> None:
        raise AssertionError("was never open")


def test_a_worker_that_cannot_start_says_why() -> None:
    fleet = Fleet([WorkerSpec("cpu:0", "answer", HandlerSpec(Refusing))], {"answer": BatchPolicy(8, 0.0)})
    with pytest.raises(SelfTestError, match="wrong answers"):
        fleet.open()
    with pytest.raises(ClosedError):
        fleet.submit(Answers().work(0, b"x"))


def test_without_any_worker_left_the_waiting_are_told() -> None:
    options = FleetOptions(arena_bytes=1 << 20, max_failures=2)
    fleet = make(1, options=options, plan=FaultPlan(rates={Fault.EXIT: 1.0}))
    fleet.open()
    try:
        answers = Answers()
        for key in range(3):
            fleet.submit(answers.work(key, b"x"))
        answers.wait(3)
        assert all(isinstance(answers.error(key), WorkerLostError) for key in range(3))
        with pytest.raises(WorkerLostError):
            fleet.submit(answers.work(9, b"x"))
    finally:
        fleet.close()


def open_things() -> tuple[int, int]:
    return threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))


def test_reloading_loses_nothing_and_leaves_nothing_behind() -> None:
    before = open_things()
    fleet = make(2, service_s=(0.002, 0.0), name="old")
    fleet.open()
    answers, data = Answers(), random_data(3000)
    stop = threading.Event()

    def feed() -> None:
        for key, value in data.items():
            fleet.submit(answers.work(key, value))
            if key % 20 == 0:
                time.sleep(0.01)
        stop.set()

    feeder = threading.Thread(target=feed)
    feeder.start()
    settled = open_things()
    for number in range(3):
        fleet.reload(specs(2, service_s=(0.002, 0.0), name=f"new {number}"))
        assert fleet.facts("answer")["name"] == f"new {number}"
    feeder.join()
    answers.wait(len(data))
    answers.check(data)
    assert open_things()[1] <= settled[1]
    with pytest.raises(SelfTestError):
        fleet.reload([WorkerSpec("cpu:0", "answer", HandlerSpec(Refusing))])
    fleet.submit(answers.work(5000, b"still here"))
    answers.wait(len(data) + 1)
    fleet.close()
    assert open_things() == before


def test_errors_cross_as_they_are(fleet: Fleet) -> None:
    answers = Answers()
    fleet.submit(answers.work(0, b"", "bad"))
    answers.wait(1)
    error = answers.error(0)
    assert isinstance(error, FacefleetError)
    assert error.message == "bad on purpose"
