"""Heads read and faces settled on tensors, for all pictures of a batch at once, without waiting for the device.

The same arithmetic as `ScrfdHead`, `RetinaFaceHead` and `settle`, with a fixed number of candidates a picture: the
strongest `TOP`. A picture with more says so, and is left to the functions without that limit. Imports PyTorch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from facefleet.models.detectors.base import grid
from facefleet.models.detectors.detector import Selection
from facefleet.models.detectors.retinaface import CENTER_VARIANCE, SIZE_VARIANCE, RetinaFaceHead, priors
from facefleet.models.detectors.scrfd import ScrfdHead
from facefleet.ops.cuda import nms
from facefleet.packs import DetectorSpec

TOP = 512
"""Candidates a picture and input: twice the faces of the fullest photos, each of which has one to four."""


@dataclass(frozen=True, slots=True)
class DeviceCandidates:
    """The strongest candidates of each detector input, by falling score.

    Attributes:
        boxes: (n, k, 4) float32 x1 y1 x2 y2 in pixels of the input.
        landmarks: (n, k, 5, 2) float32, or None.
        scores: (n, k) float32.
        valid: (n, k) bool: above the threshold.
        best_rejected: (n,) float32.
        more: (n,) bool: more were above the threshold than k.
        finite: (n,) bool: every number that the network returned.
    """

    boxes: Tensor
    landmarks: Tensor | None
    scores: Tensor
    valid: Tensor
    best_rejected: Tensor
    more: Tensor
    finite: Tensor


@dataclass(frozen=True, slots=True)
class DeviceDetections:
    """The faces of each picture, as `Detections`; rows from `counts` on say nothing.

    Attributes:
        boxes: (n, k, 4) float32 in pixels of the original.
        landmarks: (n, k, 5, 2) float32, or None.
        scores: (n, k) float32 in [0, 1].
        counts: (n,) int64.
        best_rejected: (n,) float32.
        more: (n,) bool: it had more candidates than were looked at.
        finite: (n,) bool: every number that the network returned.
    """

    boxes: Tensor
    landmarks: Tensor | None
    scores: Tensor
    counts: Tensor
    best_rejected: Tensor
    more: Tensor
    finite: Tensor


class DeviceHead(ABC):
    """Reads the outputs of one detector family as tensors."""

    @abstractmethod
    def scores(self, outputs: Sequence[Tensor]) -> Tensor:
        """(n, cells) of all strides."""

    @abstractmethod
    def decode(self, outputs: Sequence[Tensor], index: Tensor, width: int, height: int) -> tuple[Tensor, Tensor | None]:
        """Boxes (n, k, 4) and landmarks (n, k, 5, 2) of the cells at `index`, (n, k)."""

    def batch_candidates(
        self, outputs: Sequence[Tensor], width: int, height: int, thresholds: Tensor, top: int = TOP
    ) -> DeviceCandidates:
        """The candidates of a batch.

        Args:
            outputs: What the network returned, each (n, cells, c).
            width: Width of the detector input in pixels.
            height: Its height.
            thresholds: (n,) float32: scores above it are valid.
            top: Most candidates a picture.
        """
        scores = self.scores(outputs)
        above = scores > thresholds[:, None]
        rejected = torch.where(above, 0, scores).amax(dim=1).clamp(min=0)
        index = strongest(scores, min(top, scores.shape[1]))
        boxes, landmarks = self.decode(outputs, index, width, height)
        finite = torch.stack([output.flatten(1).sum(dim=1) for output in outputs]).isfinite().all(dim=0)
        more = above.sum(dim=1) > index.shape[1]
        return DeviceCandidates(
            boxes, landmarks, scores.gather(1, index), above.gather(1, index), rejected, more, finite
        )


class DeviceScrfdHead(ScrfdHead, DeviceHead):
    """SCRFD; see `ScrfdHead`."""

    def scores(self, outputs: Sequence[Tensor]) -> Tensor:
        """See `DeviceHead.scores`."""
        return torch.cat([outputs[at][..., 0] for at in self._scores], dim=1)

    def decode(self, outputs: Sequence[Tensor], index: Tensor, width: int, height: int) -> tuple[Tensor, Tensor | None]:
        """See `DeviceHead.decode`."""
        center, step = (table[index] for table in _cells(width, height, self._strides, self._anchors, index.device))
        distance = _rows(torch.cat([outputs[at] for at in self._boxes], dim=1), index) * step
        boxes = torch.cat([center - distance[..., :2], center + distance[..., 2:]], dim=2)
        if not self._points:
            return boxes, None
        offset = _rows(torch.cat([outputs[at] for at in self._points], dim=1), index) * step
        return boxes, center[:, :, None] + offset.unflatten(2, (5, 2))


class DeviceRetinaFaceHead(RetinaFaceHead, DeviceHead):
    """RetinaFace; see `RetinaFaceHead`."""

    def scores(self, outputs: Sequence[Tensor]) -> Tensor:
        """See `DeviceHead.scores`."""
        return outputs[self._scores][..., 1]

    def decode(self, outputs: Sequence[Tensor], index: Tensor, width: int, height: int) -> tuple[Tensor, Tensor | None]:
        """See `DeviceHead.decode`."""
        centers, sides = (table[index] for table in _priors(width, height, index.device))
        raw = _rows(outputs[self._boxes], index)
        center = centers + raw[..., :2] * float(CENTER_VARIANCE) * sides
        half = sides * torch.exp(raw[..., 2:] * float(SIZE_VARIANCE)) / 2
        offset = _rows(outputs[self._points], index).unflatten(2, (5, 2)) * float(CENTER_VARIANCE)
        points = centers[:, :, None] + offset * sides[:, :, None]
        return torch.cat([center - half, center + half], dim=2), points


HEADS: dict[str, type[DeviceScrfdHead | DeviceRetinaFaceHead]] = {
    "scrfd": DeviceScrfdHead,
    "retinaface": DeviceRetinaFaceHead,
}
"""Heads by the `family` of a manifest; others are read on the host."""


def why_not(spec: DetectorSpec, sizes: Sequence[int | str]) -> str:
    """Why a detector's outputs cannot be read and settled here, in words; empty: they can."""
    if spec.family not in HEADS:
        return f"heads of {spec.family} are read on the host"
    if spec.fit == "tight" or any(isinstance(size, str) for size in sizes):
        return "detector inputs are of as many sizes as pictures"
    return ""


