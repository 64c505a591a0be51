"""Weights rounded to bf16 so that the errors of a layer cancel out, instead of each to its nearest.

A runtime that computes in bf16 rounds every weight to its nearest neighbor; the errors of a layer's weights then add up
the same way for every picture. Here each weight is rounded in turn, and what that does to the layer's output is taken
up by the weights that are not rounded yet, and at last by the bias, which stays in float32. What can take it up is
read from the inputs that the layer really gets. Costs nothing when the network runs. (Frantar, Ashkboos, Hoefler and
Alistarh, "GPTQ", 2023, section 3, for a floating-point grid.)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper

from facefleet.models.build.dynamic import session
from facefleet.models.build.graph import add_constant, attribute, bf16_bits, constants, prune
from facefleet.types import F32Array

_AT_ONCE, _PICTURES_AT_ONCE = 12, 4  # layers, and pictures, whose values are held at a time
_COLUMNS = 64  # weights that are rounded before the others hear of it
_LARGEST = 2500  # inputs of one output; the work grows with the third power
_DAMPING = 1e-3  # of the mean variance: directions that the pictures hardly show stay as they are


class Rounder:
    """A network whose convolutions have weights that bf16 can hold, and versions of it with any layers as they were.

    Args:
        model: Float32 graph with one input.
        pictures: (n, 3, h, w) float32 network inputs that show what the layers get, e.g. of drawn faces.
        positions: Of each layer's input that are looked at.
    """

    def __init__(self, model: ModelProto, pictures: F32Array, *, positions: int = 8192) -> None:
        self._model = model
        known = constants(model.graph)
        rounded = [node for node in model.graph.node if _takes(node, known)]
        self._new: dict[str, tuple[F32Array, F32Array]] = {}
        given = _inputs_of(model, [node.input[0] for node in rounded])
        for start in range(0, len(rounded), _AT_ONCE):
            some = rounded[start : start + _AT_ONCE]
            seen = [_Moments(node, known[node.input[1]].shape) for node in some]
            for first in range(0, len(pictures), _PICTURES_AT_ONCE):
                part = pictures[first : first + _PICTURES_AT_ONCE]
                values = given(part, [node.input[0] for node in some])
                for moments, node in zip(seen, some, strict=True):
                    moments.add(values[node.input[0]], positions * len(part) // len(pictures))
            for moments, node in zip(seen, some, strict=True):
                weight = known[node.input[1]]
                bias = known[node.input[2]] if len(node.input) > 2 else np.zeros(len(weight), np.float32)
                self._new[node.output[0]] = _rounded(weight, bias, *moments.result())

    def rounded(self, high: frozenset[str] = frozenset()) -> ModelProto:
        """A copy with rounded weights and corrected biases, but for the layers called so.

        Very large layers are left as they are; the runtime rounds them, each weight to its nearest.
        """
        copy = ModelProto()
        copy.CopyFrom(self._model)
        for node in copy.graph.node:
            if node.output[0] in self._new and not {node.name, node.output[0]} & high:
                new = self._new[node.output[0]]
                names = [add_constant(copy.graph, f"{node.output[0]}_{i}_bf16", each) for i, each in enumerate(new)]
                del node.input[1:]
                node.input.extend(names)
        prune(copy.graph)
        return copy


def _takes(node: NodeProto, known: dict[str, NDArray[Any]]) -> bool:
    if node.op_type != "Conv" or not all(name in known for name in node.input[1:]):
        return False
    plain = attribute(node, "auto_pad", b"NOTSET") in (b"NOTSET", b"") and set(attribute(node, "dilations", [1])) == {1}
    weight = known[node.input[1]]
    return plain and weight.ndim == 4 and weight.dtype == np.float32 and int(np.prod(weight.shape[1:])) <= _LARGEST


def _inputs_of(model: ModelProto, names: list[str]) -> Any:  # noqa: ANN401  # pictures, names -> {name: values}
    """A function that runs the network and gives what stands at some of `names`."""
    shown = ModelProto()
    shown.CopyFrom(model)
    source = model.graph.input[0].name
    del shown.graph.output[:]
    inner = [name for name in dict.fromkeys(names) if name != source]
    shown.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in inner)
    runner = session(shown) if inner else None

    def given(pictures: F32Array, wanted: list[str]) -> dict[str, F32Array]:
        asked = [name for name in dict.fromkeys(wanted) if name != source]
        found = runner.run(asked, {source: pictures}) if runner is not None and asked else []
        return {source: pictures, **dict(zip(asked, found, strict=True))}

    return given


class _Moments:
    """Mean and covariance of what one output of a convolution is computed from, gathered over several batches."""

    def __init__(self, node: NodeProto, shape: tuple[int, ...]) -> None:
        _, self._inner, self._high, self._wide = shape
        self._groups = int(attribute(node, "group", 1))
        self._pads = attribute(node, "pads", [0, 0, 0, 0])
        self._strides = attribute(node, "strides", [1, 1])
        self._random = np.random.default_rng(0)
        self._count = 0
        self._shift: Any = None  # near the mean: products of large means would drown the variance
        self._sum: Any = 0.0
        self._products: Any = 0.0

    def add(self, values: F32Array, positions: int) -> None:
        """Look at some positions of a batch, (n, c, h, w)."""
        top, left, bottom, right = self._pads
        padded = np.pad(values, ((0, 0), (0, 0), (top, bottom), (left, right)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (self._high, self._wide), axis=(2, 3))
        windows = windows[:, :, :: self._strides[0], :: self._strides[1]]
        places = windows.shape[0] * windows.shape[2] * windows.shape[3]
        chosen = self._random.choice(places, min(positions, places), replace=False)
        n, y, x = np.unravel_index(chosen, (windows.shape[0], *windows.shape[2:4]))
        size = self._inner * self._high * self._wide
        taken = windows[n, :, y, x].reshape(len(chosen), self._groups, size).transpose(1, 0, 2)
        if self._shift is None:
            self._shift = taken.mean(axis=1, keepdims=True)
        near = np.ascontiguousarray(taken - self._shift)
        self._count += len(chosen)
        self._sum = self._sum + near.sum(axis=1, dtype=np.float64)
        self._products = self._products + (near.transpose(0, 2, 1) @ near).astype(np.float64)

    def result(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean (groups, k) and covariance (groups, k, k)."""
        mean = self._sum / self._count
        covariance = self._products / self._count - mean[:, :, None] * mean[:, None, :]
        return mean + self._shift[:, 0].astype(np.float64), covariance


