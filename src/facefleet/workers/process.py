"""The inside of a worker process.

Owns the process' threads: the main thread reads messages, `instances` threads run batches, one sends heartbeats. The
process ends when its parent does, when it is told to, and when its device is lost.
"""

from __future__ import annotations

import itertools
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from facefleet.batching import LinearTime, SizeLimit, run_batch
from facefleet.errors import BadOutputError, DeviceLostError, FacefleetError, InternalError
from facefleet.telemetry import configure_logging
from facefleet.telemetry.devices import resident_bytes
from facefleet.telemetry.record import STAGES, snapshot
from facefleet.types import Outcome
from facefleet.workers.arena import Mapping as ArenaMapping
from facefleet.workers.channel import Channel, Span, needed_bytes, read_buffers, write_buffers
from facefleet.workers.handler import BatchHandler, Handler, StreamHandler, WorkerSpec
from facefleet.workers.work import Payload

_log = logging.getLogger(__name__)
Answers: TypeAlias = "dict[int, Outcome[Payload]]"
BEAT_S = 0.5
LOST = 70
"""Exit status of a worker whose device is lost (EX_SOFTWARE)."""


@dataclass(slots=True)
class _Task:
    """A work as it arrived: its number, what to do, and where its result goes."""

    number: int
    payload: Payload
    result: Span | None


