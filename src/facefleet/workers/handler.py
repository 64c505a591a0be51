"""What runs inside a worker: the contract between this package and whoever has work to hand out.

Owns the two interfaces and how one is named so that another process can make it. A handler is made, opened, used and
closed in its worker's process only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from facefleet.types import Outcome
from facefleet.workers.work import Payload

Reply = Callable[[int, Outcome[Payload]], None]


class Handler(ABC):
    """Does the work of a worker."""

    @abstractmethod
    def open(self) -> Mapping[str, Any]:
        """Load what is needed and warm every batch size up, the largest first.

        Returns:
            Facts for the parent, small and picklable.

        Raises:
            FacefleetError: It cannot work; the worker ends with it.
        """

    @abstractmethod
    def close(self) -> None:
        """Give everything back."""

    def facts(self) -> Mapping[str, Any]:
        """Numbers that go with every heartbeat: small and picklable."""
        return {}


class BatchHandler(Handler):
    """Works batch by batch; as many threads call `run` at a time as the worker has instances."""

    def size(self, payload: Payload) -> float:
        """How much a work counts in its batch: 1, or the number of things in it."""
        del payload
        return 1.0

    @abstractmethod
    def run(self, batch: Sequence[Payload]) -> Sequence[Outcome[Payload]]:
        """Do a batch.

        Args:
            batch: Buffers are valid during the call only.

        Returns:
            One outcome each, in the order of the batch.

        Raises:
            OutOfMemoryError: It did not fit: it is tried again in halves.
            DeviceLostError: This process cannot go on: it ends, and others do what it had.
            FacefleetError: Each item is tried again alone.
        """


class StreamHandler(Handler):
    """Takes works as they come and answers them in any order."""

    @abstractmethod
    def start(self, number: int, payload: Payload, reply: Reply) -> None:
        """Begin a work; called in one thread.

        Args:
            number: Goes to `reply` again.
            payload: Buffers are valid during this call only.
            reply: To be called once, from any thread; with a `DeviceLostError` it ends this worker.
        """


@dataclass(frozen=True, slots=True)
class HandlerSpec:
    """How to make a handler in another process.

    Attributes:
        factory: A function or class at the top of a module; picklable by its name.
        options: Its arguments; picklable.
    """

    factory: Callable[..., Handler]
    options: Mapping[str, Any] = field(default_factory=dict)

    def create(self) -> Handler:
        """A new handler, not open."""
        return self.factory(**self.options)


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """One worker.

    Attributes:
        name: Unique in its fleet, e.g. ``cpu:0``.
        stage: What it does.
        handler: How.
        instances: Batches that run at a time.
        depth: Batches it may hold; what is more than `instances` waits there so that the device does not.
        cores: Processors that it is pinned to; empty: wherever the system likes.
        niceness: How far it steps back for others on the same processors, as Unix counts it: 0 to 19.
        environment: Variables set for it before anything is loaded.
        result_bytes: Room for the results of one work; larger ones take a slower way.
    """

    name: str
    stage: str
    handler: HandlerSpec
    instances: int = 1
    depth: int = 2
    cores: tuple[int, ...] = ()
    niceness: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    result_bytes: int = 16384
