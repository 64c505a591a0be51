"""What crosses the boundary of a process: a small description and raw bytes, never a pickled array.

Owns the values that callers and handlers see. No I/O.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from facefleet.batching import Priority, Ticket
from facefleet.types import Outcome
from facefleet.workers.arena import Slot

Buffer: TypeAlias = Any
"""bytes, bytearray, a memoryview of unsigned chars, or what `Fleet.keep` returned."""


@dataclass(frozen=True, slots=True)
class Payload:
    """A description and the bytes it speaks of.

    Attributes:
        meta: Small and picklable: names, shapes, numbers.
        buffers: Contiguous bytes; they cross in shared memory.
    """

    meta: Any
    buffers: tuple[Buffer, ...] = field(default=(), repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return sum(len(buffer) for buffer in self.buffers)


class WorkState(enum.Enum):
    """Where a work is."""

    WAITING = "waiting"
    RUNNING = "running"
    ANSWERED = "answered"


@dataclass(slots=True, eq=False)
class Work:
    """One item on its way to a worker and back.

    Attributes:
        stage: Which workers may do it.
        payload: What they get.
        done: Called exactly once with the answer, without a lock held, mostly in the fleet's thread: it must be
            quick. The buffers of an answer are valid during the call only, unless `Fleet.keep` holds them.
        cost: In the unit of the stage (pixels, faces), for balancing.
        shape: Only works of one shape share a batch.
        priority: Who goes first.
        deadline: On the monotonic clock; then it is answered with a `DeadlineError` wherever it is.
    """

    # the caller
    stage: str
    payload: Payload
    done: Callable[[Outcome[Payload]], None]
    cost: float = 1.0
    shape: Hashable = None
    priority: Priority = Priority.BULK
    deadline: float | None = None
    # the dispatcher and the fleet
    number: int = -1
    state: WorkState = WorkState.WAITING
    answered: bool = False
    slot: Slot | None = None
    ticket: Ticket[Work] | None = None
    sent_at: float = 0.0
    crashes: int = 0

    def let_go(self) -> None:
        """Forget what was only for the answer, which has been given: lists of deadlines may hold a work for long."""
        self.payload, self.done, self.ticket = Payload(None), _nobody, None


def _nobody(outcome: Outcome[Payload]) -> None:
    del outcome


@dataclass(frozen=True, slots=True)
class Batch:
    """Works that run together.

    Attributes:
        number: Unique in a fleet.
        worker: Name of the worker.
        works: One to the policy's `max_batch`.
    """

    number: int
    worker: str
    works: Sequence[Work]
