"""The computing of the device's way: pictures into a slot, faces found, chips cut, chips embedded.

Owns slots, networks and lanes; refuses threads, queues and photos. A lane is worked by one thread at a time: that of a
slot by the one that fills it, `finding` and `embedding` by one each. Nothing here waits for the device but the decoding
of JPEGs by the card.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from facefleet.backends.torch.bound import Recorded
from facefleet.backends.torch.runner import TorchRunner
from facefleet.config import BatchSettings
from facefleet.decode.card import CardDecoder
from facefleet.errors import OutOfMemoryError
from facefleet.models.detectors import Selection
from facefleet.models.detectors.device import TOP, DeviceDetections
from facefleet.models.detectors.device_run import DeviceDetector
from facefleet.models.embedders.device import DeviceEmbedder
from facefleet.models.load import Loaded
from facefleet.ops import Letterbox
from facefleet.ops.align import SIDE_PX
from facefleet.ops.cuda import alignment_matrices, blur_scores, box_matrices, warp_chips_into
from facefleet.pipeline.device.lanes import Lane, Mark, pinned
from facefleet.pipeline.device.slot import Placed, Slot
from facefleet.types import F32Array, RGBArray

_log = logging.getLogger(__name__)
FEEDERS = 2
"""Slots that are filled at a time: beside the networks, decoding waits more than it works."""
SLOTS = FEEDERS + 2
"""One more is looked at, of one the faces are cut out."""
RESULTS = 4
_PICTURE_BYTES = 4 << 20  # of the pool, for each picture of a batch: 1.4 megapixels
_LEAST_POOL_BYTES = 64 << 20
_DETECT_BUCKETS = (1, 8, 32)
_EMBED_BUCKETS = (1, 8, 64, 256)


@dataclass(slots=True, eq=False)
class Pixels:
    """A picture on its way to the device.

    Attributes:
        plans: How it lies in each detector input.
        frame: Width and height of the original.
        host: Decoded here.
        scale: Pixels of `host` per pixel of the original.
        file: A JPEG, to be decoded by the card.
        orientation: How the file is stored, 1 to 8.
    """

    plans: tuple[Letterbox, ...]
    frame: tuple[int, int]
    host: RGBArray | None = None
    scale: float = 1.0
    file: bytes = b""
    orientation: int = 1

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns, upright."""
        return (self.frame[1], self.frame[0]) if self.host is None else self.host.shape[:2]

    @property
    def bytes(self) -> int:
        """What it takes of a pool."""
        return 3 * self.shape[0] * self.shape[1]


def buckets_up_to(limit: int, steps: Sequence[int]) -> tuple[int, ...]:
    """The steps below `limit`, and `limit`."""
    return (*(step for step in steps if step < limit), limit)