class _Worker:
    def __init__(self, channel: Channel, spec: WorkerSpec, arena: ArenaMapping) -> None:
        self._channel = channel
        self._spec = spec
        self._arena = arena
        self._batches: queue.SimpleQueue[tuple[int, list[_Task]] | None] = queue.SimpleQueue()
        self._limit = SizeLimit(2**31)
        self._items = 0
        self._times = LinearTime()
        self._counting = threading.Lock()
        self._open: dict[int, tuple[int, _Task]] = {}
        self._handler: Handler | None = None
        self._stopping = threading.Event()

    def run(self) -> None:
        """Until told to stop; the parent's end is ours too."""
        self._channel.send(("state", "starting", os.getpid()))
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
        try:
            handler = self._spec.handler.create()
            self._channel.send(("state", "warming", None))
            facts = dict(handler.open())
        except Exception as error:
            self._channel.send(("failed", _portable(error)))
            return
        self._handler = handler
        threads = []
        if isinstance(handler, BatchHandler):
            threads = [
                threading.Thread(target=self._serve, args=(handler,), name=f"instance-{i}", daemon=True)
                for i in range(self._spec.instances)
            ]
        for thread in threads:
            thread.start()
        self._channel.send(("state", "ready", facts))
        self._listen()
        self._stopping.set()
        for _ in threads:
            self._batches.put(None)
        for thread in threads:
            thread.join()
        handler.close()
        self._report()
        self._channel.send(("bye",))

    def _listen(self) -> None:
        while True:
            message, frames = self._channel.receive()
            if message[0] == "stop":
                return
            unused = iter(frames)
            for number, works, room in message[1]:
                self._take(number, [self._task(work, position, room, unused) for position, work in enumerate(works)])

    def _take(self, number: int, batch: list[_Task]) -> None:
        handler = self._handler
        if isinstance(handler, StreamHandler):
            for task in batch:
                self._open[task.number] = (number, task)
                handler.start(task.number, task.payload, self._replied)
        else:
            self._batches.put((number, batch))

    def _task(self, work: tuple[int, Any, Any], position: int, room: Span | None, frames: Iterator[bytes]) -> _Task:
        number, meta, where = work
        result = None if room is None else (room[0] + position * room[1], room[1])
        if isinstance(where, int):
            return _Task(number, Payload(meta, tuple(itertools.islice(frames, where))), result)
        return _Task(number, Payload(meta, read_buffers(self._arena.view, where)), result)

    def _serve(self, handler: BatchHandler) -> None:
        while (entry := self._batches.get()) is not None:
            number, batch = entry
            outcomes: Answers = {}

            def attempt(part: Sequence[_Task], into: Answers = outcomes) -> None:
                found = handler.run([task.payload for task in part])
                if len(found) != len(part):
                    raise BadOutputError(f"{len(found)} answers to a batch of {len(part)}")
                into.update((task.number, outcome) for task, outcome in zip(part, found, strict=True))

            def fail(task: _Task, error: Exception, into: Answers = outcomes) -> None:
                into[task.number] = Outcome(error=_portable(error))

            started = time.perf_counter()
            try:
                run_batch(attempt, batch, self._limit, fail)
            except DeviceLostError as error:
                self._end(error)
            seconds = time.perf_counter() - started
            size = sum(handler.size(task.payload) for task in batch)
            STAGES[self._spec.stage].batch(int(size), int(size), seconds)
            with self._counting:
                self._times.add(size, seconds)
                self._items += len(batch)
            self._send(number, [(task, outcomes[task.number]) for task in batch])

    def _replied(self, work: int, outcome: Outcome[Payload]) -> None:
        if isinstance(outcome.error, DeviceLostError):
            self._end(outcome.error)
        number, task = self._open.pop(work)
        self._items += 1
        self._send(number, [(task, outcome)])

    def _send(self, batch: int, answers: Sequence[tuple[_Task, Outcome[Payload]]]) -> None:
        """Answer works of a batch, results in the arena where they fit."""
        message: list[tuple[int, bool | None, Any, Any]] = []
        frames: list[Any] = []
        for task, outcome in answers:
            if outcome.error is not None:
                message.append((task.number, False, outcome.error, ()))
                continue
            payload = outcome.unwrap()
            if task.result is not None and needed_bytes(payload) <= task.result[1]:
                spans = write_buffers(self._arena.view, task.result[0], payload)
                message.append((task.number, True, payload.meta, spans))
            else:
                frames += payload.buffers
                message.append((task.number, None, payload.meta, len(payload.buffers)))
        self._channel.send(("done", batch, message), frames)

    def _beat(self) -> None:
        while not self._stopping.wait(BEAT_S):
            try:
                self._report()
            except OSError:
                return

    def _report(self) -> None:
        """Send a heartbeat: what was done, and the metrics."""
        facts: Mapping[str, Any] = {} if self._handler is None else self._handler.facts()
        limit = None if self._limit.size == 2**31 else self._limit.size
        with self._counting:
            own = {"items": self._items, "busy_s": self._times.seconds, "times": self._times.sums()}
        own |= {"rss_bytes": resident_bytes(os.getpid()), "batch_limit": limit, "metrics": snapshot()}
        self._channel.send(("beat", {**own, **facts}))

    def _end(self, error: DeviceLostError) -> None:
        """Say why, and end now: what this process could still do with its device is not to be trusted."""
        self._channel.send(("lost", _portable(error)))
        os._exit(LOST)


def _portable(error: Exception) -> FacefleetError | InternalError:
    """An error that can cross to the parent."""
    if isinstance(error, (FacefleetError, InternalError)):
        return error
    _log.error("unexpected error in a worker", exc_info=error)
    return InternalError(f"{type(error).__name__}: {error}")


def _mark(record: logging.LogRecord, worker: str) -> bool:
    """Which worker a record is from."""
    record.worker = worker
    return True


def main(fd: int) -> int:
    """Run a worker on the channel with descriptor `fd`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    channel = Channel(fd)
    try:
        (_, path, arena_fd, arena_size, verbose, log_format), _ = channel.receive()
        sys.path[:] = path
        (_, spec), _ = channel.receive()
        assert isinstance(spec, WorkerSpec)
        configure_logging(verbose=verbose, format=log_format)
        logging.getLogger("facefleet").handlers[0].addFilter(lambda record: _mark(record, spec.name))
        if spec.cores and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, spec.cores)
        if spec.niceness and hasattr(os, "nice"):
            os.nice(spec.niceness)
        _Worker(channel, spec, ArenaMapping(arena_fd, arena_size)).run()
    except (EOFError, OSError):
        os._exit(0)  # the parent is gone: nobody waits for anything
    return 0