def strongest(scores: Tensor, count: int) -> Tensor:
    """(n, count) int64: places of the highest scores, falling; of equal ones the first, as a stable sort has it.

    Args:
        scores: (n, cells) float32; what is below 0 counts as 0.
        count: At most cells.
    """
    # For positive floats the order of the bits is the order of the numbers; the place makes every key different.
    bits = scores.to(torch.float32).clamp(min=0).view(torch.int32).to(torch.int64)
    last = scores.shape[1] - 1
    place = torch.arange(last, -1, -1, device=scores.device)
    return last - (torch.topk((bits << 32) | place, count, dim=1).values & 0xFFFFFFFF)


def settle(parts: Sequence[tuple[DeviceCandidates, Tensor]], frames: Tensor, select: Selection) -> DeviceDetections:
    """Turn the candidates of every picture, from all its inputs, into its faces, as `detector.settle`.

    Args:
        parts: Candidates and (n, 2) float32 input pixels per pixel of the original, x and y.
        frames: (n, 2) float32 width and height of the originals.
        select: What to keep.
    """
    boxes = torch.cat([each.boxes / scale.repeat(1, 2)[:, None] for each, scale in parts], dim=1)
    points = [each.landmarks / scale[:, None, None] for each, scale in parts if each.landmarks is not None]
    landmarks = torch.cat(points, dim=1) if len(points) == len(parts) else None
    scores = torch.cat([each.scores for each, _ in parts], dim=1)
    valid = torch.cat([each.valid for each, _ in parts], dim=1)
    if len(parts) > 1:
        scores, order = torch.sort(scores, dim=1, descending=True, stable=True)
        boxes, valid = _rows(boxes, order), valid.gather(1, order)
        landmarks = None if landmarks is None else _rows(landmarks.flatten(2), order).unflatten(2, (5, 2))
    x1, y1, x2, y2 = boxes.unbind(-1)
    width, height = frames[:, :1], frames[:, 1:]
    valid = valid & (x2 > x1) & (y2 > y1) & (x2 > 0) & (y2 > 0) & (x1 < width) & (y1 < height)
    valid = valid & torch.isfinite(boxes).all(dim=2) & (torch.minimum(x2 - x1, y2 - y1) >= select.min_face_px)
    kept = nms(boxes, valid, select.nms)
    scores = scores.clamp(0, 1)
    order = torch.sort(torch.where(kept, _key(boxes, frames, select.order), torch.inf), dim=1, stable=True).indices
    counts = kept.sum(dim=1)
    if select.max_faces:
        order, counts = order[:, : select.max_faces], counts.clamp(max=select.max_faces)
    return DeviceDetections(
        _rows(boxes, order),
        None if landmarks is None else _rows(landmarks.flatten(2), order).unflatten(2, (5, 2)),
        scores.gather(1, order),
        counts,
        torch.stack([each.best_rejected for each, _ in parts]).amax(dim=0),
        torch.stack([each.more for each, _ in parts]).any(dim=0),
        torch.stack([each.finite for each, _ in parts]).all(dim=0),
    )


def _key(boxes: Tensor, frames: Tensor, order: str) -> Tensor:
    """(n, k) float32: what faces are ordered by, rising; they come by falling score."""
    if order == "area":
        return -(boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])
    if order == "center":
        away = (boxes[..., :2] + boxes[..., 2:]) / 2 - frames[:, None] / 2
        return torch.hypot(away[..., 0], away[..., 1])
    return torch.zeros(boxes.shape[:2], device=boxes.device)


def _rows(values: Tensor, index: Tensor) -> Tensor:
    """(n, k, c) rows of (n, cells, c) at (n, k)."""
    return values.gather(1, index[:, :, None].expand(-1, -1, values.shape[2]))


@cache  # for good: recorded work goes on reading it
def _cells(
    width: int, height: int, strides: tuple[int, ...], anchors: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Corners (cells, 2) and strides (cells, 1) of all cells."""
    corners = [torch.from_numpy(grid(width, height, stride, anchors).copy()) for stride in strides]
    steps = [torch.full((len(each), 1), float(stride)) for each, stride in zip(corners, strides, strict=True)]
    return torch.cat(corners).to(device), torch.cat(steps).to(device)


@cache
def _priors(width: int, height: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Centers (cells, 2) and sides (cells, 1)."""
    centers, sides = (torch.from_numpy(each.copy()).to(device) for each in priors(width, height))
    return centers, sides
