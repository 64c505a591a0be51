"""Moves the bytes of works to workers and of results back, through the arena.

Owns the arena and who holds which part of it. Called with the fleet's lock held.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from facefleet.types import Outcome
from facefleet.workers.arena import Arena, Slot
from facefleet.workers.channel import Span, needed_bytes, padded, read_buffers, write_buffers
from facefleet.workers.work import Batch, Payload, Work
from facefleet.workers.worker import Shipment, Worker


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

    def send(self, worker: Worker, batches: Sequence[Batch]) -> bool:
        """Send batches: ``("run", [(number, works, room), ...])``, a work as number, meta, where its buffers are.

        Returns:
            False if the worker is gone; what it was given is then moved by whoever finds that out.
        """
        frames: list[Any] = []
        message = [self._packed(worker, batch, frames) for batch in batches]
        assert worker.channel is not None
        try:
            worker.channel.send(("run", message), frames)
        except OSError:
            return False
        return True

    def _packed(self, worker: Worker, batch: Batch, frames: list[Any]) -> tuple[int, list[Any], Span | None]:
        """A batch as it is sent, its bytes in the arena or else added to `frames`."""
        works = batch.works
        slots: list[Slot] = []
        sizes = [_copied_bytes(work.payload) for work in works]
        size = sum(sizes)
        slot = self.arena.allot(size) if size else None
        if slot is not None:
            slots.append(slot)
        if slot is not None or not size:
            packed = self._placed(works, sizes, slot, slots)
        else:  # the arena is full: the bytes go the slow way
            packed = []
            for work in works:
                buffers = [self.bytes_of(buffer) for buffer in work.payload.buffers]
                frames += buffers
                packed.append((work.number, work.payload.meta, len(buffers)))
        room = worker.spec.result_bytes
        result = self.arena.allot(room * len(works))
        worker.shipments[batch.number] = Shipment(slots, result, len(works))
        return batch.number, packed, None if result is None else (result.offset, room)

    def _placed(
        self, works: Sequence[Work], sizes: Sequence[int], slot: Slot | None, slots: list[Slot]
    ) -> list[tuple[int, Any, Any]]:
        """Works with their buffers in the arena: copied into `slot`, or already there and held from now on."""
        message: list[tuple[int, Any, Any]] = []
        offset = 0 if slot is None else slot.offset
        for work, size in zip(works, sizes, strict=True):
            payload = work.payload
            if size:
                spans = write_buffers(self.arena.view, offset, payload)
                offset += size
            else:
                for buffer in payload.buffers:
                    buffer.slot.holders += 1
                    slots.append(buffer.slot)
                spans = tuple(buffer.span for buffer in payload.buffers)
            message.append((work.number, payload.meta, spans))
        return message

    def result(
        self, worker: Worker, batch: int, answer: tuple[Any, ...], frames: Iterator[bytes]
    ) -> tuple[Outcome[Payload], Slot | None]:
        """The outcome in an answer of a worker, and what holds its buffers: to be released after their use.

        Args:
            worker: Whose answer it is.
            batch: Number of the batch.
            answer: Number of the work, whether it has a result (None: in frames), meta, and where the buffers are.
            frames: Frames of the message that are not used yet.
        """
        _, ok, meta, where = answer
        outcome: Outcome[Payload]
        held = None
        shipment = worker.shipments[batch]
        if ok is False:
            outcome = Outcome(error=meta)
        elif ok is None:
            outcome = Outcome(Payload(meta, tuple(itertools.islice(frames, where))))
        elif not where or shipment.result is None:
            outcome = Outcome(Payload(meta))
        else:
            held = shipment.result
            held.holders += 1
            outcome = Outcome(Payload(meta, read_buffers(self.arena.view, where)))
        shipment.left -= 1
        if not shipment.left:
            self._drop(worker.shipments.pop(batch))
        return outcome, held

    def keep(self, payload: Payload, slot: Slot | None) -> Sequence[Lent] | None:
        """Hold the buffers of a result in the arena; None where they are not there."""
        if slot is None or not payload.buffers:
            return None
        slot.holders += 1
        start = self.arena.offset_of(payload.buffers[0])
        lent = []
        for buffer in payload.buffers:
            lent.append(Lent((start, len(buffer)), slot))
            start += padded(len(buffer))
        return lent

    def drop_all(self, worker: Worker) -> None:
        """Release everything that a worker, which is gone, held."""
        for shipment in worker.shipments.values():
            self._drop(shipment)
        worker.shipments.clear()

    def _drop(self, shipment: Shipment) -> None:
        for slot in shipment.inputs:
            self.arena.release(slot)
        if shipment.result is not None:
            self.arena.release(shipment.result)

    def bytes_of(self, buffer: Any) -> Any:  # noqa: ANN401  # any buffer
        """Bytes that can be sent as a frame."""
        if isinstance(buffer, Lent):
            return read_buffers(self.arena.view, [buffer.span])[0]
        return buffer


def _copied_bytes(payload: Payload) -> int:
    """Room that a payload needs in the arena: none where it lies there already."""
    buffers = payload.buffers
    if not buffers or isinstance(buffers[0], Lent):
        return 0
    return needed_bytes(payload)
