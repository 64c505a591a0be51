"""A detector: prepared pictures in, faces in the frame of the original out.

Owns one open runner, for a lower precision a second one in fp32, and the head that reads their outputs. Stateless
between calls; safe in any thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from facefleet.backends import Runner
from facefleet.models.detectors.base import Candidates, DetectorHead, merge
from facefleet.models.detectors.registry import create_head
from facefleet.ops import Letterbox, nms, plan_letterbox
from facefleet.ops.nms import overlaps
from facefleet.packs import DetectorSpec
from facefleet.types import Detections, F32Array, U8Array

_PROBE_PX = 384  # for trying a detector whose inputs have no size of their own
_LARGE_PX = 240
"""A larger face is shown in its chip less than half as large, by single pixels of it: landmarks a sixth of a pixel of
the input aside show others. It has to be surer."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which of the detected faces are kept, and in what order.

    Attributes:
        score: Faces with scores above this are kept.
        nms: IoU above which the weaker of two faces is dropped.
        max_faces: Most faces kept, 0 for all.
        order: What comes first: the largest, the surest, or the nearest to the middle.
        min_face_px: Least shorter side in pixels of the original.
    """

    score: float
    nms: float
    max_faces: int = 0
    order: Literal["area", "score", "center"] = "score"
    min_face_px: float = 0.0


class Detector:
    """Finds faces.

    Args:
        runner: A prepared network: free batch, height and width; every output (n, cells, c).
        spec: What the manifest says of it.
        one_scale: Whether both axes are mapped by the scale of the height, as insightface does.
        exact: The same network in fp32, which is asked about inputs that `runner` is not sure of.
        recheck: Not sure is a face with a score below this, a large one that is little above it, and for some heads one
            for which two anchors tie.
        heads: What reads the outputs of `runner` and of `exact`; None: what the family of `spec` says.

    Attributes:
        runner: As given.
        spec: As given.
        outputs: Names and last dimensions of the network's outputs; known once opened.
    """

    def __init__(
        self,
        runner: Runner,
        spec: DetectorSpec,
        *,
        one_scale: bool = False,
        exact: Runner | None = None,
        recheck: float = 0.0,
        heads: tuple[DetectorHead | None, DetectorHead | None] = (None, None),
    ) -> None:
        self.runner = runner
        self.spec = spec
        self._one_scale = one_scale
        self._exact, self._recheck = exact, recheck
        self.outputs: list[tuple[str, int]] = []
        self._given = heads
        self._heads: list[DetectorHead] = []

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as opened:
            opened.enter_context(self.runner)
            if self._exact is not None:
                opened.enter_context(self._exact)
            self._probe()
            self._opened = opened.pop_all()
        return self

    def _probe(self) -> None:
        """Run every size that has a plan once, and read what the outputs are."""
        runners = [self.runner, *([] if self._exact is None else [self._exact])]
        for runner, given in zip(runners, self._given, strict=False):
            for height, width in (self.warm_size, *self.runner.options.warm[1:]):
                outputs = runner.run(np.zeros((1, height, width, 3), np.uint8))
            widths = [output.shape[-1] for output in outputs]
            named = list(zip(runner.output_names, widths, strict=True))
            self.outputs = self.outputs or named
            self._heads.append(given or create_head(self.spec.family, named))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()

    @property
    def warm_size(self) -> tuple[int, int]:
        """Height and width of an input that is ready to run, in pixels."""
        return next(iter(self.runner.options.warm), (_PROBE_PX, _PROBE_PX))

    def plan(self, width: int, height: int, sizes: Sequence[int | str]) -> tuple[Letterbox, ...]:
        """How a picture of `width` x `height` pixels is fitted into each of `sizes`; equal inputs only once."""
        tight_px = self.spec.enlarge_px if self.spec.fit == "tight" else None
        plans = [plan_letterbox(width, height, size, self.spec.stride, tight_px=tight_px) for size in sizes]
        if self._one_scale:
            plans = [replace(plan, scale_x=plan.scale_y) for plan in plans]
        return tuple(dict.fromkeys(plans))

    def infer(self, inputs: U8Array, threshold: float, scales: Sequence[float] = ()) -> list[Candidates]:
        """Run a batch.

        Args:
            inputs: (n, h, w, 3) uint8 RGB, letterboxed.
            threshold: Least score.
            scales: For each, pixels of the input per pixel of the picture that chips are cut from; 1 where not given.

        Returns:
            For each input its candidates, in pixels of that input.

        Raises:
            BackendError: The run failed or returned something that cannot be an answer.
        """
        assert self._heads, "used outside `with detector:`"
        found = _candidates(self.runner, self._heads[0], inputs, threshold)
        if self._exact is not None:
            unsure = [
                row
                for row, (candidates, scale) in enumerate(zip(found, scales or [1.0] * len(found), strict=True))
                if self._unsure(candidates, scale)
            ]
            if unsure:
                again = _candidates(self._exact, self._heads[1], inputs[unsure], threshold)
                for row, candidates in zip(unsure, again, strict=True):
                    found[row] = candidates
        return found

    def _unsure(self, found: Candidates, scale: float) -> bool:
        """Whether rounding may have moved some face by more than its chip bears."""
        x1, y1, x2, y2 = found.boxes.T
        sound = np.flatnonzero((x2 > x1) & (y2 > y1))
        boxes, scores = found.boxes[sound], found.scores[sound]
        faces = nms(boxes, scores, self.spec.nms)
        area = ((x2 - x1) * (y2 - y1))[sound[faces]]
        bounds = self._recheck + self._heads[0].surer * (area > (_LARGE_PX * scale) ** 2)
        if (scores[faces] < bounds).any():
            return True
        tie = self._heads[0].tie
        if not tie:
            return False
        near = scores[None] > scores[faces, None] - tie
        near[np.arange(len(faces)), faces] = False
        rows, others = np.nonzero(near & (scores[None] <= scores[faces, None]))
        return any(
            overlaps(boxes[[face]], boxes[[other]])[0, 0] > self.spec.nms
            for face, other in zip(faces[rows], others, strict=True)
        )


def _candidates(runner: Runner, head: DetectorHead, inputs: U8Array, threshold: float) -> list[Candidates]:
    height, width = inputs.shape[1:3]
    return runner.read(
        inputs, lambda outputs, row: head.candidates(outputs, row, width, height, threshold), head.passed_on
    )


def settle(parts: Sequence[tuple[Letterbox, Candidates]], width: int, height: int, select: Selection) -> Detections:
    """Turn the candidates of one picture, from all its inputs, into its faces.

    Args:
        parts: Candidates with the letterbox they were found in.
        width: Width of the original in pixels.
        height: Height of the original.
        select: What to keep.

    Returns:
        Faces in pixels of the original. Boxes that are not finite, have no area or lie outside the frame are gone.
    """
    found = merge([_in_original(candidates, plan) for plan, candidates in parts])
    x1, y1, x2, y2 = found.boxes.T
    with np.errstate(invalid="ignore"):
        sound = (np.minimum(x2 - x1, y2 - y1) >= select.min_face_px) & (x2 > x1) & (y2 > y1)
        sound &= (np.minimum(x2, y2) > 0) & (x1 < width) & (y1 < height) & np.isfinite(found.boxes).all(axis=1)
    index = np.flatnonzero(sound)
    index = index[nms(found.boxes[index], found.scores[index], select.nms)]
    detections = Detections(
        found.boxes, found.landmarks, found.scores.clip(0, 1), width, height, found.best_rejected
    ).take(index)
    if select.order == "score":  # as suppression left them
        return detections.take(np.arange(select.max_faces)) if 0 < select.max_faces < len(index) else detections
    order = _order(detections, select.order)
    return detections.take(order[: select.max_faces] if select.max_faces else order)


def _in_original(candidates: Candidates, plan: Letterbox) -> Candidates:
    boxes = plan.to_original(candidates.boxes.reshape(-1, 2, 2)).reshape(-1, 4)
    landmarks = None if candidates.landmarks is None else plan.to_original(candidates.landmarks)
    return Candidates(boxes, landmarks, candidates.scores, candidates.best_rejected)


def _order(detections: Detections, order: Literal["area", "center"]) -> NDArray[np.intp]:
    """Stable order of faces; suppression left them by falling score."""
    boxes = detections.boxes
    if order == "area":
        key: F32Array = -(boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    else:
        middle = np.array([detections.width, detections.height], np.float32) / 2
        key = np.hypot(*((boxes[:, :2] + boxes[:, 2:]) / 2 - middle).T)
    return np.argsort(key, kind="stable")
