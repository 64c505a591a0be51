"""The parent's side of one worker process: its life, its channel and what is known about it.

Owns starting and ending the process. Called with the fleet's lock held, in the fleet's thread.
"""

from __future__ import annotations

import enum
import logging
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from facefleet.errors import WorkerStartError
from facefleet.telemetry.logs import log_settings
from facefleet.workers.arena import Arena, Slot
from facefleet.workers.channel import Channel, pair
from facefleet.workers.handler import WorkerSpec

_log = logging.getLogger(__name__)
_FIRST_BACKOFF_S, _MOST_BACKOFF_S = 0.1, 10.0
_CALM_S = 10.0  # a worker that was ready for so long is not counted as failing any more


class WorkerState(enum.Enum):
    """Where a worker is in its life."""

    STARTING = "starting"
    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """What is known about a worker.

    Attributes:
        name: Its name.
        stage: What it does.
        state: Where it is in its life.
        pid: Of its process; 0: none.
        restarts: Times it was started again.
        in_flight: Works it has.
        items: Works it has done, all its processes together.
        busy_s: Seconds its instances worked.
        facts: What it said when it became ready, and with its last heartbeat.
        error: Why it ended last.
    """

    name: str
    stage: str
    state: WorkerState
    pid: int
    restarts: int
    in_flight: int
    items: int
    busy_s: float
    facts: Mapping[str, Any]
    error: str


@dataclass(slots=True, eq=False)
class Shipment:
    """The shared memory of a batch that a worker has.

    Attributes:
        inputs: What holds its inputs.
        result: Room for its results.
        left: Works not answered yet.
    """

    inputs: list[Slot]
    result: Slot | None
    left: int


@dataclass(slots=True, eq=False)
class Worker:
    """One place for a worker process; the process may be replaced, the place stays.

    Attributes:
        spec: What it is to do.
        seat: Its name with the dispatcher; a new one for each process.
        state: Where it is in its life.
        process: The present process.
        channel: To it.
        shipments: Batch number -> shared memory that is its until it answers or ends.
        facts: What it said.
        heard: When it was last heard, on the monotonic clock.
        restarts: Times it was started again.
        answered: Works that the present process has answered.
        failures: Ends in a row of processes that answered nothing, since the last calm time.
        restart_at: When it is started again; None: it is not waiting for that.
        items: Works done by earlier processes.
        error: Why it ended last, where it said so.
        exit_status: Of the last process; negative: ended by a signal.
    """

    spec: WorkerSpec
    seat: str = ""
    state: WorkerState = WorkerState.STOPPED
    process: subprocess.Popen[bytes] | None = None
    channel: Channel | None = None
    shipments: dict[int, Shipment] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    heard: float = 0.0
    ready_at: float = 0.0
    generation: int = 0
    restarts: int = 0
    answered: int = 0
    failures: int = 0
    restart_at: float | None = None
    items: int = 0
    busy_s: float = 0.0
    error: Exception | None = None
    exit_status: int | None = None

    @property
    def why(self) -> str:
        """Why it ended last, in words."""
        return str(self.error) if self.error is not None else f"exit status {self.exit_status}"

    def start(self, arena: Arena) -> None:
        """Start a process.

        Raises:
            WorkerStartError: The system refuses.
        """
        self.generation += 1
        self.seat = f"{self.spec.name}#{self.generation}"
        channel, theirs = pair()
        code = f"from facefleet.workers.process import main; raise SystemExit(main({theirs}))"
        try:
            # Never forked with our threads and devices; and not multiprocessing's spawn, which runs the caller's
            # main module again.
            self.process = subprocess.Popen(
                [sys.executable, "-c", code],
                pass_fds=(theirs, arena.fd),
                env={**os.environ, **self.spec.environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdin=subprocess.DEVNULL,
            )
        except OSError as error:
            channel.close()
            raise WorkerStartError(f"{self.spec.name}: {error}") from error
        finally:
            os.close(theirs)
        self.channel = channel
        self.state = WorkerState.STARTING
        self.heard = time.monotonic()
        self.restart_at = None
        self.facts = {}
        channel.send(("init", list(sys.path), arena.fd, arena.size, *log_settings()))
        channel.send(("spec", self.spec))

    def ended(self, now: float) -> None:
        """Reap the process, which is ending or dead; remember what it did, and when to try again."""
        if self.process is not None:
            self.process.kill()
            self.exit_status = self.process.wait()
        if self.channel is not None:
            self.channel.close()
        self.process = self.channel = None
        self.items += int(self.facts.get("items", 0))
        self.busy_s += float(self.facts.get("busy_s", 0.0))
        self.facts = {}
        calm = self.state is WorkerState.READY and now - self.ready_at > _CALM_S
        if calm:
            self.failures = 1
        elif not self.answered or not self.failures:
            self.failures += 1
        self.answered = 0

    def wait_to_restart(self, now: float) -> None:
        """Set when it is started again: at once the first time, later each time it fails without having been calm."""
        self.state = WorkerState.STARTING
        self.restarts += 1
        delay = 0.0 if self.failures <= 1 else min(_FIRST_BACKOFF_S * 2 ** (self.failures - 2), _MOST_BACKOFF_S)
        self.restart_at = now + delay

    def status(self, in_flight: int) -> WorkerStatus:
        """What is known about it."""
        return WorkerStatus(
            name=self.spec.name,
            stage=self.spec.stage,
            state=self.state,
            pid=0 if self.process is None else self.process.pid,
            restarts=self.restarts,
            in_flight=in_flight,
            items=self.items + int(self.facts.get("items", 0)),
            busy_s=self.busy_s + float(self.facts.get("busy_s", 0.0)),
            facts=dict(self.facts),
            error=self.why if self.error or self.exit_status else "",
        )
