"""Moves the bytes of works to workers and of results back, through the arena.

Owns the arena and who holds which part of it. Called with the fleet's lock held.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from facefleet.types import Outcome
from facefleet.workers.arena import Arena, Slot
from facefleet.workers.channel import Sent, Span, needed_bytes, read_buffers, write_buffers
from facefleet.workers.work import Batch, Payload
from facefleet.workers.worker import Worker


@dataclass(slots=True, eq=False)
class Lent:
    """Bytes of a result that stay in the arena, to be sent to another worker without a copy.

    Attributes:
        span: Where they are.
        slot: What holds them; released by whoever keeps it.
    """

    span: Span
    slot: Slot

    def __len__(self) -> int:
        return self.span[1]

    def part(self, start: int, stop: int) -> Lent:
        """A stretch of it, under the same hold."""
        return Lent((self.span[0] + start, stop - start), self.slot)


class Shipping:
    """The arena and what is in it.

    Args:
        size: Bytes of the arena.
    """

    def __init__(self, size: int) -> None:
        self.arena = Arena(size)

    def send(self, worker: Worker, batch: Batch) -> bool:
        """Send a batch.

        Returns:
            False if the worker is gone; what it was given is then moved by whoever finds that out.
        """
        message = []
        frames: list[Any] = []
        for work in batch.works:
            result = self.arena.allot(worker.spec.result_bytes)
            span = None if result is None else (result.offset, worker.spec.result_bytes)
            where, inputs = self._place(work.payload)
            if where is None:  # the arena is full: the bytes go the slow way
                buffers = [self.bytes_of(buffer) for buffer in work.payload.buffers]
                frames += buffers
                sizes = tuple(len(buffer) for buffer in buffers)
                message.append(Sent(work.number, (sizes, work.payload.meta), len(sizes), span))
            else:
                message.append(Sent(work.number, work.payload.meta, where, span))
            worker.slots[work.number] = (inputs, result)
        assert worker.channel is not None
        try:
            worker.channel.send(("run", batch.number, message), frames)
        except OSError:
            return False
        return True

    def _place(self, payload: Payload) -> tuple[tuple[Span, ...] | None, list[Slot]]:
        """Where the buffers of a payload lie in the arena, and what holds them there; None where there is no room."""
        if payload.buffers and all(isinstance(buffer, Lent) for buffer in payload.buffers):
            lent = [buffer for buffer in payload.buffers if isinstance(buffer, Lent)]
            for buffer in lent:
                buffer.slot.holders += 1
            return tuple(buffer.span for buffer in lent), [buffer.slot for buffer in lent]
        size = needed_bytes(payload)
        if not size:
            return (), []
        slot = self.arena.allot(size)
        if slot is None:
            return None, []
        return write_buffers(self.arena.view, slot.offset, payload), [slot]

    def result(self, worker: Worker, answer: tuple[Any, ...]) -> tuple[Outcome[Payload], Slot | None]:
        """The outcome in an answer of a worker: its buffers are valid until the slot is released.

        Raises:
            EOFError: The worker ended while it sent it.
            OSError: Likewise.
        """
        number, ok, meta, where = answer
        assert worker.channel is not None
        frames = worker.channel.frames(where) if ok is None else ()
        inputs, result = worker.slots.pop(number, ([], None))
        for slot in inputs:
            self.arena.release(slot)
        outcome: Outcome[Payload]
        if ok is False:
            outcome = Outcome(error=meta)
        elif ok is None:
            outcome = Outcome(Payload(meta, frames))
        elif result is None:
            outcome = Outcome(Payload(meta))
        else:
            outcome = Outcome(Payload(meta, read_buffers(self.arena.view, where)))
        return outcome, result

    def keep(self, payload: Payload, slot: Slot | None) -> Sequence[Lent] | None:
        """Hold the buffers of a result in the arena; None where they are not there."""
        if slot is None or not payload.buffers:
            return None
        slot.holders += 1
        lent = []
        offset = slot.offset
        for buffer in payload.buffers:
            lent.append(Lent((offset, len(buffer)), slot))
            offset += len(buffer) + -len(buffer) % 16
        return lent

    def drop_all(self, worker: Worker) -> None:
        """Release everything that a worker, which is gone, held."""
        for inputs, result in worker.slots.values():
            for slot in inputs:
                self.arena.release(slot)
            if result is not None:
                self.arena.release(result)
        worker.slots.clear()

    def bytes_of(self, buffer: Any) -> Any:  # noqa: ANN401  # any buffer
        """Bytes that can be sent as a frame."""
        if isinstance(buffer, Lent):
            return read_buffers(self.arena.view, [buffer.span])[0]
        return buffer