class Resident:
    """Everything of a pipeline that lives on one device.

    Args:
        models: Open, on the torch backend.
        batch: Most pictures of a detector batch and most chips of an embedder batch.
        card: Decodes JPEGs there; None: nobody does.

    Raises:
        OutOfMemoryError: It does not fit.
    """

    def __init__(self, models: Loaded, batch: BatchSettings, card: CardDecoder | None = None) -> None:
        assert models.detector is not None
        self.card = card
        runner = models.detector.runner
        assert isinstance(runner, TorchRunner)
        self.device = runner.device
        self.batch, self.chips = batch.detect, batch.embed
        self.detector = DeviceDetector(models.detector, models.sizes, buckets_up_to(self.batch, _DETECT_BUCKETS))
        self.embedder = None
        if models.embedder is not None:
            self.embedder = DeviceEmbedder(models.embedder, buckets_up_to(self.chips, _EMBED_BUCKETS))
        self.dimension = models.manifest.embedder.dimension
        self.pool_bytes = max(_LEAST_POOL_BYTES, self.batch * _PICTURE_BYTES)
        inputs = len(self.detector.sides)
        self.slots = [
            Slot(self.device, batch=self.batch, pool_bytes=self.pool_bytes, inputs=inputs, candidates=TOP * inputs)
            for _ in range(SLOTS)
        ]
        self.rooms: dict[bool, Tensor] = {
            False: torch.zeros((self.chips, SIDE_PX, SIDE_PX, 3), dtype=torch.uint8, device=self.device)
        }
        if self.embedder is not None:
            self.rooms[True] = self.embedder.room
        self.results = [pinned((self.chips, self.dimension + 2), torch.float32, self.device) for _ in range(RESULTS)]
        self.finding, self.embedding = Lane(self.device), Lane(self.device)
        self._record = partial(Recorded, device=self.device, capture=runner.options.cuda_graphs)
        self._last: dict[int, Recorded[Tensor]] = {}
        for bucket in reversed(self.embedder.buckets if self.embedder is not None else ()):
            first = next(iter(self._last.values()), None)
            self._last[bucket] = self._record(partial(self._finished, bucket), beside=first)
        self.select = models.select

    @property
    def select(self) -> Selection:
        """What is kept; setting it records the work that finds faces anew."""
        return self._select

    @select.setter
    def select(self, select: Selection) -> None:
        self._select = select
        self._settling: dict[tuple[Slot, int], Recorded[None]] = {}
        for slot in self.slots:
            for bucket in reversed(self.detector.buckets):
                first = next(iter(self._settling.values()), None)
                self._settling[slot, bucket] = self._record(partial(self._settle, slot, bucket), beside=first)

    def plan(self) -> str:
        """The memory plan, in words."""
        mib = 1 << 20
        words = [
            f"{SLOTS} slots of {self.batch} pictures, {self.slots[0].bytes / mib:.0f} MiB each",
            f"{self.pool_bytes * SLOTS / mib:.0f} MiB pinned",
            f"batches of {', '.join(map(str, self.detector.buckets))} pictures",
        ]
        if self.embedder is not None:
            words.append(f"of {', '.join(map(str, self.embedder.buckets))} faces")
        if self.device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self.device)
            words.append(f"{torch.cuda.memory_reserved(self.device) / mib:.0f} MiB held with the networks")
            words.append(f"{free / mib:.0f} of {total / mib:.0f} MiB free")
        words.append("JPEGs decoded by the card" if self.card is not None else "pictures decoded by the processors")
        return ", ".join(words)

    def close(self) -> None:
        """Give the memory back."""
        self.without_card()
        self._settling.clear()
        self._last.clear()
        self.slots.clear()
        self.rooms.clear()
        self.results.clear()
        del self.detector, self.embedder
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def without_card(self) -> None:
        """The processors decode from here on."""
        card, self.card = self.card, None
        if card is not None:
            card.close()

    def fill(
        self, slot: Slot, pictures: Sequence[Pixels], each: Callable[..., Iterable[object]] = map
    ) -> tuple[Mark, list[object]]:
        """Bring pictures into a slot; several threads may, each into its own.

        Args:
            slot: A free one.
            pictures: At most a batch, and at most a pool's bytes.
            each: Calls a function for every element, as `map` does.

        Returns:
            When they are there, and what has to be held until then.

        Raises:
            CardRefusedError: The card did not decode some.
        """
        slot.filling.wait(slot.free)
        with slot.filling.use():
            offsets, end = [0] * len(pictures), 0
            for number in sorted(range(len(pictures)), key=lambda k: pictures[k].host is None):  # the host's first
                offsets[number], end = end, end + pictures[number].bytes
            hosts = [(p.host, at) for p, at in zip(pictures, offsets, strict=True) if p.host is not None]
            self._copy(slot, hosts, each)
            files = [(number, slot.pool[offsets[number] :]) for number, p in enumerate(pictures) if p.host is None]
            held = self._decode(pictures, files, slot.filling) if files else None
            placed = [
                Placed(at, *picture.shape, picture.scale, picture.frame, picture.plans)
                for picture, at in zip(pictures, offsets, strict=True)
            ]
            slot.lay(placed, self.bucket(len(pictures)), self.select.score)
        return slot.filling.mark(), [held]

    def _decode(self, pictures: Sequence[Pixels], files: Sequence[tuple[int, Tensor]], lane: Lane) -> object:
        """Have the card decode pictures to where they belong, upright; what has to be held until that is done."""
        assert self.card is not None
        targets, turned = [], []
        for number, room in files:
            picture = pictures[number]
            height, width = picture.shape
            target = room[: picture.bytes].view(height, width, 3)
            if picture.orientation != 1:
                stored = (width, height, 3) if picture.orientation >= 5 else (height, width, 3)
                turned.append((target, torch.empty(stored, dtype=torch.uint8, device=self.device), picture.orientation))
                target = turned[-1][1]
            targets.append(target)
        failed, held = self.card.decode([pictures[number].file for number, _ in files], targets, lane.handle)
        if failed:
            raise CardRefusedError([files[place][0] for place in failed])
        for target, stored_pixels, orientation in turned:
            target.copy_(upright(stored_pixels, orientation))
        return held, turned

    def _copy(self, slot: Slot, laid: list[tuple[RGBArray, int]], each: Callable[..., Iterable[object]]) -> None:
        """Copy pictures of the host, which lie one after the other, through pinned memory."""
        flat = slot.staging.numpy()

        def lay(picture: RGBArray, offset: int) -> None:
            np.copyto(flat[offset : offset + picture.size].reshape(picture.shape), picture)

        for _ in each(lay, *zip(*laid, strict=True)) if laid else ():
            pass
        if laid and slot.staging is not slot.pool:
            end = sum(picture.size for picture, _ in laid)
            slot.pool[:end].copy_(slot.staging[:end], non_blocking=True)

    def bucket(self, count: int) -> int:
        """The batch that so many pictures run in."""
        return next(size for size in self.detector.buckets if size >= count)

    def find(self, slot: Slot, count: int, filled: Mark) -> Mark:
        """Find the faces of the pictures in a slot, and all that is needed to cut them out; when it is done."""
        bucket = self.bucket(count)
        self.finding.wait(filled)
        assert slot.pictures is not None
        with self.finding.use():
            self.detector.run(slot.pictures, slot.contents(bucket))
            self._settling[slot, bucket]()
        return self.finding.mark()

    def _settle(self, slot: Slot, bucket: int) -> None:
        """From what the networks returned to what the host reads."""
        found = self.detector.settled(
            slot.input_scales(bucket), slot.frames(bucket), slot.thresholds(bucket), self._select
        )
        self._place(slot, found)
        slot.host_heads.copy_(slot.heads, non_blocking=True)
        slot.host_rows.copy_(slot.rows[: len(slot.host_rows)], non_blocking=True)

    def _place(self, slot: Slot, found: DeviceDetections) -> None:
        """Write faces one after the other, picture by picture, with the transforms that cut them out."""
        n, k = found.scores.shape
        boxes = found.boxes.flatten(0, 1)
        present = (torch.arange(k, device=self.device) < found.counts[:, None]).flatten()
        if found.landmarks is None:
            matrices, usable = box_matrices(boxes)
            points = torch.full((n * k, 10), torch.nan, device=self.device)
        else:
            landmarks = found.landmarks.flatten(0, 1)
            matrices, usable = alignment_matrices(landmarks)
            points = landmarks.flatten(1)
        usable = usable & present
        scales = slot.scales[:n, None]
        enlarged = torch.hypot(matrices[:, 0, 0], matrices[:, 1, 0]).view(n, k) > scales
        full = (enlarged & usable.view(n, k)).any(dim=1) & (scales[:, 0] < 1)
        last = len(slot.rows) - 1
        target = torch.where(present, present.cumsum(0) - 1, last)
        rows = torch.cat([boxes, points, found.scores.view(-1, 1), usable[:, None]], dim=1)
        slot.rows.index_copy_(0, target, rows)
        slot.which.index_copy_(0, target, torch.arange(n, device=self.device)[:, None].expand(n, k).flatten())
        slot.matrices.index_copy_(0, target, matrices)
        slot.usable.index_copy_(0, target, usable)
        heads = [found.counts, found.best_rejected, found.more | full, found.finite]
        slot.heads[:n].copy_(torch.stack([each.to(torch.float32) for each in heads], dim=1))

    def read(self, slot: Slot, count: int) -> tuple[F32Array, F32Array]:
        """What was found, once it is: (count, 4) numbers of pictures and (faces, 16) of faces, the caller's own."""
        heads = slot.host_heads.numpy()[:count].copy()
        faces = int(heads[:, 0].sum())
        if faces <= len(slot.host_rows):
            return heads, slot.host_rows.numpy()[:faces].copy()
        with torch.inference_mode():  # on no lane: they may have gone on to the next batch
            return heads, slot.rows[:faces].cpu().numpy().copy()  # without a device `cpu` is no copy

    def cut(self, slot: Slot, start: int, stop: int, at: int, *, embed: bool) -> None:
        """Cut the chips of a slot's faces `start` to `stop` into the room of a run, from row `at` on."""
        assert slot.pictures is not None
        with self.embedding.use():
            which = slot.which[start:stop]
            warp_chips_into(
                self.rooms[embed][at : at + stop - start],
                slot.pictures,
                which,
                slot.matrices[start:stop],
                slot.usable[start:stop],
                slot.scales[which],
            )

    def finish(self, count: int, result: Tensor, *, embed: bool, chips: bool) -> tuple[Mark, Tensor | None]:
        """Embed the first `count` chips of a room.

        Args:
            count: At most `chips`.
            result: Pinned; (count, dimension + 2) vectors, norms and blur are written, without vectors NaN.
            embed: Which room; whether there are vectors.
            chips: Whether the chips go to the host too.

        Returns:
            When everything is on the host, and the chips.
        """
        with self.embedding.use():
            room = self.rooms[embed][:count]
            kept = None
            if chips:
                kept = torch.empty(room.shape, dtype=torch.uint8, pin_memory=self.device.type == "cuda")
                kept.copy_(room, non_blocking=True)
            if embed:
                assert self.embedder is not None
                self.embedder.run(count)
                done = self._last[self.embedder.bucket(count)]()
            else:
                done = torch.full((count, self.dimension + 2), torch.nan, device=self.device)
                done[:, -1] = self._blur(room)
            result[:count].copy_(done[:count], non_blocking=True)
        return self.embedding.mark(), kept

    def _finished(self, bucket: int) -> Tensor:
        """(bucket, dimension + 2) vectors, norms and blur of the last run."""
        assert self.embedder is not None
        vectors, norms = self.embedder.vectors(bucket)
        return torch.cat([vectors, norms[:, None], self._blur(self.rooms[True][:bucket])[:, None]], dim=1)

    def _blur(self, chips: Tensor) -> Tensor:
        return blur_scores(chips, torch.ones(len(chips), dtype=torch.bool, device=self.device))


