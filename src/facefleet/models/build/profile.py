"""Profiles: the least, the usual and the largest input that an engine is built for.

Owns their rules and the estimate of the memory they take. Pure; reads graphs, runs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import ModelProto, helper, shape_inference

from facefleet.backends.base import ProfileShapes
from facefleet.errors import ProfileError
from facefleet.models.build.graph import dims

_MAX_BATCH, _MAX_SIDE_PX = 4096, 16384


@dataclass(frozen=True, slots=True)
class Span:
    """One dimension of a profile.

    Attributes:
        min: Least size.
        opt: The size that is tuned for.
        max: Largest size.
    """

    min: int
    opt: int
    max: int

    def __str__(self) -> str:
        return str(self.min) if self.min == self.max else f"{self.min}/{self.opt}/{self.max}"

    def __contains__(self, size: int) -> bool:
        return self.min <= size <= self.max


@dataclass(frozen=True, slots=True)
class Profile:
    """The inputs of one engine profile, (batch, 3, height, width).

    Attributes:
        batch: Pictures in a batch.
        height: Rows in pixels.
        width: Columns in pixels.

    Raises:
        ProfileError: A dimension is not min <= opt <= max, or out of bounds; it says which, and what would be right.
    """

    batch: Span
    height: Span
    width: Span

    def __post_init__(self) -> None:
        for name, span, most in (
            ("batch", self.batch, _MAX_BATCH),
            ("height", self.height, _MAX_SIDE_PX),
            ("width", self.width, _MAX_SIDE_PX),
        ):
            right = sorted((span.min, span.opt, span.max))
            if [span.min, span.opt, span.max] != right:
                raise ProfileError(
                    f"profile: {name} has min {span.min}, opt {span.opt}, max {span.max}",
                    hint=f"min <= opt <= max must hold, e.g. {right[0]}, {right[1]}, {right[2]}",
                )
            if span.min < 1 or span.max > most:
                raise ProfileError(f"profile: {name} {span} is out of bounds", hint=f"use 1 to {most}")

    def shapes(self) -> ProfileShapes:
        """(min, opt, max) NCHW shapes."""
        height, width = self.height, self.width
        return (
            (self.batch.min, 3, height.min, width.min),
            (self.batch.opt, 3, height.opt, width.opt),
            (self.batch.max, 3, height.max, width.max),
        )

    def pictures(self) -> ProfileShapes:
        """(min, opt, max) NHWC shapes of uint8 pictures."""
        least, usual, most = ((n, height, width, 3) for n, _, height, width in self.shapes())
        return least, usual, most

    def admits(self, shape: tuple[int, int, int]) -> bool:
        """Whether (batch, height, width) lies inside."""
        return shape[0] in self.batch and shape[1] in self.height and shape[2] in self.width

    def to_json(self) -> dict[str, list[int]]:
        """Plain values: name -> [min, opt, max]."""
        return {
            name: [span.min, span.opt, span.max]
            for name, span in (("batch", self.batch), ("height", self.height), ("width", self.width))
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Profile:
        """The inverse of `to_json`."""
        return cls(*(Span(*content[name]) for name in ("batch", "height", "width")))


ANY_PROFILE = Profile(Span(1, 1, _MAX_BATCH), Span(1, 1, _MAX_SIDE_PX), Span(1, 1, _MAX_SIDE_PX))
"""Everything that a profile may be."""


def parse_span(text: str, *, what: str) -> Span:
    """A dimension as people write it: ``640``, ``320..1280`` or ``320..640..1280``.

    Raises:
        ProfileError: It is written otherwise.
    """
    try:
        numbers = [int(part) for part in text.split("..")]
    except ValueError:
        numbers = []
    if len(numbers) == 1:
        return Span(numbers[0], numbers[0], numbers[0])
    if len(numbers) == 2:
        return Span(numbers[0], numbers[1], numbers[1])
    if len(numbers) == 3:
        return Span(numbers[0], numbers[1], numbers[2])
    raise ProfileError(f"{what} {text!r}", hint="write 640, 320..1280, or min..opt..max as 320..640..1280")


def parse_sizes(text: str, *, what: str) -> tuple[Span, Span]:
    """Height and width as people write them: ``320..1280`` for both, or ``480x640``, each as `parse_span` reads it.

    Raises:
        ProfileError: It is written otherwise.
    """
    height, separator, width = text.partition("x")
    return parse_span(height, what=f"{what}: height"), parse_span(width if separator else height, what=f"{what}: width")


def parse_profile(text: str, sizes: tuple[Span, Span]) -> Profile:
    """A profile as people write it: ``MIN:OPT:MAX`` batches, and ``@SIZE`` where it has sizes of its own.

    Args:
        text: E.g. ``1:8:16`` or ``32:64:64@640``.
        sizes: Height and width where it says none.

    Raises:
        ProfileError: It is written otherwise, or contradicts itself.
    """
    batches, _, size = text.partition("@")
    try:
        least, usual, most = (int(number) for number in batches.split(":"))
    except ValueError:
        raise ProfileError(f"--profile {text!r}", hint="write MIN:OPT:MAX, e.g. 1:8:16 or 32:64:64@640") from None
    try:
        return Profile(Span(least, usual, most), *(parse_sizes(size, what="size") if size else sizes))
    except ProfileError as error:
        raise ProfileError(f"--profile {text!r}: {error.message}", hint=error.hint) from None


def check_profiles(model: ModelProto, profiles: Sequence[Profile], *, stride: int = 1) -> None:
    """Hold profiles against a graph; as `check_profile`, and every one must be another.

    Raises:
        ProfileError: As `check_profile`; of several it says which.
    """
    for number, profile in enumerate(profiles):
        try:
            check_profile(model, profile, stride=stride)
            if profile in profiles[:number]:
                raise ProfileError(f"profile: it is the same as number {profiles.index(profile)}", hint="give it once")
        except ProfileError as error:
            if len(profiles) == 1:
                raise
            raise ProfileError(f"number {number}, {error.message}", hint=error.hint) from None


def check_profile(model: ModelProto, profile: Profile, *, stride: int = 1) -> None:
    """Hold a profile against a graph.

    Args:
        model: A graph with one NCHW input.
        profile: What it is to be built for.
        stride: Sides must be multiples of this many pixels, where they are free.

    Raises:
        ProfileError: A fixed dimension contradicts the profile, or a side is no multiple of the stride.
    """
    shape = dims(model.graph.input[0])
    spans = {
        "batch": (shape[0], profile.batch),
        "height": (shape[2], profile.height),
        "width": (shape[3], profile.width),
    }
    for name, (dim, span) in spans.items():
        if isinstance(dim, int) and (span.min, span.max) != (dim, dim):
            raise ProfileError(
                f"profile: {name} is {span}, but the network's is fixed at {dim}",
                hint=f"use {dim}, or free the dimension with `facefleet convert`",
            )
        if name != "batch" and not isinstance(dim, int):
            for size in (span.min, span.opt, span.max):
                if size % stride:
                    low = size // stride * stride
                    raise ProfileError(
                        f"profile: {name} {size} is no multiple of the detector's stride of {stride} pixels",
                        hint=f"use {max(low, stride)} or {low + stride}",
                    )


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """What a profile takes, in bytes; an estimate from the graph, in float32.

    Attributes:
        weights_bytes: All weights.
        opt_bytes: Activations alive at a time, at most, for the usual input.
        max_bytes: The same for the largest input; this is what stays reserved.
    """

    weights_bytes: int
    opt_bytes: int
    max_bytes: int

    @property
    def wasted(self) -> float:
        """Share of the reserved activations that the usual input does not use, 0 to 1."""
        return 1 - self.opt_bytes / self.max_bytes if self.max_bytes else 0.0

    def summary(self) -> str:
        """One line; with a warning where more than three quarters of the largest input's memory lie idle."""
        mib = 1024 * 1024
        text = (
            f"memory: weights {self.weights_bytes / mib:.1f} MiB, activations {self.opt_bytes / mib:.1f} MiB at opt, "
            f"{self.max_bytes / mib:.1f} MiB reserved for max"
        )
        if self.wasted > 0.75:
            text += f"; warning: max wastes {self.wasted:.0%} of it at opt, lower max or raise opt"
        return text


