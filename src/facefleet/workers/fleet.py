"""A fleet of worker processes: works go in, each is answered once, whatever ends in between.

Owns the processes, the arena and one thread, which reads what workers say, restarts those that end, and calls back.
`Dispatcher` decides who does what; this shell moves bytes and keeps time. Works may be submitted from any thread.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import selectors
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from facefleet.batching import BatchPolicy
from facefleet.errors import (
    CancelledError,
    ClosedError,
    DeadlineError,
    FacefleetError,
    InternalError,
    QuarantinedError,
    WorkerLostError,
    WorkerStartError,
)
from facefleet.types import Outcome
from facefleet.workers.dispatch import Dispatcher
from facefleet.workers.handler import WorkerSpec
from facefleet.workers.shipping import Lent, Shipping
from facefleet.workers.work import Payload, Work
from facefleet.workers.worker import Worker, WorkerState, WorkerStatus

_log = logging.getLogger(__name__)
_READY_STATES = (WorkerState.READY, WorkerState.DRAINING)
_LOOK_S = 0.1  # how often it is looked for workers that hang or are silent
Answer = tuple[Work, Outcome[Payload]]


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """How a fleet watches over its workers.

    Attributes:
        arena_bytes: Shared memory for works and results; only what is used takes memory.
        start_s: A worker that is not ready by then is ended.
        silence_s: A worker that is not heard for so long is ended.
        hang_s: A work that is out for longer is taken for hung; its worker is ended.
        max_crashes: A work that was running at more than so many ends of workers is quarantined.
        max_failures: A worker that fails so often in a row is given up.
    """

    arena_bytes: int = 256 << 20
    start_s: float = 600.0
    silence_s: float = 15.0
    hang_s: float = 60.0
    max_crashes: int = 2
    max_failures: int = 6


class Fleet:
    """Worker processes behind one queue a stage.

    Args:
        specs: The workers.
        policies: Stage -> rules of its batches.
        upstream: As for `Dispatcher`.
        options: How it watches over them.
    """

    def __init__(
        self,
        specs: Sequence[WorkerSpec],
        policies: Mapping[str, BatchPolicy],
        *,
        upstream: Mapping[str, str] | None = None,
        options: FleetOptions | None = None,
    ) -> None:
        if len({spec.name for spec in specs}) != len(specs) or not specs:
            raise InternalError("a fleet needs workers of different names")
        self.options = options or FleetOptions()
        self.dispatcher = Dispatcher(policies, upstream=upstream, max_crashes=self.options.max_crashes)
        self._workers = {spec.name: Worker(spec) for spec in specs}
        self._leaving: list[Worker] = []
        self._changed = threading.Condition(threading.RLock())
        self._shipping: Shipping | None = None
        self._seated: dict[str, Worker] = {}
        self._selector: selectors.BaseSelector | None = None
        self._wake_read = self._wake_write = -1
        self._thread: threading.Thread | None = None
        self._closing = False
        self._sleeps_until = self._look_at = 0.0
        self.requeued = self.quarantined = 0

    def open(self) -> None:
        """Start the workers and wait until all are ready.

        Raises:
            FacefleetError: The first worker that cannot start says why; all are ended again.
        """
        self._shipping = Shipping(self.options.arena_bytes)
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._run, name="facefleet-fleet", daemon=True)
        try:
            with self._changed:
                for worker in self._workers.values():
                    self._start(worker)
            self._thread.start()
            self._wait_ready(list(self._workers.values()))
        except BaseException:
            self.close(deadline_s=0.0)
            raise

    def submit(self, work: Work) -> None:
        """Hand a work in; `work.done` will be called once.

        Raises:
            ClosedError: The fleet is closed.
            WorkerLostError: No worker is left for its stage.
        """
        with self._changed:
            if self._closing or self._shipping is None:
                raise ClosedError("the workers are stopped")
            if not self._alive(work.stage):
                raise self._lost(work.stage)
            self.dispatcher.submit(work, time.monotonic())
            self._dispatch()
            wake_at = self.dispatcher.wake_at()
            sooner = wake_at is not None and wake_at < self._sleeps_until
        if sooner:
            self._wake()

    def keep(self, work: Work, payload: Payload) -> Sequence[Lent] | None:
        """Hold the buffers of an answer in shared memory, to send them on without a copy; called in `Work.done`.

        Returns:
            One a buffer, to be put into other payloads and released; None where they are not in shared memory.
        """
        with self._changed:
            assert self._shipping is not None
            return self._shipping.keep(payload, work.slot)

    def release(self, lent: Lent) -> None:
        """Let go what `keep` held: once for each call of it, with any of what it returned."""
        with self._changed:
            if self._shipping is not None:
                self._shipping.arena.release(lent.slot)

    def cancel(self, work: Work) -> bool:
        """Take a work back; it is answered with a `CancelledError` unless it has its answer. False in that case."""
        with self._changed:
            if work.answered:
                return False
            self.dispatcher.cancel(work)
            work.answered = True
            self._dispatch()  # what waited for it to come need not wait any more
        work.done(Outcome(error=CancelledError("taken back")))
        return True

    def reload(self, specs: Sequence[WorkerSpec]) -> None:
        """Replace every worker by one of a new specification, losing nothing.

        The new one is ready before the old one is given no more, and the old one finishes what it has.

        Args:
            specs: As many as there are workers, of the same names.

        Raises:
            FacefleetError: A new worker cannot start: workers replaced before it are new, the others stay as they are.
        """
        for spec in specs:
            if spec.name not in self._workers:
                raise InternalError(f"no worker {spec.name!r}")
            successor = Worker(spec)
            with self._changed:
                if self._closing:
                    raise ClosedError("the workers are stopped")
                old = self._workers[spec.name]
                successor.generation = old.generation
                self._leaving.append(successor)  # watched, but not a member yet
                self._start(successor)
            self._wake()
            try:
                self._wait_ready([successor])
            except BaseException:
                with self._changed:
                    self._remove(successor)
                raise
            with self._changed:
                self._leaving.remove(successor)
                successor.restarts, successor.items, successor.busy_s = old.restarts, old.items, old.busy_s
                self._workers[spec.name] = successor
                self._seat(successor)
                self._leaving.append(old)
                self._drain(old)
            self._wake()
        with self._changed:
            self._changed.wait_for(lambda: not self._leaving)

    def close(self, *, deadline_s: float = 30.0) -> None:
        """Stop: no more works, those inside are finished until the deadline, then answered with a `ClosedError`."""
        with self._changed:
            if self._shipping is None:
                return
            first, self._closing = not self._closing, True
            stop_at = time.monotonic() + deadline_s
            if first:
                self._changed.wait_for(lambda: not self._pending() or self._hopeless(), timeout=deadline_s)
            workers = [*self._workers.values(), *self._leaving]
            for worker in workers:
                if worker.channel is not None and worker.state in _READY_STATES and not self._in_flight(worker):
                    self._send(worker, ("stop",))
            self._changed.wait_for(
                lambda: all(w.process is None or w.process.poll() is not None for w in workers),
                timeout=max(0.0, min(5.0, stop_at - time.monotonic())),
            )
            answers: list[Answer] = []
            for work in self._take_out_everything():
                error = ClosedError("the workers were stopped before this was finished")
                self._claim(answers, work, Outcome(error=error))
            thread, self._thread = self._thread, None
        self._answer(answers)
        self._wake()
        if thread is not None and thread is not threading.current_thread() and thread.ident is not None:
            thread.join()
        with self._changed:
            shipping, self._shipping = self._shipping, None
            if shipping is not None:
                shipping.arena.close()
                assert self._selector is not None
                self._selector.close()
                os.close(self._wake_read)
                os.close(self._wake_write)

    def status(self) -> list[WorkerStatus]:
        """What is known about every worker."""
        with self._changed:
            return [worker.status(self._in_flight(worker)) for worker in self._workers.values()]

    def facts(self, stage: str) -> Mapping[str, Any]:
        """What the first ready worker of a stage said when it became ready; empty where there is none."""
        with self._changed:
            for worker in self._workers.values():
                if worker.spec.stage == stage and worker.state is WorkerState.READY:
                    return dict(worker.facts)
        return {}

    def queues(self) -> dict[str, int]:
        """Works that wait, by stage."""
        with self._changed:
            return {stage: self.dispatcher.waiting(stage) for stage in self.dispatcher.batchers}

    # -- the fleet's thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._turn():
                continue
        except Exception as error:  # a bug: nobody may wait for ever because of it
            _log.exception("the fleet's thread failed")
            answers: list[Answer] = []
            with self._changed:
                self._closing = True
                failure = InternalError(f"the fleet's thread failed: {type(error).__name__}: {error}")
                for work in self._take_out_everything():
                    self._claim(answers, work, Outcome(error=failure))
                self._changed.notify_all()
            self._answer(answers)

    def _turn(self) -> bool:
        """Wait for something to happen and see to it; False once the fleet is closed."""
        assert self._selector is not None
        with self._changed:
            if self._thread is not threading.current_thread():
                return False
            timeout = self._timeout()
        events = self._selector.select(timeout)
        answers: list[Answer] = []
        with self._changed:
            if self._thread is not threading.current_thread():
                return False
            for key, _ in events:
                if key.data is None:
                    os.read(self._wake_read, 65536)
                else:
                    self._read(key.data, answers)
            self._watch(answers)
            self._dispatch()
            self._changed.notify_all()
        self._answer(answers)
        return True

    def _take_out_everything(self) -> list[Work]:
        """End all workers; returns every work without an answer."""
        left = [work for worker in self._members() for work in self._remove(worker)]
        return left + [work for stage in self.dispatcher.batchers for work in self.dispatcher.give_up(stage)]

    def _timeout(self) -> float:
        """Until something may be due; heartbeats and hung works are looked at a few times a second."""
        now = time.monotonic()
        times = [self._look_at, *(w.restart_at for w in self._workers.values() if w.restart_at is not None)]
        wake = self.dispatcher.wake_at()
        if wake is not None:
            times.append(wake)
        self._sleeps_until = min(times)
        return max(0.0, self._sleeps_until - now)

    def _read(self, worker: Worker, answers: list[Answer]) -> None:
        try:
            if worker.channel is not None:
                for message, frames in worker.channel.received():
                    self._heard(worker, message, iter(frames), answers)
                    if worker.channel is None:
                        return
        except (EOFError, OSError):
            self._ended(worker, answers)

    def _heard(self, worker: Worker, message: tuple[Any, ...], frames: Iterator[bytes], answers: list[Answer]) -> None:
        worker.heard = time.monotonic()
        kind = message[0]
        if kind == "done":
            self._results(worker, message[1], message[2], frames, answers)
        elif kind == "beat":
            worker.facts.update(message[1])
        elif kind == "state":
            state = WorkerState(message[1])
            if worker.state is not WorkerState.DRAINING:
                worker.state = state
            if state is WorkerState.READY:
                worker.facts.update(message[2])
                worker.ready_at = worker.heard
                if worker in self._workers.values():
                    self._seat(worker)
                _log.info("%s ready: %s, process %d", worker.spec.name, worker.spec.stage, worker.process.pid)  # type: ignore[union-attr]
        elif kind in ("failed", "lost"):
            worker.error = message[1]
            _log.error("%s: %s", worker.spec.name, message[1])
            self._ended(worker, answers)

    def _results(
        self,
        worker: Worker,
        batch: int,
        results: Sequence[tuple[Any, ...]],
        frames: Iterator[bytes],
        answers: list[Answer],
    ) -> None:
        assert self._shipping is not None
        worker.answered += len(results)
        for result in results:
            outcome, slot = self._shipping.result(worker, batch, result, frames)
            work = self.dispatcher.finished(worker.seat, batch, result[0])
            if work is None or work.answered:
                if slot is not None:
                    self._shipping.arena.release(slot)
                continue
            work.slot = slot
            self._claim(answers, work, outcome)
        if worker.state is WorkerState.DRAINING:
            self._drain(worker)

    def _watch(self, answers: list[Answer]) -> None:
        """Everything that happens because time has passed."""
        now = time.monotonic()
        for work in self.dispatcher.expire(now):
            self._claim(answers, work, Outcome(error=DeadlineError("the deadline passed before it was finished")))
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_S
        for seat, late in self.dispatcher.overdue(now, self.options.hang_s):
            worker = self._seated[seat.name]
            worker.error = InternalError(f"hung: a work was out for {now - late[0].sent_at:.0f} s")
            _log.error("%s: %s", worker.spec.name, worker.error)
            self._ended(worker, answers, innocent=[work for work in seat.works() if work not in late])
        for worker in self._members():
            if worker.restart_at is not None and worker.restart_at <= now:
                self._start_again(worker, answers)
            elif worker.process is None:
                continue
            elif worker.heard + self._patience(worker) <= now:
                worker.error = worker.error or InternalError(f"no sign of life for {self._patience(worker):.0f} s")
                _log.error("%s: %s", worker.spec.name, worker.error)
                self._ended(worker, answers)

    def _patience(self, worker: Worker) -> float:
        return self.options.silence_s if worker.state in _READY_STATES else self.options.start_s

    # -- lives of workers; with the lock held ------------------------------------------------------------------

    def _start(self, worker: Worker) -> None:
        assert self._shipping is not None
        assert self._selector is not None
        worker.start(self._shipping.arena)
        assert worker.channel is not None
        self._selector.register(worker.channel, selectors.EVENT_READ, worker)

    def _start_again(self, worker: Worker, answers: list[Answer]) -> None:
        try:
            self._start(worker)
        except (WorkerStartError, OSError) as error:
            worker.error = error
            self._ended(worker, answers)

    def _seat(self, worker: Worker) -> None:
        spec = worker.spec
        self.dispatcher.seat(worker.seat, spec.stage, instances=spec.instances, depth=spec.depth)
        self._seated[worker.seat] = worker

    def _drain(self, worker: Worker) -> None:
        """Give a worker no more; told to stop once it has nothing left."""
        worker.state = WorkerState.DRAINING
        seat = self.dispatcher.seats.get(worker.seat)
        if seat is not None:
            seat.open = False
        if seat is None or not seat.batches:
            self._send(worker, ("stop",))

    def _ended(self, worker: Worker, answers: list[Answer], *, innocent: Sequence[Work] = ()) -> None:
        """A worker's process is gone, or has to go."""
        assert self._shipping is not None
        now = time.monotonic()
        draining = worker.state is WorkerState.DRAINING
        self._unwatch(worker)
        worker.ended(now)
        given_up, held = self.dispatcher.lost(worker.seat, innocent=innocent)
        self._seated.pop(worker.seat, None)
        self._shipping.drop_all(worker)
        self.requeued += len(held) - len(given_up)
        self.quarantined += len(given_up)
        why = worker.why
        for work in given_up:
            error = QuarantinedError(f"{work.crashes} workers ended while it ran ({why})")
            self._claim(answers, work, Outcome(error=error))
        if worker in self._leaving:
            self._leaving.remove(worker)
            worker.state = WorkerState.STOPPED if draining else WorkerState.FAILED
        elif self._closing and not self._pending():
            worker.state = WorkerState.STOPPED
        elif worker.failures >= self.options.max_failures or (not worker.ready_at and self._is_final(worker.error)):
            worker.state = WorkerState.FAILED
            _log.error("%s is given up after %d failures: %s", worker.spec.name, worker.failures, why)
            self._tell_the_waiting(worker.spec.stage, answers)
        else:
            _log.warning("%s ended (%s); %d works go to others", worker.spec.name, why, len(held) - len(given_up))
            worker.wait_to_restart(now)
        self._changed.notify_all()

    def _is_final(self, error: Exception | None) -> bool:
        """Whether starting again cannot help: it refused with a reason of its own."""
        return isinstance(error, (FacefleetError, InternalError)) and not error.retryable

    def _remove(self, worker: Worker) -> list[Work]:
        """End a worker for good; returns the works it held that have no answer."""
        self._unwatch(worker)
        worker.ended(time.monotonic())
        worker.state = WorkerState.STOPPED
        worker.restart_at = None
        assert self._shipping is not None
        self._seated.pop(worker.seat, None)
        self._shipping.drop_all(worker)
        if worker in self._leaving:
            self._leaving.remove(worker)
        seat = self.dispatcher.seats.get(worker.seat)
        held = seat.works() if seat is not None else []
        self.dispatcher.lost(worker.seat, innocent=held)
        return [work for work in held if not work.answered and self.dispatcher.cancel(work)]

    def _unwatch(self, worker: Worker) -> None:
        if worker.channel is not None:
            assert self._selector is not None
            self._selector.unregister(worker.channel)

    def _tell_the_waiting(self, stage: str, answers: list[Answer]) -> None:
        """Nobody is left for a stage: what waits for it is answered."""
        if self._alive(stage):
            return
        for work in self.dispatcher.give_up(stage):
            self._claim(answers, work, Outcome(error=self._lost(stage)))

    def _lost(self, stage: str) -> WorkerLostError:
        last = next((w.error for w in self._workers.values() if w.spec.stage == stage and w.error), None)
        return WorkerLostError(f"no worker is left for {stage}: {last}")

    def _alive(self, stage: str) -> bool:
        return any(w.spec.stage == stage and w.state is not WorkerState.FAILED for w in self._workers.values())

    def _members(self) -> list[Worker]:
        return [*self._workers.values(), *self._leaving]

    def _in_flight(self, worker: Worker) -> int:
        seat = self.dispatcher.seats.get(worker.seat)
        return 0 if seat is None else sum(map(len, seat.batches.values()))

    def _pending(self) -> int:
        return sum(self.dispatcher.waiting(s) + self.dispatcher.running(s) for s in self.dispatcher.batchers)

    def _hopeless(self) -> bool:
        return all(worker.state is WorkerState.FAILED for worker in self._workers.values())

    def _wait_ready(self, workers: Sequence[Worker]) -> None:
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._closing
                    or any(w.state is WorkerState.FAILED for w in workers)
                    or all(w.state is WorkerState.READY for w in workers)
                )
            )
            for worker in workers:
                if worker.state is WorkerState.FAILED:
                    error = worker.error
                    if isinstance(error, (FacefleetError, InternalError)):
                        raise error
                    raise WorkerStartError(f"{worker.spec.name} did not become ready: {error}")
            if self._closing:
                raise ClosedError("the workers were stopped while they started")

    def _send(self, worker: Worker, message: tuple[Any, ...]) -> None:
        if worker.channel is not None:
            with contextlib.suppress(OSError):  # gone: the fleet's thread finds that out
                worker.channel.send(message)

    def _dispatch(self) -> None:
        """Send what may go; with the lock held."""
        assert self._shipping is not None
        for batch in self.dispatcher.dispatch(time.monotonic()):
            worker = self._seated[batch.worker]
            if not self._shipping.send(worker, batch):
                worker.heard = -math.inf  # the fleet's thread ends it, and moves what it had
                self._wake()

    def _claim(self, answers: list[Answer], work: Work, outcome: Outcome[Payload]) -> None:
        """Decide the one answer of a work; it is given once the lock is released."""
        if not work.answered:
            work.answered = True
            answers.append((work, outcome))

    def _answer(self, answers: Sequence[Answer]) -> None:
        """Call back, without the lock; then the buffers are free again."""
        if not answers:
            return
        for work, outcome in answers:
            try:
                work.done(outcome)
            except Exception:
                _log.exception("a callback failed; its work counts as answered")
        with self._changed:
            for work, _ in answers:
                if work.slot is not None:
                    assert self._shipping is not None
                    self._shipping.arena.release(work.slot)
                    work.slot = None

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"\0")
