"""ONNX operators as functions of tensors.

Owns one factory an operator: from a node's attributes to a function of its inputs, as the ONNX operator specification
(https://onnx.ai/onnx/operators/) defines them for two spatial dimensions. Shapes, and what is computed of them, are
plain numbers and lists of numbers, never tensors, so that a compiler sees constants. Refuses attributes that no
network of faces uses, by name.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F  # noqa: N812  # its usual name
from torch import Tensor

from facefleet.errors import GraphError

Attributes: TypeAlias = dict[str, Any]
Function: TypeAlias = Callable[..., Any]
Factory: TypeAlias = Callable[[Attributes, int], Function]


def _conv(attributes: Attributes, opset: int) -> Function:
    del opset
    stride, dilation = tuple(attributes.get("strides", (1, 1))), tuple(attributes.get("dilations", (1, 1)))
    groups, pads = int(attributes.get("group", 1)), _pads(attributes)

    def conv(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        x, padding = _padded(x, pads, 0.0)
        return F.conv2d(x, weight, bias, stride, padding, dilation, groups)

    return conv


def _pads(attributes: Attributes) -> tuple[int, int, int, int]:
    """(top, left, bottom, right)."""
    auto = attributes.get("auto_pad", b"NOTSET")
    if auto not in (b"NOTSET", b"VALID"):
        raise GraphError(f"auto_pad {auto.decode()} is not supported", hint="export with explicit pads")
    return tuple(attributes.get("pads", (0, 0, 0, 0)))


def _padded(x: Tensor, pads: tuple[int, int, int, int], value: float) -> tuple[Tensor, tuple[int, int]]:
    """Even pads are left to the operator; uneven ones are made here."""
    top, left, bottom, right = pads
    if top == bottom and left == right:
        return x, (top, left)
    return F.pad(x, (left, right, top, bottom), value=value), (0, 0)


def _max_pool(attributes: Attributes, opset: int) -> Function:
    del opset
    kernel, pads = tuple(attributes["kernel_shape"]), _pads(attributes)
    stride, ceil = tuple(attributes.get("strides", (1, 1))), bool(attributes.get("ceil_mode", 0))
    dilation = tuple(attributes.get("dilations", (1, 1)))

    def max_pool(x: Tensor) -> Tensor:
        x, padding = _padded(x, pads, -math.inf)
        return F.max_pool2d(x, kernel, stride, padding, dilation, ceil)

    return max_pool


def _average_pool(attributes: Attributes, opset: int) -> Function:
    del opset
    kernel, pads = tuple(attributes["kernel_shape"]), _pads(attributes)
    stride, ceil = tuple(attributes.get("strides", (1, 1))), bool(attributes.get("ceil_mode", 0))
    counted = bool(attributes.get("count_include_pad", 0))
    if pads[:2] != pads[2:] and not counted:
        raise GraphError("AveragePool with uneven pads is not supported", hint="export with even pads")

    def average_pool(x: Tensor) -> Tensor:
        x, padding = _padded(x, pads, 0.0)
        return F.avg_pool2d(x, kernel, stride, padding, ceil, counted)

    return average_pool


def _batch_norm(attributes: Attributes, opset: int) -> Function:
    del opset
    epsilon = float(attributes.get("epsilon", 1e-5))

    def batch_norm(x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        return F.batch_norm(x, mean, variance, scale, bias, False, 0.0, epsilon)

    return batch_norm


def _prelu(attributes: Attributes, opset: int) -> Function:
    del attributes, opset

    def prelu(x: Tensor, slope: Tensor) -> Tensor:
        return F.prelu(x, slope.reshape(-1))

    return prelu


def _clip(attributes: Attributes, opset: int) -> Function:
    del opset
    fixed = attributes.get("min"), attributes.get("max")

    def clip(x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
        if low is None and high is None:
            return x if fixed == (None, None) else torch.clamp(x, *fixed)
        return torch.clamp(x, low, high)

    return clip


def _gemm(attributes: Attributes, opset: int) -> Function:
    del opset
    alpha, beta = float(attributes.get("alpha", 1.0)), float(attributes.get("beta", 1.0))
    turn_a, turn_b = bool(attributes.get("transA", 0)), bool(attributes.get("transB", 0))

    def gemm(a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
        product = (a.t() if turn_a else a) @ (b.t() if turn_b else b)
        product = product if alpha == 1 else product * alpha
        return product if c is None else product + (c if beta == 1 else c * beta)

    return gemm


def _reshape(attributes: Attributes, opset: int) -> Function:
    del opset
    if attributes.get("allowzero", 0):
        raise GraphError("Reshape with allowzero is not supported", hint="export without it")

    def reshape(x: Tensor, shape: Sequence[int]) -> Tensor:
        return x.reshape([x.shape[i] if size == 0 else size for i, size in enumerate(shape)])

    return reshape


def _transpose(attributes: Attributes, opset: int) -> Function:
    del opset
    order = attributes.get("perm")
    return lambda x: x.permute(list(order) if order is not None else list(range(x.ndim))[::-1])


def _flatten(attributes: Attributes, opset: int) -> Function:
    del opset
    axis = int(attributes.get("axis", 1))
    return lambda x: x.reshape(math.prod(x.shape[:axis]), -1) if axis != 1 else x.flatten(1)


def _resize(attributes: Attributes, opset: int) -> Function:
    del opset
    mode = attributes.get("mode", b"nearest").decode()
    centers = attributes.get("coordinate_transformation_mode", b"half_pixel").decode()
    if mode not in ("nearest", "linear"):
        raise GraphError(f"Resize in mode {mode} is not supported", hint="export with nearest or linear")

    def resize(x: Tensor, *rest: Sequence[Any] | None) -> Tensor:
        scales = rest[1] if len(rest) > 1 else rest[0] if rest else None
        sizes = rest[2] if len(rest) > 2 else None
        if sizes is not None:
            target = [int(size) for size in sizes][2:]
        else:
            assert scales is not None
            target = [int(side * float(scale)) for side, scale in zip(x.shape[2:], list(scales)[2:], strict=True)]
        if mode == "linear":
            return F.interpolate(x, target, mode="bilinear", align_corners=centers == "align_corners")
        return F.interpolate(x, target, mode="nearest")

    return resize


def _upsample(attributes: Attributes, opset: int) -> Function:
    resize = _resize(attributes, opset)
    fixed = attributes.get("scales")
    return lambda x, scales=None: resize(x, None, fixed if scales is None else scales)


def _softmax(attributes: Attributes, opset: int) -> Function:
    axis = int(attributes.get("axis", -1 if opset >= 13 else 1))

    def softmax(x: Tensor) -> Tensor:
        if opset >= 13 or axis in (-1, x.ndim - 1):
            return F.softmax(x, axis)
        return F.softmax(x.flatten(axis), -1).reshape(x.shape)  # before opset 13 the rest counted as one axis

    return softmax


def _split(attributes: Attributes, opset: int) -> Function:
    del opset
    axis, fixed = int(attributes.get("axis", 0)), attributes.get("split")
    count = attributes.get("num_outputs")

    def split(x: Tensor, sizes: Sequence[int] | None = None) -> tuple[Tensor, ...]:
        wanted = fixed if sizes is None else sizes
        if wanted is None:
            return tuple(torch.split(x, -(-x.shape[axis] // int(count or 2)), axis))
        return tuple(torch.split(x, list(wanted), axis))

    return split


def _slice(attributes: Attributes, opset: int) -> Function:
    del opset
    fixed = {key: attributes.get(key) for key in ("starts", "ends", "axes")}

    def cut(x: Tensor | list[int], *bounds: Sequence[int] | None) -> Tensor | list[int]:
        given = [None if bound is None else list(bound) for bound in bounds]
        starts, ends, axes, steps = (given + [None] * 4)[:4]
        starts, ends, axes = starts or fixed["starts"], ends or fixed["ends"], axes or fixed["axes"]
        assert starts is not None
        assert ends is not None
        if isinstance(x, list):
            return x[starts[0] : ends[0]]
        for i, axis in enumerate(axes or range(len(starts))):
            step = steps[i] if steps else 1
            if step < 0:
                raise GraphError("Slice with a negative step is not supported", hint="export without it")
            end = min(ends[i], x.shape[axis]) if ends[i] >= 0 else ends[i] + x.shape[axis]
            x = x[(slice(None),) * (axis % x.ndim) + (slice(starts[i], end, step),)]
        return x

    return cut


def _gather(attributes: Attributes, opset: int) -> Function:
    del opset
    axis = int(attributes.get("axis", 0))

    def gather(x: Tensor | list[int], index: Tensor | int | list[int]) -> Tensor | int | list[int]:
        if isinstance(x, list):
            return x[index] if isinstance(index, int) else [x[int(i)] for i in index]
        places = torch.as_tensor(index, device=x.device)
        flat = torch.where(places < 0, places + x.shape[axis], places).reshape(-1)
        found = torch.index_select(x, axis, flat)
        return found.reshape(*x.shape[: axis % x.ndim], *places.shape, *x.shape[axis % x.ndim + 1 :])

    return gather


def _axes_of(attributes: Attributes, axes: Sequence[int] | None) -> list[int]:
    given = attributes.get("axes") if axes is None else axes
    return [int(axis) for axis in given] if given is not None else []


def _unsqueeze(attributes: Attributes, opset: int) -> Function:
    del opset

    def unsqueeze(x: Tensor | int, axes: Sequence[int] | None = None) -> Tensor | list[int]:
        if isinstance(x, int):
            return [x]
        for axis in sorted(_axes_of(attributes, axes)):
            x = x.unsqueeze(axis)
        return x

    return unsqueeze


def _squeeze(attributes: Attributes, opset: int) -> Function:
    del opset

    def squeeze(x: Tensor | list[int], axes: Sequence[int] | None = None) -> Tensor | int:
        if isinstance(x, list):
            return x[0]
        wanted = _axes_of(attributes, axes)
        return x.squeeze(tuple(wanted)) if wanted else x.squeeze()

    return squeeze


def _reduce(function: Function) -> Factory:
    def factory(attributes: Attributes, opset: int) -> Function:
        del opset
        keep = bool(attributes.get("keepdims", 1))

        def reduce(x: Tensor, axes: Sequence[int] | None = None) -> Tensor:
            return function(x, tuple(_axes_of(attributes, axes) or range(x.ndim)), keep)

        return reduce

    return factory


_TYPES = {
    1: torch.float32,
    6: torch.int32,
    7: torch.int64,
    9: torch.bool,
    10: torch.float16,
    11: torch.float64,
    16: torch.bfloat16,
}


def _cast(attributes: Attributes, opset: int) -> Function:
    del opset
    target = _TYPES[int(attributes["to"])]
    return lambda x: x.to(target) if isinstance(x, Tensor) else x


def _concat(attributes: Attributes, opset: int) -> Function:
    del opset
    axis = int(attributes["axis"])

    def concat(*parts: Tensor | list[int]) -> Tensor | list[int]:
        if all(isinstance(part, list) for part in parts):
            return [size for part in parts for size in part]
        return torch.cat([torch.as_tensor(part) for part in parts], axis)

    return concat


def _leaky_relu(attributes: Attributes, opset: int) -> Function:
    del opset
    slope = float(attributes.get("alpha", 0.01))
    return lambda x: F.leaky_relu(x, slope)


Number: TypeAlias = Tensor | float | list[int]


def _each(function: Callable[[Any, Any], Any]) -> Function:
    """An elementwise operator for tensors, and for shapes of equal length."""

    def apply(a: Number, b: Number) -> Number:
        if isinstance(a, list):
            return [function(x, y) for x, y in zip(a, b if isinstance(b, list) else [b] * len(a), strict=True)]
        if isinstance(b, list):
            return [function(a, y) for y in b]
        return function(a, b)

    return apply


def _quotient(a: Any, b: Any) -> Any:  # noqa: ANN401  # numbers or tensors
    whole = [not x.is_floating_point() if isinstance(x, Tensor) else isinstance(x, int) for x in (a, b)]
    if not all(whole):
        return a / b
    return torch.div(a, b, rounding_mode="trunc") if isinstance(a, Tensor) else int(a / b)


def _plain(function: Function) -> Factory:
    def factory(attributes: Attributes, opset: int) -> Function:
        del attributes, opset
        return function

    return factory


FACTORIES: dict[str, Factory] = {
    "Abs": _plain(torch.abs),
    "Add": _plain(_each(operator.add)),
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Cast": _cast,
    "Clip": _clip,
    "Concat": _concat,
    "Conv": _conv,
    "Div": _plain(_each(_quotient)),
    "Dropout": _plain(lambda x, *_: x),
    "Exp": _plain(torch.exp),
    "Expand": _plain(lambda x, shape: x.expand(*torch.broadcast_shapes(x.shape, tuple(shape)))),
    "Flatten": _flatten,
    "Gather": _gather,
    "Gemm": _gemm,
    "GlobalAveragePool": _plain(lambda x: x.mean((2, 3), keepdim=True)),
    "HardSigmoid": lambda a, _: lambda x: torch.clamp(x * a.get("alpha", 0.2) + a.get("beta", 0.5), 0, 1),
    "HardSwish": _plain(F.hardswish),
    "Identity": _plain(lambda x: x),
    "LeakyRelu": _leaky_relu,
    "Log": _plain(torch.log),
    "MatMul": _plain(torch.matmul),
    "MaxPool": _max_pool,
    "Mul": _plain(_each(operator.mul)),
    "Neg": _plain(torch.neg),
    "PRelu": _prelu,
    "Pow": _plain(torch.pow),
    "ReduceL2": _reduce(lambda x, axes, keep: torch.linalg.vector_norm(x, 2, axes, keep)),
    "ReduceMean": _reduce(lambda x, axes, keep: x.mean(axes, keep)),
    "ReduceSum": _reduce(lambda x, axes, keep: x.sum(axes, keep)),
    "Relu": _plain(F.relu),
    "Reshape": _reshape,
    "Resize": _resize,
    "Shape": _plain(lambda x: list(x.shape)),
    "Sigmoid": _plain(torch.sigmoid),
    "Slice": _slice,
    "Softmax": _softmax,
    "Split": _split,
    "Sqrt": _plain(torch.sqrt),
    "Squeeze": _squeeze,
    "Sub": _plain(_each(operator.sub)),
    "Tanh": _plain(torch.tanh),
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Upsample": _upsample,
}
"""Every operator that the importer knows."""