def estimate_memory(model: ModelProto, profile: Profile) -> MemoryEstimate:
    """Estimate the memory of a profile from the shapes in the graph; zero where shapes cannot be inferred."""
    _, opt, largest = profile.shapes()
    weights = sum(int(np.prod(t.dims)) * 4 for t in model.graph.initializer)
    return MemoryEstimate(weights, _peak_bytes(model, opt), _peak_bytes(model, largest))


def at_shape(model: ModelProto, shape: tuple[int, ...]) -> ModelProto:
    """A copy with the input fixed at `shape` and every shape inferred as far as it goes."""
    fixed = ModelProto()
    fixed.CopyFrom(model)
    value = fixed.graph.input[0]
    element = value.type.tensor_type.elem_type
    value.CopyFrom(helper.make_tensor_value_info(value.name, element, list(shape)))
    for output in fixed.graph.output:
        output.type.tensor_type.ClearField("shape")
    del fixed.graph.value_info[:]
    try:
        return shape_inference.infer_shapes(fixed, data_prop=True)
    except Exception:  # inference is an aid: without it there is no estimate
        return fixed


def sizes_at(model: ModelProto, shape: tuple[int, ...]) -> dict[str, list[int | str]]:
    """Dimensions of every tensor for an input of `shape`."""
    fixed = at_shape(model, shape)
    values = (*fixed.graph.input, *fixed.graph.value_info, *fixed.graph.output)
    return {value.name: dims(value) for value in values}


def _peak_bytes(model: ModelProto, shape: tuple[int, ...]) -> int:
    """Most bytes of tensors that are needed at one time, in the order of the graph."""
    sizes = {
        name: int(np.prod([d for d in known if isinstance(d, int)])) * 4
        for name, known in sizes_at(model, shape).items()
        if all(isinstance(d, int) for d in known)
    }
    last = {name: position for position, node in enumerate(model.graph.node) for name in node.input}
    alive, peak = {model.graph.input[0].name}, 0
    kept = {value.name for value in model.graph.output}
    for position, node in enumerate(model.graph.node):
        alive.update(name for name in node.output if name in sizes)
        peak = max(peak, sum(sizes.get(name, 0) for name in alive))
        alive -= {name for name in alive if last.get(name, -1) <= position and name not in kept}
    return peak
