"""A batch of photos on the host: what was found in each, the faces as they are embedded, and at last the answers.

Filled by one thread at a time; refuses devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from facefleet.errors import BadOutputError
from facefleet.ops import pose_degrees
from facefleet.pipeline.device.lanes import Mark
from facefleet.pipeline.device.slot import COUNT, FINITE, REDO, REJECTED, Slot
from facefleet.pipeline.photo import Photo
from facefleet.types import F32Array, Faces, FaceStatus, Quality, U8Array


@dataclass(slots=True, eq=False)
class Found:
    """A photo's part of a batch.

    Attributes:
        photo: Whose.
        frame: Width and height of the original.
        start: Its first face among those of the batch.
        stop: After its last one.
        best_rejected: Highest score that was rejected.
    """

    photo: Photo
    frame: tuple[int, int]
    start: int = 0
    stop: int = 0
    best_rejected: float = 0.0


@dataclass(slots=True, eq=False)
class DeviceBatch:
    """Photos that go through the device together.

    Attributes:
        slot: Their memory; None once it has been given back.
        photos: In the order of the slot.
        done: When their faces are found.
        held: Kept until then.
        started: When the batch began, by `time.perf_counter`.
        queued_at: When each photo began to wait, monotonic.
        left: Faces that have no result yet.
    """

    slot: Slot | None
    photos: list[Found]
    done: Mark
    held: list[object]
    started: float
    queued_at: list[float]
    left: int = 0
    rows: F32Array = field(default_factory=lambda: np.zeros((0, 16), np.float32))
    results: F32Array = field(default_factory=lambda: np.zeros((0, 2), np.float32))
    chips: U8Array | None = None

    def take(self, heads: F32Array, rows: F32Array, dimension: int) -> tuple[list[Photo], list[Photo]]:
        """Learn what was found.

        Args:
            heads: (photos, 4) numbers of the photos.
            rows: (faces, 16) numbers of the faces.
            dimension: Length of a vector.

        Returns:
            Photos that the host has to do, and those whose answers of the network were not finite; both are out.
        """
        self.rows = rows
        self.results = np.full((len(rows), dimension + 2), np.nan, np.float32)
        stops = heads[:, COUNT].astype(int).cumsum().tolist()
        redo, broken, staying = [], [], []
        for found, head, stop, count in zip(self.photos, heads, stops, heads[:, COUNT].astype(int), strict=True):
            found.start, found.stop, found.best_rejected = stop - int(count), stop, float(head[REJECTED])
            if not head[FINITE]:
                broken.append(found.photo)
            elif head[REDO]:
                redo.append(found.photo)
            else:
                staying.append(found)
        self.photos = staying
        self.left = sum(found.stop - found.start for found in staying)
        if any(found.photo.keep_chips for found in staying):
            self.chips = np.zeros((len(rows), 112, 112, 3), np.uint8)
        return redo, broken

    def segments(self, *, embeds: bool) -> Iterator[tuple[int, int, bool]]:
        """Stretches of faces (start, stop, whether they are embedded) that lie together and go the same way."""
        start = stop = 0
        kind = False
        for found in self.photos:
            wanted = embeds and found.photo.embed
            if found.start != stop or wanted != kind:
                if stop > start:
                    yield start, stop, kind
                start, kind = found.start, wanted
            stop = found.stop
        if stop > start:
            yield start, stop, kind

    def answers(self) -> Iterator[tuple[Photo, Faces | BadOutputError]]:
        """The answer of every photo; all its faces have results."""
        poses = pose_degrees(self.rows[:, 4:14].reshape(-1, 5, 2))
        usable = self.rows[:, 15] != 0
        self.results[~usable] = np.nan
        for found in self.photos:
            yield found.photo, self._faces(found, poses, usable)

    def _faces(
        self, found: Found, poses: tuple[F32Array, F32Array, F32Array], usable: np.ndarray
    ) -> Faces | BadOutputError:
        part, photo = slice(found.start, found.stop), found.photo
        rows, results = self.rows[part], self.results[part].copy()
        norms = results[:, -2].copy()
        if photo.embed and not (norms[usable[part]] > 0).all():
            return BadOutputError(
                f"{photo.name}: an embedding is zero or not finite", hint="run with precision=fp32, or report the input"
            )
        boxes = rows[:, :4].copy()
        if not photo.embed:
            results[:, :-1] = norms[:] = np.nan
        size = np.minimum(boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1])
        return Faces(
            name=photo.name,
            width=found.frame[0],
            height=found.frame[1],
            boxes=boxes,
            landmarks=rows[:, 4:14].reshape(-1, 5, 2).copy(),
            scores=rows[:, 14].copy(),
            embeddings=np.ascontiguousarray(results[:, :-2]),
            norms=norms,
            status=np.where(usable[part], FaceStatus.OK, FaceStatus.ALIGNMENT_FAILED).astype(np.uint8),
            quality=Quality(size, results[:, -1].copy(), *(pose[part].copy() for pose in poses)),
            best_rejected=found.best_rejected,
            chips=self.chips[part].copy() if photo.keep_chips and self.chips is not None else None,
        )
