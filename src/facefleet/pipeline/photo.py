"""One photo on its way through the pipeline.

Fields are grouped by who writes them. A photo is worked on by one thread at a time, except `vectors`, whose rows are
written by whichever threads embed its faces, each its own rows; the fan-in counts `awaiting` are changed under the
pipeline's lock only.
"""

from __future__ import annotations

from collections.abc import Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from facefleet.batching import Priority, Ticket
from facefleet.decode import Header
from facefleet.models.detectors import Candidates
from facefleet.ops import Letterbox
from facefleet.types import Detections, EncodedImage, F32Array, FaceChips, Faces, Image, ImageSource, Outcome, RGBArray


@dataclass(slots=True, eq=False, weakref_slot=True)
class Photo:
    """A photo, its place in every stage, and where its answer goes.

    Attributes:
        source: The picture, or faces that are aligned already and only have to be embedded.
        name: What to call it; empty: what the decoder calls it.
        keep_chips: Whether the answer has the aligned faces too.
        embed: Whether faces are embedded; else their vectors stay NaN.
        priority: Who goes first.
        deadline: On the monotonic clock; from then on nothing more is done for it.
        client: Whose it is, for a fair share of the room; None: nobody's.
        counted: Whether its answer shows in the metrics of images; a probe's does not.
        by_host: Whether only its networks run on the device: the device's own way was not for it.
    """

    # the caller
    source: ImageSource | FaceChips
    keep_chips: bool
    embed: bool = True
    priority: Priority = Priority.BULK
    deadline: float | None = None
    client: Hashable = None
    counted: bool = True
    name: str = ""
    future: Future[Outcome[Faces]] = field(default_factory=Future)
    # the door and the scheduler, on entry
    entry_bytes: int = 0
    accepted_at: float = 0.0
    trace: Any = None
    ticket: Ticket[Photo] | None = None
    by_host: bool = False
    # decode
    loaded: EncodedImage | Image | None = None
    header: Header | None = None
    held_bytes: int = 0
    counted_bytes: int = 0
    image: Image | None = None
    awaiting_inputs: int = 0
    # detect
    parts: list[tuple[Letterbox, Candidates]] = field(default_factory=list)
    # align
    detections: Detections | None = None
    chips: FaceChips | None = None
    blur: F32Array | None = None
    # embed
    awaiting_faces: int = 0
    vectors: F32Array | None = None
    norms: F32Array | None = None

    @property
    def source_bytes(self) -> int:
        """What the source holds in memory while it waits."""
        source = self.source
        if isinstance(source, EncodedImage):
            return len(source.data)
        if isinstance(source, Image):
            return source.pixels.nbytes
        if isinstance(source, FaceChips):
            return source.pixels.nbytes
        if isinstance(source, (bytes, bytearray)):
            return len(source)
        return int(getattr(source, "nbytes", 0))


@dataclass(slots=True, eq=False)
class DetectorInput:
    """One letterboxed input of a photo; a photo has one for each detector size."""

    photo: Photo
    plan: Letterbox
    pixels: RGBArray
    queued_at: float = 0.0


@dataclass(slots=True, eq=False)
class FaceInput:
    """One aligned face of a photo."""

    photo: Photo
    row: int
    queued_at: float = 0.0

    @property
    def pixels(self) -> RGBArray:
        """(112, 112, 3) uint8 RGB."""
        assert self.photo.chips is not None
        return np.asarray(self.photo.chips.pixels[self.row])
