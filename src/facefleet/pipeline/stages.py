"""What is done to a photo at each stage. Stateless: everything it needs is in the photo or in the parts it is given.

Runs in the pipeline's worker threads. Owns the order of the work inside a stage; `scheduler` owns who does it when.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from facefleet.decode import Decoder, probe
from facefleet.errors import InvalidArrayError
from facefleet.models.detectors import Detector, Selection, settle
from facefleet.models.embedders import Embedder
from facefleet.models.load import Loaded
from facefleet.ops import alignment_matrices, blur_scores, box_matrices, letterbox, pose_degrees, warp_chips
from facefleet.ops.align import SIDE_PX
from facefleet.pipeline.photo import DetectorInput, FaceInput, Photo
from facefleet.types import Detections, F32Array, FaceChips, Faces, FaceStatus, Image, Quality

CHIPS = "<chips>"


@dataclass(frozen=True, slots=True)
class Stages:
    """The parts of a pipeline, opened.

    Attributes:
        decoder: Bytes to pictures.
        detector: Pictures to candidates.
        embedder: Chips to vectors; None where others embed.
        dimension: Length of a vector.
        sizes: Detector sizes, all run on every photo.
        select: Which faces are kept.
    """

    decoder: Decoder
    detector: Detector
    embedder: Embedder | None
    dimension: int
    sizes: tuple[int | str, ...]
    select: Selection

    def load(self, photo: Photo) -> int:
        """Read the bytes of a photo and its header.

        Returns:
            How many bytes it will take once decoded.

        Raises:
            InputError: It cannot be read or is no picture that may be decoded.
        """
        assert not isinstance(photo.source, FaceChips)
        photo.loaded = self.decoder.read(photo.source, name=photo.name or None)
        photo.name = photo.loaded.name
        if isinstance(photo.loaded, Image):
            return photo.loaded.pixels.nbytes
        header = probe(photo.loaded.data, name=photo.loaded.name)
        photo.header = header if header.jpeg is not None else None  # others hold the file open
        return len(photo.loaded.data) + header.width * header.height * 3

    def decode(self, photo: Photo) -> list[DetectorInput]:
        """Decode a loaded photo and fit it into every detector size.

        Raises:
            InputError: It cannot be decoded.
        """
        assert photo.loaded is not None
        fixed = [size for size in self.sizes if isinstance(size, int)]
        need = max(fixed) if len(fixed) == len(self.sizes) else None
        photo.image = self.decoder.decode(photo.loaded, need_px=need, header=photo.header)
        plans = self.detector.plan(photo.image.width, photo.image.height, self.sizes)
        return [DetectorInput(photo, plan, letterbox(photo.image.pixels, plan)) for plan in plans]

    def detect(self, batch: Sequence[DetectorInput]) -> None:
        """Run the detector on inputs of one shape and give each photo its candidates.

        Raises:
            BackendError: The run failed; no photo was given anything.
        """
        pixels = batch[0].pixels[None] if len(batch) == 1 else np.stack([item.pixels for item in batch])
        scales = [item.plan.scale_y / (item.photo.image.scale if item.photo.image else 1.0) for item in batch]
        found = self.detector.infer(pixels, self.select.score, scales)
        for item, candidates in zip(batch, found, strict=True):
            item.photo.parts.append((item.plan, candidates))

    def align(self, photo: Photo) -> list[FaceInput]:
        """Settle which faces a photo has and cut out their chips; the picture is let go.

        Returns:
            The faces to embed.

        Raises:
            InputError: The full picture was needed and could not be decoded.
        """
        if isinstance(photo.source, FaceChips):
            found = found_in(photo.source)
            photo.name = photo.name or CHIPS
            return self._settle(photo, found, photo.source)
        assert photo.image is not None
        # The order in which several sizes finished must not matter.
        photo.parts.sort(key=lambda part: (part[0].width, part[0].height))
        found = settle(photo.parts, photo.image.width, photo.image.height, self.select)
        matrices, usable = box_matrices(found.boxes) if found.landmarks is None else alignment_matrices(found.landmarks)
        image = photo.image
        if image.reduced and _needs_full(matrices[usable], image.scale):
            assert photo.loaded is not None
            image = self.decoder.decode(photo.loaded, header=photo.header)
        pixels = warp_chips(image.pixels, matrices, usable, image.scale)
        return self._settle(photo, found, FaceChips(pixels, matrices, usable))

    def _settle(self, photo: Photo, found: Detections, chips: FaceChips) -> list[FaceInput]:
        photo.detections = found
        photo.chips = chips
        photo.blur = blur_scores(chips.pixels, chips.aligned)
        photo.vectors = np.full((len(found), self.dimension), np.nan, np.float32)
        photo.norms = np.full(len(found), np.nan, np.float32)
        photo.image = photo.loaded = None
        photo.parts.clear()
        return [FaceInput(photo, int(row)) for row in np.flatnonzero(chips.aligned)] if photo.embed else []

    def embed(self, batch: Sequence[FaceInput]) -> None:
        """Embed faces of any photos.

        Raises:
            BackendError: The run failed; no photo was given anything.
        """
        assert self.embedder is not None
        result = self.embedder.embed(np.stack([item.pixels for item in batch]))
        for item, vector, norm in zip(batch, result.vectors, result.norms, strict=True):
            assert item.photo.vectors is not None
            assert item.photo.norms is not None
            item.photo.vectors[item.row] = vector
            item.photo.norms[item.row] = norm


def found_in(chips: FaceChips) -> Detections:
    """What a detector would have found in faces that are aligned already: each fills its picture.

    Raises:
        InvalidArrayError: They are not of the template's size.
    """
    n, height, width = chips.pixels.shape[:3]
    if height != SIDE_PX or width != SIDE_PX:
        raise InvalidArrayError(f"faces of {width} x {height} pixels", hint=f"aligned faces have {SIDE_PX} x {SIDE_PX}")
    boxes = np.tile(np.array([0, 0, width, height], np.float32), (n, 1))
    return Detections(boxes, None, np.ones(n, np.float32), width, height)


def faces_in(chips: FaceChips, dimension: int) -> Faces:
    """The answer for aligned faces, with room for their vectors; blur is not measured.

    Raises:
        InvalidArrayError: As for `found_in`.
    """
    found, n = found_in(chips), len(chips)
    unknown = np.full(n, np.nan, np.float32)
    return Faces(
        name=CHIPS,
        width=found.width,
        height=found.height,
        boxes=found.boxes,
        landmarks=np.full((n, 5, 2), np.nan, np.float32),
        scores=found.scores,
        embeddings=np.full((n, dimension), np.nan, np.float32),
        norms=unknown.copy(),
        status=np.where(chips.aligned, FaceStatus.OK, FaceStatus.ALIGNMENT_FAILED).astype(np.uint8),
        quality=Quality(*(unknown.copy() for _ in range(5))),
        chips=chips.pixels,
    )


def assemble(photo: Photo) -> Faces:
    """The answer of a photo that has been through every stage."""
    found, chips, blur = photo.detections, photo.chips, photo.blur
    vectors, norms = photo.vectors, photo.norms
    assert found is not None
    assert chips is not None
    assert blur is not None
    assert vectors is not None
    assert norms is not None
    landmarks = found.landmarks
    if landmarks is None:
        landmarks = np.full((len(found), 5, 2), np.nan, np.float32)
    status = np.where(chips.aligned, FaceStatus.OK, FaceStatus.ALIGNMENT_FAILED).astype(np.uint8)
    return Faces(
        name=photo.name,
        width=found.width,
        height=found.height,
        boxes=found.boxes,
        landmarks=landmarks,
        scores=found.scores,
        embeddings=vectors,
        norms=norms,
        status=status,
        quality=_quality(found, landmarks, blur),
        best_rejected=found.best_rejected,
        chips=chips.pixels if photo.keep_chips else None,
    )


def _quality(found: Detections, landmarks: F32Array, blur: F32Array) -> Quality:
    size = np.minimum(found.boxes[:, 2] - found.boxes[:, 0], found.boxes[:, 3] - found.boxes[:, 1])
    return Quality(size, blur, *pose_degrees(landmarks))


def _needs_full(matrices: F32Array, scale: float) -> bool:
    """Whether a chip would enlarge a picture reduced by `scale`: then the full one has detail the chip can show."""
    return bool((np.hypot(matrices[:, 0, 0], matrices[:, 1, 0]) > scale).any())


def stages_of(models: Loaded) -> Stages:
    """The stages of opened models; there is a detector among them."""
    assert models.detector is not None
    return Stages(
        models.decoder,
        models.detector,
        models.embedder,
        models.manifest.embedder.dimension,
        models.sizes,
        models.select,
    )
