"""The lives of the workers of a fleet: started, heard, watched, ended, started again, given up.

Owns the workers, their shared memory and what becomes of their works; `Dispatcher` decides who does what. Has no lock
and no thread: everything is called with the fleet's lock held.
"""

from __future__ import annotations

import contextlib
import logging
import math
import selectors
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from facefleet.errors import (
    DeadlineError,
    FacefleetError,
    InternalError,
    QuarantinedError,
    WorkerLostError,
    WorkerStartError,
)
from facefleet.telemetry.record import BATCHERS, STAGES, WORKERS, fold, retire
from facefleet.types import Outcome
from facefleet.workers.dispatch import Dispatcher
from facefleet.workers.handler import WorkerSpec
from facefleet.workers.shipping import Shipping
from facefleet.workers.work import Batch, Payload, Work
from facefleet.workers.worker import Worker, WorkerState

_log = logging.getLogger(__name__)
READY_STATES = (WorkerState.READY, WorkerState.DRAINING)
LOOK_S = 0.1
"""How often it is looked for workers that hang or are silent."""
Answer: TypeAlias = "tuple[Work, Outcome[Payload]]"


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


class Supervisor:
    """Workers and their works.

    Args:
        specs: The workers.
        dispatcher: Decides who does what.
        options: How they are watched.
    """

    def __init__(self, specs: Sequence[WorkerSpec], dispatcher: Dispatcher, options: FleetOptions) -> None:
        self.options = options
        self.dispatcher = dispatcher
        self.workers = {spec.name: Worker(spec) for spec in specs}
        self.leaving: list[Worker] = []
        self.seated: dict[str, Worker] = {}
        self.closing = False
        self.look_at = 0.0
        self.requeued = self.quarantined = 0
        self.shipping: Shipping | None = None
        self.selector: selectors.BaseSelector | None = None

    def open(self) -> None:
        """Make the arena and start every worker."""
        self.shipping = Shipping(self.options.arena_bytes)
        self.selector = selectors.DefaultSelector()
        for worker in self.workers.values():
            self.start(worker)

    def close(self) -> None:
        """Give the arena back; no worker is left."""
        BATCHERS["fleet"].stopped()
        for name in self.workers:
            WORKERS[name].gone()
        if self.shipping is not None:
            self.shipping.arena.close()
        if self.selector is not None:
            self.selector.close()
        self.shipping = self.selector = None

    def take_out_everything(self) -> list[Work]:
        """End all workers; returns every work without an answer."""
        left = [work for worker in self.members() for work in self.remove(worker)]
        return left + [work for stage in self.dispatcher.batchers for work in self.dispatcher.give_up(stage)]

    def read(self, worker: Worker, answers: list[Answer]) -> None:
        """Hear what a worker has said."""
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
            metrics = message[1].pop("metrics", None)
            if metrics is not None:
                fold(worker.spec.name, worker.generation, metrics)
            worker.facts.update(message[1])
        elif kind == "state":
            state = WorkerState(message[1])
            if worker.state is not WorkerState.DRAINING:
                worker.state = state
            if state is WorkerState.READY:
                worker.facts.update(message[2])
                worker.ready_at = worker.heard
                if worker in self.workers.values():
                    self.seat(worker)
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
        assert self.shipping is not None
        worker.answered += len(results)
        for result in results:
            outcome, slot = self.shipping.result(worker, batch, result, frames)
            work = self.dispatcher.finished(worker.seat, batch, result[0])
            if work is None or work.answered:
                if slot is not None:
                    self.shipping.arena.release(slot)
                continue
            work.slot = slot
            self.claim(answers, work, outcome)
        if worker.state is WorkerState.DRAINING:
            self.drain(worker)

    def watch(self, answers: list[Answer]) -> None:
        """Everything that happens because time has passed."""
        now = time.monotonic()
        for work in self.dispatcher.expire(now):
            self.claim(answers, work, Outcome(error=DeadlineError("the deadline passed before it was finished")))
        if now < self.look_at:
            return
        self.look_at = now + LOOK_S
        self._show(now)
        for seat, late in self.dispatcher.overdue(now, self.options.hang_s):
            worker = self.seated[seat.name]
            worker.error = InternalError(f"hung: a work was out for {now - late[0].sent_at:.0f} s")
            _log.error("%s: %s", worker.spec.name, worker.error)
            self._ended(worker, answers, innocent=[work for work in seat.works() if work not in late])
        for worker in self.members():
            if worker.restart_at is not None and worker.restart_at <= now:
                self._start_again(worker, answers)
            elif worker.process is None:
                continue
            elif worker.heard + self._patience(worker) <= now:
                worker.error = worker.error or InternalError(f"no sign of life for {self._patience(worker):.0f} s")
                _log.error("%s: %s", worker.spec.name, worker.error)
                self._ended(worker, answers)

    def _show(self, now: float) -> None:
        """What is known, in the metrics."""
        BATCHERS["fleet"].tick()
        for worker in self.workers.values():
            WORKERS[worker.spec.name].state(worker.spec.stage, worker.state.value)
        for stage, batcher in self.dispatcher.batchers.items():
            STAGES[stage].queue(self.dispatcher.waiting(stage), batcher.age(now))
            STAGES[stage].limit(batcher.policy.max_batch)

    def _patience(self, worker: Worker) -> float:
        return self.options.silence_s if worker.state in READY_STATES else self.options.start_s

    def start(self, worker: Worker) -> None:
        """Start a process for a worker, and listen to it."""
        assert self.shipping is not None
        assert self.selector is not None
        worker.start(self.shipping.arena)
        assert worker.channel is not None
        self.selector.register(worker.channel, selectors.EVENT_READ, worker)

    def _start_again(self, worker: Worker, answers: list[Answer]) -> None:
        try:
            self.start(worker)
        except (WorkerStartError, OSError) as error:
            worker.error = error
            self._ended(worker, answers)

    def seat(self, worker: Worker) -> None:
        """Give it works from now on."""
        spec = worker.spec
        self.dispatcher.seat(worker.seat, spec.stage, instances=spec.instances, depth=spec.depth)
        self.seated[worker.seat] = worker

    def drain(self, worker: Worker) -> None:
        """Give a worker no more; told to stop once it has nothing left."""
        worker.state = WorkerState.DRAINING
        seat = self.dispatcher.seats.get(worker.seat)
        if seat is not None:
            seat.open = False
        if seat is None or not seat.batches:
            self.send(worker, ("stop",))

    def _ended(self, worker: Worker, answers: list[Answer], *, innocent: Sequence[Work] = ()) -> None:
        """A worker's process is gone, or has to go."""
        assert self.shipping is not None
        now = time.monotonic()
        draining = worker.state is WorkerState.DRAINING
        self._unwatch(worker)
        worker.ended(now)
        given_up, held = self.dispatcher.lost(worker.seat, innocent=innocent)
        self.seated.pop(worker.seat, None)
        self.shipping.drop_all(worker)
        self.requeued += len(held) - len(given_up)
        self.quarantined += len(given_up)
        retire(worker.spec.name, worker.generation)
        STAGES[worker.spec.stage].requeued(len(held) - len(given_up))
        STAGES[worker.spec.stage].quarantined(len(given_up))
        why = worker.why
        for work in given_up:
            error = QuarantinedError(f"{work.crashes} workers ended while it ran ({why})")
            self.claim(answers, work, Outcome(error=error))
        if worker in self.leaving:
            self.leaving.remove(worker)
            worker.state = WorkerState.STOPPED if draining else WorkerState.FAILED
        elif self.closing and not self.pending():
            worker.state = WorkerState.STOPPED
        elif worker.failures >= self.options.max_failures or (not worker.ready_at and self._is_final(worker.error)):
            worker.state = WorkerState.FAILED
            _log.error("%s is given up after %d failures: %s", worker.spec.name, worker.failures, why)
            self._tell_the_waiting(worker.spec.stage, answers)
        else:
            _log.warning("%s ended (%s); %d works go to others", worker.spec.name, why, len(held) - len(given_up))
            worker.wait_to_restart(now)
            WORKERS[worker.spec.name].restarted()

    def _is_final(self, error: Exception | None) -> bool:
        """Whether starting again cannot help: it refused with a reason of its own."""
        return isinstance(error, (FacefleetError, InternalError)) and not error.retryable

    def remove(self, worker: Worker) -> list[Work]:
        """End a worker for good; returns the works it held that have no answer."""
        self._unwatch(worker)
        worker.ended(time.monotonic())
        worker.state = WorkerState.STOPPED
        worker.restart_at = None
        assert self.shipping is not None
        self.seated.pop(worker.seat, None)
        self.shipping.drop_all(worker)
        if worker in self.leaving:
            self.leaving.remove(worker)
        seat = self.dispatcher.seats.get(worker.seat)
        held = seat.works() if seat is not None else []
        self.dispatcher.lost(worker.seat, innocent=held)
        return [work for work in held if not work.answered and self.dispatcher.cancel(work)]

    def _unwatch(self, worker: Worker) -> None:
        if worker.channel is not None:
            assert self.selector is not None
            self.selector.unregister(worker.channel)

    def _tell_the_waiting(self, stage: str, answers: list[Answer]) -> None:
        """Nobody is left for a stage: what waits for it is answered."""
        if self.alive(stage):
            return
        for work in self.dispatcher.give_up(stage):
            self.claim(answers, work, Outcome(error=self.lost(stage)))

    def lost(self, stage: str) -> WorkerLostError:
        """The error of works that nobody is left for."""
        last = next((w.error for w in self.workers.values() if w.spec.stage == stage and w.error), None)
        return WorkerLostError(f"no worker is left for {stage}: {last}")

    def alive(self, stage: str) -> bool:
        """Whether anybody may yet do the works of a stage; needs no lock."""
        for worker in self.workers.values():
            if worker.spec.stage == stage and worker.state is not WorkerState.FAILED:
                return True
        return False

    def members(self) -> list[Worker]:
        """All workers, those that come and go included."""
        return [*self.workers.values(), *self.leaving]

    def in_flight(self, worker: Worker) -> int:
        """Works that a worker has."""
        seat = self.dispatcher.seats.get(worker.seat)
        return 0 if seat is None else sum(map(len, seat.batches.values()))

    def pending(self) -> int:
        """Works without an answer."""
        return sum(self.dispatcher.waiting(s) + self.dispatcher.running(s) for s in self.dispatcher.batchers)

    def hopeless(self) -> bool:
        """Whether every worker is given up."""
        return all(worker.state is WorkerState.FAILED for worker in self.workers.values())

    def send(self, worker: Worker, message: tuple[Any, ...]) -> None:
        """Send a message; who is gone is found by `read`."""
        if worker.channel is not None:
            with contextlib.suppress(OSError):  # gone: the fleet's thread finds that out
                worker.channel.send(message)

    def dispatch(self) -> None:
        """Send what may go; with the lock held."""
        assert self.shipping is not None
        now = time.monotonic()
        sent: dict[str, list[Batch]] = {}
        for batch in self.dispatcher.dispatch(now):
            sent.setdefault(batch.worker, []).append(batch)
            for work in batch.works:
                if work.ticket is not None:
                    STAGES[work.stage].waited(now - work.ticket.arrived)
        for seat, batches in sent.items():
            worker = self.seated[seat]
            if not self.shipping.send(worker, batches):
                worker.heard = -math.inf  # `watch` ends it, and moves what it had

    def claim(self, answers: list[Answer], work: Work, outcome: Outcome[Payload]) -> None:
        """Decide the one answer of a work; it is given once the lock is released."""
        if not work.answered:
            work.answered = True
            answers.append((work, outcome))