def _rounded(
    weight: F32Array, bias: F32Array, means: NDArray[np.float64], covariances: NDArray[np.float64]
) -> tuple[F32Array, F32Array]:
    """Weights that bf16 can hold, and the bias that makes up for the mean of what they change."""
    new, moved = np.empty_like(weight), bias.astype(np.float64)
    per = len(weight) // len(means)
    for group, (mean, covariance) in enumerate(zip(means, covariances, strict=True)):
        rows = slice(group * per, (group + 1) * per)
        wanted = weight[rows].reshape(per, -1).astype(np.float64)
        got = _one_by_one(wanted, covariance, float(np.mean(mean**2)))
        new[rows] = got.reshape(weight[rows].shape)
        moved[rows] += (wanted - got) @ mean
    return new, moved.astype(np.float32)


def _one_by_one(wanted: NDArray[np.float64], covariance: NDArray[np.float64], power: float) -> NDArray[np.float64]:
    """(rows, k) weights rounded column by column, the column that varies most first."""
    order = np.argsort(-np.diag(covariance))
    damping = max(_DAMPING * float(np.mean(np.diag(covariance))), 1e-8 * power + 1e-12)
    ordered = covariance[np.ix_(order, order)] + damping * np.eye(len(order))
    upper = np.linalg.cholesky(np.linalg.inv(ordered)).T
    rest, out = wanted[:, order].copy(), np.empty_like(wanted)
    for start in range(0, len(order), _COLUMNS):
        end = min(start + _COLUMNS, len(order))
        errors = np.empty((len(rest), end - start))
        for column in range(start, end):
            out[:, order[column]] = nearest = _nearest(rest[:, column])
            error = (rest[:, column] - nearest) / upper[column, column]
            rest[:, column + 1 : end] -= np.outer(error, upper[column, column + 1 : end])
            errors[:, column - start] = error
        rest[:, end:] -= errors @ upper[start:end, end:]
    return out


def _nearest(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The nearest numbers that bf16 has."""
    bits = bf16_bits(values.astype(np.float32)).astype(np.uint32) << 16
    return np.asarray(bits.view(np.float32), np.float64)
