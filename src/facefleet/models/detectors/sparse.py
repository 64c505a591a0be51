"""SCRFD without its last convolutions: they are computed here, where the scores say that there may be a face.

The same numbers as of the whole network, in fp32 whatever the network runs in: nothing is rounded on the way out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from facefleet.models.detectors.base import Candidates, DetectorHead
from facefleet.types import F32Array

_NEAR = 0.25
"""Logits below the threshold's by less are computed anew: in bf16 the network's are rounded."""
_AT_ONCE = 1 << 18
"""Products of one multiplication; more would wake the threads of the linear algebra library."""


@dataclass(frozen=True, slots=True)
class LastLayer:
    """The last convolution of one stride.

    Attributes:
        stride: Input pixels a cell.
        weight: (side * side * channels, anchors * values) float32; the values are a score, a box, perhaps landmarks.
        bias: (anchors * values,) float32.
        side: Of its kernel.
        channels: It reads.
    """

    stride: int
    weight: F32Array
    bias: F32Array
    side: int
    channels: int

    @classmethod
    def of(cls, weight: F32Array, bias: F32Array, stride: int, anchors: int) -> Self:
        """From a joined convolution: all scores, then all boxes, then all landmarks."""
        outputs, channels, side, _ = weight.shape
        order = _by_anchor(outputs, anchors)
        columns = weight.transpose(0, 2, 3, 1).reshape(outputs, -1)[order].T
        return cls(stride, np.ascontiguousarray(columns), bias[order], side, channels)

    def values(self, features: F32Array, rows: NDArray[np.intp], columns: NDArray[np.intp]) -> F32Array:
        """(m, anchors * values) float32 at m cells of (h, w, c) features."""
        half = self.side // 2
        height, width, channels = features.shape
        beside = np.arange(-half, half + 1)
        if half and (min(rows.min(), columns.min()) < half or _reaches(rows, height, half, columns, width)):
            y, x = rows[:, None, None] + beside[:, None], columns[:, None, None] + beside
            beyond = ((y < 0) | (y >= height) | (x < 0) | (x >= width)).reshape(len(rows), -1)
            cells = (y.clip(0, height - 1) * width + x.clip(0, width - 1)).reshape(len(rows), -1)
            patches = features.reshape(-1, channels)[cells]
            patches[beyond] = 0
        else:
            cells = (rows * width + columns)[:, None] + (beside[:, None] * width + beside).reshape(-1)
            patches = features.reshape(-1, channels).take(cells, axis=0)
        patches = patches.reshape(len(rows), -1)
        step = max(1, _AT_ONCE // self.weight.size)
        if len(patches) <= step:
            return np.asarray(patches @ self.weight + self.bias)
        parts = [patches[at : at + step] @ self.weight for at in range(0, len(patches), step)]
        return np.asarray(np.concatenate(parts) + self.bias)


def _reaches(rows: NDArray[np.intp], height: int, half: int, columns: NDArray[np.intp], width: int) -> bool:
    return bool(rows.max() >= height - half or columns.max() >= width - half)


def _by_anchor(outputs: int, anchors: int) -> NDArray[np.intp]:
    """(outputs,) places of each anchor's score, box and landmarks, anchor by anchor, among the outputs."""
    parts, start = [], 0
    for width in (1, 4, 10)[: 3 if outputs == 15 * anchors else 2]:
        parts.append(start + np.arange(anchors * width).reshape(anchors, width))
        start += anchors * width
    return np.concatenate(parts, axis=1).reshape(-1)


