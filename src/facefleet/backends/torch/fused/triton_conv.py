"""Which Triton kernels a convolution can be run by, and how each is launched.

Owns the lists of tile sizes that are worth a try, and the scratch memory of split sums. Runs on the current stream.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from facefleet.backends.torch.fused.cudnn import Operands
from facefleet.backends.torch.fused.plan import Stem

Launch: TypeAlias = Callable[[], object]


@dataclass(frozen=True, slots=True, eq=False)
class KernelLaunch:
    """A kernel of ours with everything it is given.

    Attributes:
        kernel: What Triton made of the function.
        grid: Programs.
        arguments: Held, tensors among them.
        options: Constants it is compiled for.
    """

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    def __call__(self) -> None:
        """Launch on the current stream."""
        self.kernel[self.grid](*self.arguments, **self.options)

    def compiled(self) -> set[str]:
        """Compile if it has not been; Triton's hash of the result."""
        return {str(self.kernel.warmup(*self.arguments, grid=self.grid, **self.options).hash)}


@dataclass(frozen=True, slots=True, eq=False)
class LaunchPair:
    """Two launches, one after the other."""

    first: KernelLaunch
    second: KernelLaunch

    def __call__(self) -> None:
        """Launch both on the current stream."""
        self.first()
        self.second()

    def compiled(self) -> set[str]:
        """Of both."""
        return self.first.compiled() | self.second.compiled()


@dataclass(frozen=True, slots=True)
class Tiles:
    """How a kernel cuts the work.

    Attributes:
        kernel: ``gather``, ``rows``, ``stem`` or ``spread``, see `kernels`.
        pixels: Of a tile.
        channels: Of a tile.
        depth: Input channels of one tap that are multiplied at a time.
        split: Programs that share a tile's sum.
        swap: Whether channels are the rows of the matrix product.
        warps: Of a program.
        stages: Of the pipeline.
    """

    kernel: Literal["gather", "rows", "stem", "spread"]
    pixels: int
    channels: int
    depth: int
    split: int = 1
    swap: bool = False
    warps: int = 4
    stages: int = 4

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


_ROWS = (
    (128, 64, False, 4, 3),
    (128, 64, False, 4, 2),
    (128, 64, True, 4, 3),
    (256, 64, True, 8, 2),
    (256, 64, True, 8, 3),
    (128, 128, False, 8, 3),
    (128, 128, False, 4, 3),
    (256, 128, False, 8, 3),
    (64, 128, False, 4, 4),
)
_GATHER = (
    (32, 64, 4, True),
    (64, 32, 4, False),
    (64, 64, 4, False),
    (64, 128, 4, False),
    (128, 64, 4, False),
    (128, 128, 8, False),
    (128, 256, 8, False),
)
_PROCESSORS = 132


