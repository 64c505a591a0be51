"""SCRFD without its last convolutions: they are computed here, where the scores say that there may be a face.

The same numbers as of the whole network, in fp32 whatever the network runs in: nothing is rounded on the way out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from facefleet.models.detectors.base import Candidates, DetectorHead, merge
from facefleet.types import F32Array

_NEAR = 0.25
"""Logits below the threshold's by less are computed anew: in bf16 the network's are rounded."""
_AT_ONCE = 16
"""Cells multiplied at once; more would wake the threads of the linear algebra library."""


@dataclass(frozen=True, slots=True)
class LastLayer:
    """The last convolution of one stride.

    Attributes:
        stride: Input pixels a cell.
        weight: (anchors, side * side * channels, 1 + 4 or 1 + 4 + 10) float32: score, box, landmarks.
        bias: (anchors, 5 or 15) float32.
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
        rows = weight.transpose(0, 2, 3, 1).reshape(outputs, -1)[order]  # (anchors, values, side * side * channels)
        return cls(stride, np.ascontiguousarray(rows.transpose(0, 2, 1)), bias[order], side, channels)

    def values(self, features: F32Array, rows: NDArray[np.intp], columns: NDArray[np.intp], anchor: int) -> F32Array:
        """(m, 5 or 15) float32 of one anchor at m cells of (h, w, c) features."""
        half = self.side // 2
        height, width = features.shape[:2]
        steps = np.arange(-half, half + 1)
        y, x = rows[:, None, None] + steps[:, None], columns[:, None, None] + steps
        beyond = (y < 0) | (y >= height) | (x < 0) | (x >= width)
        patches = features[np.minimum(np.maximum(y, 0), height - 1), np.minimum(np.maximum(x, 0), width - 1)]
        patches[beyond] = 0
        patches = patches.reshape(len(rows), -1)
        weight, bias = self.weight[anchor], self.bias[anchor]
        parts = [patches[at : at + _AT_ONCE] @ weight for at in range(0, len(patches), _AT_ONCE)]
        return np.asarray((parts[0] if len(parts) == 1 else np.concatenate(parts)) + bias)


def _by_anchor(outputs: int, anchors: int) -> NDArray[np.intp]:
    """(anchors, values) places of each anchor's score, box and landmarks among the outputs."""
    parts, start = [], 0
    for width in (1, 4, 10)[: 3 if outputs == 15 * anchors else 2]:
        parts.append(start + np.arange(anchors * width).reshape(anchors, width))
        start += anchors * width
    return np.concatenate(parts, axis=1)


class SparseHead(DetectorHead):
    """Reads logits and features of all strides; see `DetectorHead`.

    Args:
        layers: By rising stride.
    """

    def __init__(self, layers: Sequence[LastLayer]) -> None:
        self._layers = tuple(layers)
        self._anchors = len(layers[0].bias)

    @property
    def passed_on(self) -> frozenset[str]:
        """Features: what is wrong with them shows in the logits."""
        return frozenset(f"features_{level}" for level in range(len(self._layers)))

    def save(self, file: Path) -> None:
        """Write it; `load` reads it."""
        with file.open("wb") as opened:
            np.savez(
                opened,
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
                channels = weight.shape[1] // int(side) ** 2
                layers.append(LastLayer(int(stride), weight, found[f"bias_{level}"], int(side), channels))
        return cls(layers)

    def candidates(
        self, outputs: Sequence[F32Array], row: int, width: int, height: int, threshold: float
    ) -> Candidates:
        """See `DetectorHead.candidates`."""
        logits = outputs[0][row]
        near = np.flatnonzero(logits > _logit(threshold) - _NEAR)
        rest = logits.copy()
        rest[near] = -np.inf
        rejected = _sigmoid(rest.max(keepdims=True))
        parts = [Candidates(_NO_BOX, _NO_POINTS if self._has_points else None, _NO_SCORE, float(rejected[0]))]
        starts = _starts(width, height, tuple(layer.stride for layer in self._layers), self._anchors)
        bounds = np.searchsorted(near, starts)
        for level, layer in enumerate(self._layers):
            if bounds[level] < bounds[level + 1]:
                cells = near[bounds[level] : bounds[level + 1]] - starts[level]
                parts.append(self._at(layer, outputs[1 + level][row], cells, width, threshold))
        return merge(parts)

    @property
    def _has_points(self) -> bool:
        return bool(self._layers[0].bias.shape[1] > 5)

    def _at(
        self, layer: LastLayer, features: F32Array, cells: NDArray[np.intp], width: int, threshold: float
    ) -> Candidates:
        """The candidates among some cells of a stride, counted with their anchors."""
        place, anchor = np.divmod(cells, self._anchors)
        y, x = np.divmod(place, -(-width // layer.stride))
        values = np.empty((len(cells), layer.bias.shape[1]), np.float32)
        for each in range(self._anchors):
            own = np.flatnonzero(anchor == each)
            if len(own):
                values[own] = layer.values(features, y[own], x[own], each)
        scores = _sigmoid(values[:, 0])
        above = scores > threshold
        rejected = float(scores[~above].max(initial=0.0))
        values, scores = values[above], scores[above]
        center = np.stack([x, y], axis=1)[above].astype(np.float32) * layer.stride
        distance = values[:, 1:5] * np.float32(layer.stride)
        boxes = np.concatenate([center - distance[:, :2], center + distance[:, 2:]], axis=1)
        points = None
        if self._has_points:
            points = center[:, None] + values[:, 5:].reshape(-1, 5, 2) * np.float32(layer.stride)
        return Candidates(boxes, points, scores, rejected)


_NO_BOX, _NO_POINTS, _NO_SCORE = (np.empty(shape, np.float32) for shape in ((0, 4), (0, 5, 2), (0,)))


def _sigmoid(values: F32Array) -> F32Array:
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-values)), np.float32)


def _logit(probability: float) -> float:
    if not 0 < probability < 1:
        return -np.inf if probability <= 0 else np.inf
    return float(np.log(probability / (1 - probability)))


@lru_cache(maxsize=256)
def _starts(width: int, height: int, strides: tuple[int, ...], anchors: int) -> NDArray[np.intp]:
    """Where the cells of each stride start among the logits, and where the last end."""
    counts = [-(-height // stride) * -(-width // stride) * anchors for stride in strides]
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.intp)