class SparseHead(DetectorHead):
    """Reads logits and features of all strides; see `DetectorHead`.

    Args:
        layers: By rising stride.
        anchors: Candidates a cell.
        before: Names of the layers that lead to `layers` alone.

    Attributes:
        before: As given. In fp32 they take next to no time, and faces come out much nearer to those of fp32 than if
            all of the network were in bf16.
    """

    def __init__(self, layers: Sequence[LastLayer], anchors: int, before: Iterable[str] = ()) -> None:
        self._layers, self._anchors = tuple(layers), anchors
        self.before = frozenset(before)
        self._strides = tuple(layer.stride for layer in layers)

    # With layers in fp32 behind the neck, scores and landmarks are nearer to those of fp32.
    surer, tie = 0.05, 0.0

    @property
    def passed_on(self) -> frozenset[str]:
        """Features: what is wrong with them shows in the logits."""
        return frozenset(f"features_{level}" for level in range(len(self._layers)))

    def save(self, file: Path) -> None:
        """Write it; `load` reads it."""
        with file.open("wb") as opened:
            np.savez(
                opened,
                anchors=self._anchors,
                before=np.array(sorted(self.before), np.str_),
                strides=[layer.stride for layer in self._layers],
                sides=[layer.side for layer in self._layers],
                **{f"weight_{i}": layer.weight for i, layer in enumerate(self._layers)},  # type: ignore[arg-type]
                **{f"bias_{i}": layer.bias for i, layer in enumerate(self._layers)},  # type: ignore[arg-type]
            )

    @classmethod
    def load(cls, file: Path) -> Self:
        """Read what `save` wrote."""
        with np.load(file) as found:
            layers = []
            for level, (stride, side) in enumerate(zip(found["strides"], found["sides"], strict=True)):
                weight = found[f"weight_{level}"]
                channels = len(weight) // int(side) ** 2
                layers.append(LastLayer(int(stride), weight, found[f"bias_{level}"], int(side), channels))
            return cls(layers, int(found["anchors"]), found["before"].tolist())

    def candidates(
        self, outputs: Sequence[F32Array], row: int, width: int, height: int, threshold: float
    ) -> Candidates:
        """See `DetectorHead.candidates`."""
        logits = outputs[0][row]
        near = np.flatnonzero(logits > _logit(threshold) - _NEAR)
        rest = logits.copy()
        rest[near] = -np.inf
        rejected = float(_sigmoid(rest.max(keepdims=True))[0])
        starts, columns = _cells(width, height, self._strides, self._anchors)
        bounds = near.searchsorted(starts).tolist()
        parts, where = [], []
        for level, layer in enumerate(self._layers):
            start, end = bounds[level : level + 2]
            if start == end:
                continue
            place, anchor = np.divmod(near[start:end] - starts[level], self._anchors)
            y, x = np.divmod(place, columns[level])
            values = layer.values(outputs[1 + level][row], y, x).reshape(end - start, self._anchors, -1)
            parts.append(values[np.arange(end - start), anchor])
            where.append(np.array([x, y, np.full(end - start, 1)], np.float32) * np.float32(layer.stride))
        if not parts:
            parts, where = [np.empty((0, len(self._layers[0].bias) // self._anchors), np.float32)], [_NOWHERE]
        return _decoded(np.concatenate(parts), np.concatenate(where, axis=1), threshold, rejected)


def _decoded(values: F32Array, where: F32Array, threshold: float, rejected: float) -> Candidates:
    """Candidates of (m, 5 or 15) values at cells with the corners and strides `where`, (3, m), in pixels."""
    scores = _sigmoid(values[:, 0])
    above = scores > threshold
    if not above.all():
        rejected = max(rejected, float(scores[~above].max()))
        values, where, scores = values[above], where[:, above], scores[above]
    stride = where[2][:, None]
    x, y = where[0][:, None], where[1][:, None]
    moved = values[:, 1:] * stride
    boxes = np.concatenate([x - moved[:, :1], y - moved[:, 1:2], x + moved[:, 2:3], y + moved[:, 3:4]], axis=1)
    points = None
    if values.shape[1] > 5:
        points = moved[:, 4:].reshape(-1, 5, 2) + where[:2].T[:, None]
    return Candidates(boxes, points, scores, rejected)


_NOWHERE = np.empty((3, 0), np.float32)


def _sigmoid(values: F32Array) -> F32Array:
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-values)), np.float32)


@lru_cache(maxsize=64)
def _logit(probability: float) -> float:
    if not 0 < probability < 1:
        return -np.inf if probability <= 0 else np.inf
    return float(np.log(probability / (1 - probability)))


@lru_cache(maxsize=256)
def _cells(width: int, height: int, strides: tuple[int, ...], anchors: int) -> tuple[NDArray[np.intp], tuple[int, ...]]:
    """Where the cells of each stride start among the logits, and where the last end; and the columns of each stride."""
    counts = [-(-height // stride) * -(-width // stride) * anchors for stride in strides]
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.intp)
    return starts, tuple(-(-width // stride) for stride in strides)