def candidates(operands: Operands, *, whole: bool) -> list[Tiles]:
    """Tiles worth a try, the most promising first.

    Args:
        operands: Of the convolution.
        whole: Whether `operands.x` is a whole map, border and all, as the kernel ``rows`` needs it.
    """
    count, height, width, outputs = operands.y.shape
    taps, inputs = operands.weight.shape[1] * operands.weight.shape[2], operands.weight.shape[3]
    found = []
    if whole and operands.stride == 1 and count * height * width >= 4096:
        found += [
            Tiles("rows", m, n, 64, swap=swap, warps=warps, stages=stages)
            for m, n, swap, warps, stages in _ROWS
            if outputs % n == 0 and inputs % 64 == 0
        ]
    for m, n, warps, swap in _GATHER:
        if outputs % n:
            continue
        tiles = math.ceil(count * height * width / m) * (outputs // n)
        for depth in (64, 128) if inputs % 64 == 0 else (32,):
            if inputs % depth or (depth == 128 and m * n > 128 * 128):
                continue
            chunks = taps * (inputs // depth)
            for split in sorted({1, *_splits(tiles, chunks)}):
                if split == 1 and tiles * 6 < _PROCESSORS and chunks >= 8:
                    continue
                if tiles > 6 * _PROCESSORS and m * n < 64 * 64 and outputs % 64 == 0:
                    continue
                if tiles * 4 < _PROCESSORS and m * n > 64 * 128:
                    continue
                found.append(Tiles("gather", m, n, depth, split, swap, warps, 3 if depth == 128 else 4))
    return found


def _splits(tiles: int, chunks: int) -> list[int]:
    """Splits that leave every program at least two products and fill the device about once or twice."""
    if tiles >= _PROCESSORS:
        return []
    found = []
    for waves in (1, 2):
        split = max(1, round(waves * _PROCESSORS / tiles))
        split = min(split, max(1, chunks // 2), 36)
        found.append(math.ceil(chunks / math.ceil(chunks / split)))
    return found


class Scratch:
    """Memory for split sums, shared by the launches of one stream: they never overlap."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._parts = torch.empty(0, dtype=torch.float32, device=device)
        self._arrived = torch.zeros(4096, dtype=torch.int32, device=device)
        self._bytes = torch.empty(1, dtype=torch.uint8, device=device)
        self.keep: list[Tensor] = []

    def bytes(self, size: int) -> Tensor:
        """At least so many bytes, for a library's own use during one launch."""
        if self._bytes.numel() < size:
            self.keep.append(self._bytes)
            self._bytes = torch.empty(size, dtype=torch.uint8, device=self._device)
        return self._bytes

    def take(self, floats: int, tiles: int) -> tuple[Tensor, Tensor]:
        """At least so many floats, and as many zeroed counters as there are tiles."""
        if tiles > self._arrived.numel():
            self.keep.append(self._arrived)
            self._arrived = torch.zeros(2 * tiles, dtype=torch.int32, device=self._device)
        if self._parts.numel() < floats:
            self.keep.append(self._parts)  # launches that hold the smaller one may be captured already
            self._parts = torch.empty(floats, dtype=torch.float32, device=self._device)
        return self._parts, self._arrived


def launch(tiles: Tiles, operands: Operands, scratch: Scratch) -> KernelLaunch:
    """The launch of a convolution.

    Args:
        tiles: One of `candidates`.
        operands: Its tensors; they are held.
        scratch: Of the stream it will run on.
    """
    x, y, residual = operands.x, operands.y, operands.residual
    count, height, width, outputs = y.shape
    _, rows, columns, inputs = operands.weight.shape
    slope = operands.bias if operands.slope is None else operands.slope
    added = y if residual is None else residual
    where = (*y.stride()[:3], *added.stride()[:3])
    common = {
        "KW": columns,
        "TAPS": rows * columns,
        "BM": tiles.pixels,
        "BN": tiles.channels,
        "BK": tiles.depth,
        "PRELU": operands.slope is not None,
        "RESIDUAL": residual is not None,
        "SWAP": tiles.swap,
        "num_warps": tiles.warps,
        "num_stages": tiles.stages,
    }
    kernel: Any
    if tiles.kernel == "rows":
        from triton.tools.tensor_descriptor import TensorDescriptor

        from facefleet.backends.torch.fused.kernels import conv_rows as kernel

        flat = x.view(-1, inputs)
        pixels = TensorDescriptor.from_tensor(flat, [tiles.pixels, tiles.depth])
        weights = TensorDescriptor.from_tensor(operands.weight.view(outputs, -1), [tiles.channels, tiles.depth])
        starts = flat.shape[0] - (rows - 1) * x.shape[2] - (columns - 1)
        grid: tuple[int, ...] = (math.ceil(starts / tiles.pixels) * (outputs // tiles.channels),)
        arguments: tuple[Any, ...] = (
            pixels, weights, operands.bias, slope, added, y, count, height, width, inputs, outputs,
            x.shape[1], x.shape[2], *where,
        )  # fmt: skip
    else:
        from facefleet.backends.torch.fused.kernels import conv_gather as kernel

        total = count * height * width
        blocks = math.ceil(total / tiles.pixels) * (outputs // tiles.channels)
        split = tiles.split > 1
        parts, arrived = scratch.take(
            blocks * tiles.split * tiles.pixels * tiles.channels if split else 1, blocks if split else 0
        )
        grid = (blocks, tiles.split)
        common |= {"SPLIT": tiles.split, "STRIDE": operands.stride, "PDL": False}
        arguments = (
            x, operands.weight, operands.bias, slope, added, y, parts, arrived, total, height * width, width,
            inputs, outputs, *x.stride()[:3], *where,
        )  # fmt: skip
    return KernelLaunch(kernel, grid, arguments, common)


_STEMS = ((64, 4), (128, 4), (256, 8))


def stem_candidates(step: Stem) -> list[Tiles]:
    """Tiles worth a try for the first layer, whose output channels are whole tiles of 32."""
    outputs, rows, columns = step.weight.shape[:3]
    channels = 64 if outputs % 64 == 0 else 32
    kernels: list[Literal["stem", "spread"]] = ["stem", "spread"] if rows <= 4 and columns <= 4 else ["stem"]
    return [Tiles(kernel, pixels, channels, 0, warps=warps, stages=1) for kernel in kernels for pixels, warps in _STEMS]


def launch_stem(
    tiles: Tiles, step: Stem, numbers: dict[str, Tensor], pictures: Tensor, y: Tensor
) -> KernelLaunch | LaunchPair:
    """The launch of the first layer.

    Args:
        tiles: One of `stem_candidates`.
        step: Its geometry.
        numbers: Its weights on the device, see `execute.Weights`.
        pictures: (n, h, w, 3) uint8, contiguous; held.
        y: (n, h, w, outputs) view of what is written.
    """
    from facefleet.backends.torch.fused import kernels

    count, height, width, outputs = y.shape
    slope = numbers.get("slope")
    total = count * height * width
    grid = (math.ceil(total / tiles.pixels) * (outputs // tiles.channels),)
    given = numbers["bias"], numbers["bias"] if slope is None else slope
    options = {
        "KH": step.weight.shape[1],
        "STRIDE": step.stride,
        "BM": tiles.pixels,
        "BN": tiles.channels,
        "PRELU": slope is not None,
        "num_warps": tiles.warps,
        "num_stages": tiles.stages,
    }
    if tiles.kernel == "stem":
        arguments = (
            pictures, numbers["weight"], *given, numbers["mean"], y, total, height, width, outputs, *y.stride()[:3],
            pictures.shape[1], pictures.shape[2],
        )  # fmt: skip
        options |= {"PAD": step.padding, "KW": step.weight.shape[2], "BK": numbers["weight"].shape[1]}
        return KernelLaunch(kernels.stem, grid, arguments, options)
    rows, columns = (side + 2 * step.padding for side in pictures.shape[1:3])
    # 16 numbers are read from every pixel: the last ones reach past the end.
    room = torch.zeros(count * rows * columns * 4 + 16, dtype=torch.float16, device=pictures.device)
    inside = pictures.numel() // 3
    first = KernelLaunch(
        kernels.spread,
        (math.ceil(inside / 256),),
        (pictures, numbers["mean"], room, inside, *pictures.shape[1:3], rows, columns),
        {"PAD": step.padding, "BLOCK": 1024, "num_warps": 4},
    )
    arguments = (
        room, numbers["spread"], *given, y, total, height, width, outputs, rows, columns, *y.stride()[:3]
    )  # fmt: skip
    return LaunchPair(first, KernelLaunch(kernels.stem_spread, grid, arguments, options))
