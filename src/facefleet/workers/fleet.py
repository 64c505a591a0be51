"""A fleet of worker processes: works go in, each is answered once, whatever ends in between.

Owns the lock and the one thread, which waits for what workers say and for time to pass, and calls back. `Supervisor`
sees to the workers, `Dispatcher` decides who does what. Works may be submitted from any thread.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from facefleet.batching import BatchPolicy
from facefleet.errors import (
    CancelledError,
    ClosedError,
    FacefleetError,
    InternalError,
    WorkerStartError,
)
from facefleet.types import Outcome
from facefleet.workers.dispatch import Dispatcher
from facefleet.workers.handler import WorkerSpec
from facefleet.workers.shipping import Lent
from facefleet.workers.supervisor import READY_STATES, Answer, FleetOptions, Supervisor
from facefleet.workers.work import Payload, Work
from facefleet.workers.worker import Worker, WorkerState, WorkerStatus

_log = logging.getLogger(__name__)


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
        self._supervisor = Supervisor(specs, self.dispatcher, self.options)
        self._changed = threading.Condition(threading.RLock())
        self._wake_read = self._wake_write = -1
        self._thread: threading.Thread | None = None
        self._sleeps_until = 0.0
        self._inbox: deque[Work] = deque()
        self._collecting = False

    def open(self) -> None:
        """Start the workers and wait until all are ready.

        Raises:
            FacefleetError: The first worker that cannot start says why; all are ended again.
        """
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._thread = threading.Thread(target=self._run, name="facefleet-fleet", daemon=True)
        try:
            with self._changed:
                self._supervisor.open()
                assert self._supervisor.selector is not None
                self._supervisor.selector.register(self._wake_read, selectors.EVENT_READ, None)
            self._thread.start()
            self._wait_ready(list(self._supervisor.workers.values()))
        except BaseException:
            self.close(deadline_s=0.0)
            raise

    def submit(self, work: Work) -> None:
        """Hand a work in; `work.done` will be called once.

        Raises:
            ClosedError: The fleet is closed.
            WorkerLostError: No worker is left for its stage.
        """
        self._check(work.stage)
        self._inbox.append(work)
        if self._collecting:
            return  # taken in by the fleet's thread before it lets go of the lock: no need to wait for that
        answers: list[Answer] = []
        with self._changed:
            self._take_in(answers)
            self._supervisor.dispatch()
            wake_at = self.dispatcher.wake_at()
            sooner = wake_at is not None and wake_at < self._sleeps_until
        self._answer(answers)
        if sooner:
            self._wake()

    def _check(self, stage: str) -> None:
        """Refuse works that nobody would do; needs no lock."""
        if self._supervisor.closing or self._supervisor.shipping is None:
            raise ClosedError("the workers are stopped")
        if not self._supervisor.alive(stage):
            raise self._supervisor.lost(stage)

    def _take_in(self, answers: list[Answer]) -> None:
        """Queue what was handed in; with the lock held."""
        while self._inbox:
            work = self._inbox.popleft()
            try:
                self._check(work.stage)
            except FacefleetError as error:  # closed since
                self._supervisor.claim(answers, work, Outcome(error=error))
                continue
            if not work.answered:  # taken back meanwhile
                self.dispatcher.submit(work, time.monotonic())

    def keep(self, work: Work, payload: Payload) -> Sequence[Lent] | None:
        """Hold the buffers of an answer in shared memory, to send them on without a copy; called in `Work.done`.

        Returns:
            One a buffer, to be put into other payloads and released; None where they are not in shared memory.
        """
        with self._changed:
            assert self._supervisor.shipping is not None
            return self._supervisor.shipping.keep(payload, work.slot)

    def release(self, lent: Lent) -> None:
        """Let go what `keep` held: once for each call of it, with any of what it returned."""
        with self._changed:
            if self._supervisor.shipping is not None:
                self._supervisor.shipping.arena.release(lent.slot)

    def cancel(self, work: Work) -> bool:
        """Take a work back; it is answered with a `CancelledError` unless it has its answer. False in that case."""
        with self._changed:
            if work.answered:
                return False
            self.dispatcher.cancel(work)
            work.answered = True
            self._supervisor.dispatch()  # what waited for it to come need not wait any more
        work.done(Outcome(error=CancelledError("taken back")))
        work.let_go()
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
            if spec.name not in self._supervisor.workers:
                raise InternalError(f"no worker {spec.name!r}")
            successor = Worker(spec)
            with self._changed:
                if self._supervisor.closing:
                    raise ClosedError("the workers are stopped")
                old = self._supervisor.workers[spec.name]
                successor.generation = old.generation
                self._supervisor.leaving.append(successor)  # watched, but not a member yet
                self._supervisor.start(successor)
            self._wake()
            try:
                self._wait_ready([successor])
            except BaseException:
                with self._changed:
                    self._supervisor.remove(successor)
                raise
            with self._changed:
                self._supervisor.leaving.remove(successor)
                successor.restarts, successor.items, successor.busy_s = old.restarts, old.items, old.busy_s
                self._supervisor.workers[spec.name] = successor
                self._supervisor.seat(successor)
                self._supervisor.leaving.append(old)
                self._supervisor.drain(old)
            self._wake()
        with self._changed:
            self._changed.wait_for(lambda: not self._supervisor.leaving)

    def close(self, *, deadline_s: float = 30.0) -> None:
        """Stop: no more works, those inside are finished until the deadline, then answered with a `ClosedError`."""
        with self._changed:
            if self._supervisor.shipping is None:
                return
            first, self._supervisor.closing = not self._supervisor.closing, True
            stop_at = time.monotonic() + deadline_s
            if first:
                self._changed.wait_for(
                    lambda: not self._supervisor.pending() or self._supervisor.hopeless(), timeout=deadline_s
                )
            workers = [*self._supervisor.workers.values(), *self._supervisor.leaving]
            for worker in workers:
                if (
                    worker.channel is not None
                    and worker.state in READY_STATES
                    and not self._supervisor.in_flight(worker)
                ):
                    self._supervisor.send(worker, ("stop",))
            self._changed.wait_for(
                lambda: all(w.process is None or w.process.poll() is not None for w in workers),
                timeout=max(0.0, min(5.0, stop_at - time.monotonic())),
            )
            answers: list[Answer] = []
            for work in self._supervisor.take_out_everything():
                error = ClosedError("the workers were stopped before this was finished")
                self._supervisor.claim(answers, work, Outcome(error=error))
            self._take_in(answers)
            thread, self._thread = self._thread, None
        self._answer(answers)
        self._wake()
        if thread is not None and thread is not threading.current_thread() and thread.ident is not None:
            thread.join()
        with self._changed:
            if self._supervisor.shipping is not None:
                self._supervisor.close()
                os.close(self._wake_read)
                os.close(self._wake_write)

    @property
    def requeued(self) -> int:
        """Works that went to another worker because theirs ended."""
        return self._supervisor.requeued

    @property
    def quarantined(self) -> int:
        """Works that were given up because too many workers ended while they ran."""
        return self._supervisor.quarantined

    def status(self) -> list[WorkerStatus]:
        """What is known about every worker."""
        with self._changed:
            return [worker.status(self._supervisor.in_flight(worker)) for worker in self._supervisor.workers.values()]

    def facts(self, stage: str) -> Mapping[str, Any]:
        """What the first ready worker of a stage said when it became ready; empty where there is none."""
        with self._changed:
            for worker in self._supervisor.workers.values():
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
                self._supervisor.closing = True
                failure = InternalError(f"the fleet's thread failed: {type(error).__name__}: {error}")
                for work in self._supervisor.take_out_everything():
                    self._supervisor.claim(answers, work, Outcome(error=failure))
                self._take_in(answers)
                self._changed.notify_all()
            self._answer(answers)

    def _turn(self) -> bool:
        """Wait for something to happen and see to it; False once the fleet is closed."""
        if self._thread is not threading.current_thread():
            return False
        assert self._supervisor.selector is not None
        events = self._supervisor.selector.select(max(0.0, self._sleeps_until - time.monotonic()))
        answers: list[Answer] = []
        with self._changed:
            if self._thread is not threading.current_thread():
                return False
            self._collecting = True
            try:
                self._see_to(events, answers)
            finally:
                self._collecting = False
            if self._inbox:
                self._take_in(answers)
                self._supervisor.dispatch()
            self._sleeps_until = self._next_look()
            self._changed.notify_all()
        self._answer(answers)
        return True

    def _see_to(self, events: Sequence[tuple[selectors.SelectorKey, int]], answers: list[Answer]) -> None:
        """What workers said, what time brings, and what was handed in meanwhile."""
        for key, _ in events:
            if key.data is None:
                os.read(self._wake_read, 65536)
            else:
                self._supervisor.read(key.data, answers)
        self._supervisor.watch(answers)
        self._take_in(answers)
        self._supervisor.dispatch()

    def _next_look(self) -> float:
        """When something may be due; heartbeats and hung works are looked at a few times a second."""
        times = [
            self._supervisor.look_at,
            *(w.restart_at for w in self._supervisor.workers.values() if w.restart_at is not None),
        ]
        wake = self.dispatcher.wake_at()
        if wake is not None:
            times.append(wake)
        return min(times)

    # -- lives of workers; with the lock held ------------------------------------------------------------------

    def _wait_ready(self, workers: Sequence[Worker]) -> None:
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._supervisor.closing
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
            if self._supervisor.closing:
                raise ClosedError("the workers were stopped while they started")

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
                    assert self._supervisor.shipping is not None
                    self._supervisor.shipping.arena.release(work.slot)
                    work.slot = None
                work.let_go()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"\0")