class CardRefusedError(Exception):
    """The card did not decode some files of a batch; the host has to, or to say what is wrong with them."""

    def __init__(self, numbers: list[int]) -> None:
        super().__init__(f"files {numbers} of a batch")
        self.numbers = numbers


def upright(pixels: Tensor, orientation: int) -> Tensor:
    """A picture as it should be seen, as `decode.exif.upright`: (h, w, 3), contiguous."""
    if orientation >= 5:
        pixels = pixels.transpose(0, 1)
    axes = [axis for axis, turned in ((0, (3, 4, 7, 8)), (1, (2, 3, 6, 7))) if orientation in turned]
    return (pixels.flip(axes) if axes else pixels).contiguous()


def open_resident(models: Loaded, batch: BatchSettings, card: CardDecoder | None) -> Resident:
    """The largest that fits: batches are halved where memory ends.

    Raises:
        OutOfMemoryError: Not even single pictures and faces do.
    """
    while True:
        try:
            made = Resident(models, batch, card)
        except (OutOfMemoryError, torch.OutOfMemoryError) as error:
            if batch.detect == 1 and batch.embed == 1:
                raise OutOfMemoryError(f"the device has no room for a pipeline: {error}") from error
            batch = replace(batch, detect=max(1, batch.detect // 2), embed=max(1, batch.embed // 2))
            _log.warning("memory ended: batches of %d pictures and %d faces are tried", batch.detect, batch.embed)
            torch.cuda.empty_cache()
            continue
        _log.info("memory plan of %s: %s", made.device, made.plan())
        return made
