"""8-bit convolutions of our own beside cuDNN's in fp16: is there anything to gain on this card?

    python benchmarks/int8_convolution.py [--batch 256] [--kind int8] [--kind fp8] [-o convolutions.json]
    TRITON_INTERPRET=1 python benchmarks/int8_convolution.py --check    # answers only, without a GPU

A map is one long list of pixels, NHWC, in which every row ends with one pixel of border and every picture with one row
of it: the border of one is the border of the next, so a 14 x 14 map takes 15 x 15 places. A 3 x 3 convolution is then
nine matrix products of that list, each shifted by a constant, whose blocks the copy engine fetches. Behind the sum:
scale, bias, PReLU or an fp16 residual, and 8 bits for the next layer. Answers are held against exact ones before any
time counts. Prints microseconds a launch, after a rest and kept up; nothing of this is in the package.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,no-any-return"

from __future__ import annotations

import argparse
import itertools
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # its usual name
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

import gpu_timing

KINDS = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}


@triton.jit
def shifted_products(x, w, y, y16, res, scale, bias, slope, inverse, side, c_in, c_out, places,
                     BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, INT: tl.constexpr,
                     RESIDUAL: tl.constexpr):  # fmt: skip
    """One tile: nine shifted products and what follows. `x`, `w` and `y` describe lists of 8 bits, `y16` of 16."""
    tiles_n = c_out // BN
    pid = tl.program_id(0)
    m0 = (pid // tiles_n) * BM
    n0 = (pid % tiles_n) * BN
    chunks = c_in // BK
    wide = side + 1
    if INT:
        acc = tl.zeros((BM, BN), dtype=tl.int32)
    else:
        acc = tl.zeros((BM, BN), dtype=tl.float32)
    for i in range(0, 9 * chunks):
        tap = i // chunks
        shift = (tap // 3 - 1) * wide + tap % 3 - 1
        a = x.load([m0 + shift, (i - tap * chunks) * BK])
        b = w.load([n0, i * BK])
        if INT:
            acc = tl.dot(a, b.T, acc, out_dtype=tl.int32)
        else:
            acc = tl.dot(a, b.T, acc)
    n = n0 + tl.arange(0, BN)
    place = m0 + tl.arange(0, BM)
    inside = (place % wide < side) & ((place // wide) % wide < side) & (place < places)
    out = acc.to(tl.float32) * tl.load(scale + n)[None, :] + tl.load(bias + n)[None, :]
    if RESIDUAL:
        out += res.load([m0, n0]).to(tl.float32)
    else:
        out = tl.where(out > 0, out, out * tl.load(slope + n)[None, :])
    out = tl.where(inside[:, None], out, 0.0)
    if RESIDUAL:
        y16.store([m0, n0], out.to(tl.float16))
    small = out * inverse
    if INT:
        small = tl.minimum(tl.maximum(small, -127.0), 127.0)
        small = tl.where(small >= 0, small + 0.5, small - 0.5)  # to the nearest; the conversion cuts off
        y.store([m0, n0], small.to(tl.int8))
    else:
        y.store([m0, n0], tl.minimum(tl.maximum(small, -448.0), 448.0).to(tl.float8e4nv))


@dataclass(frozen=True, slots=True)
class Tile:
    """How a launch is cut up."""

    pixels: int
    channels: int
    depth: int
    warps: int
    stages: int


TILES = tuple(
    Tile(*each)
    for each in ((128, 128, 128, 4, 3), (128, 128, 128, 8, 3), (128, 128, 64, 4, 4), (64, 256, 128, 4, 3),
                 (128, 256, 128, 8, 3), (256, 128, 128, 8, 3), (64, 128, 128, 4, 4), (128, 64, 64, 4, 4),
                 (256, 64, 64, 8, 4))
)  # fmt: skip


class Layer:
    """A 3 x 3 convolution of stride 1 with as many channels out as in, on random numbers of a fixed seed."""

    def __init__(self, kind: str, batch: int, side: int, channels: int, *, residual: bool, device: str) -> None:
        torch.manual_seed(0)
        self.kind, self.residual = kind, residual
        self.batch, self.side, self.channels = batch, side, channels
        self.pictures = self._small(batch, side, side, channels).to(device)
        self.weight = self._small(channels, 3, 3, channels).to(device)
        full = 127.0 if kind == "int8" else 448.0
        scale = 3.0 / (full * full * (9 * channels) ** 0.5) * torch.rand(channels).add(0.5)
        self.scale, self.bias = scale.to(device), torch.randn(channels).to(device)
        self.slope = torch.rand(channels).to(device)
        self.inverse = full / 8.0
        self.added = torch.randn(batch, side, side, channels).half().to(device)
        self.x = self._listed(self.pictures)
        self.res = self._listed(self.added)
        self.y, self.y16 = torch.zeros_like(self.x), torch.zeros_like(self.res)

    def _small(self, *shape: int) -> torch.Tensor:
        if self.kind == "int8":
            return torch.randint(-127, 128, shape).to(torch.int8)
        return torch.randn(shape).mul(100).clamp(-448, 448).to(torch.float8_e4m3fn)

    def _listed(self, pictures: torch.Tensor) -> torch.Tensor:
        n, side, _, channels = pictures.shape
        room = torch.zeros(n, side + 1, side + 1, channels, dtype=pictures.dtype, device=pictures.device)
        room[:, :side, :side] = pictures
        return room.view(-1, channels)

    def launch(self, tile: Tile) -> Any:  # noqa: ANN401
        """What runs it once."""
        columns = min(tile.channels, self.channels)
        depth = min(tile.depth, self.channels)
        matrix = self.weight.reshape(self.channels, -1)
        places = len(self.x)

        def blocks(of: torch.Tensor, rows: int, wide: int) -> TensorDescriptor:
            return TensorDescriptor(of, list(of.shape), list(of.stride()), [rows, wide])

        operands = (
            blocks(self.x, tile.pixels, depth), blocks(matrix, columns, depth), blocks(self.y, tile.pixels, columns),
            blocks(self.y16, tile.pixels, columns), blocks(self.res, tile.pixels, columns),
        )  # fmt: skip
        grid = (triton.cdiv(places, tile.pixels) * (self.channels // columns),)
        return lambda: shifted_products[grid](
            *operands, self.scale, self.bias, self.slope, self.inverse, self.side, self.channels, self.channels, places,
            BM=tile.pixels, BN=columns, BK=depth, INT=self.kind == "int8", RESIDUAL=self.residual,
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip

    def exact(self) -> torch.Tensor:
        """(n, side, side, channels) float64, before it is rounded to 8 bits."""
        x, w = (each.double().permute(0, 3, 1, 2) for each in (self.pictures, self.weight))
        out = F.conv2d(x, w, padding=1).permute(0, 2, 3, 1) * self.scale.double() + self.bias.double()
        if self.residual:
            return out + self.added.double()
        return torch.where(out > 0, out, out * self.slope.double())

    def errors(self, tile: Tile) -> tuple[float, float]:
        """Share of the 8-bit answers that are off by more than half a step, and the sum of their border: zero."""
        self.launch(tile)()
        room = self.y.view(self.batch, self.side + 1, self.side + 1, self.channels).double()
        want = (self.exact() * self.inverse).clamp(-127, 127) if self.kind == "int8" else self.exact() * self.inverse
        got = room[:, : self.side, : self.side]
        off = (got - want).abs()
        if self.kind == "fp8":
            off = off / want.abs().clamp(min=2.0**-6) / 2.0**-3  # a step of e4m3 is an eighth of the number
        border = float(room[:, self.side :].abs().sum() + room[:, :, self.side :].abs().sum())
        return float((off > 0.51).double().mean()), border

    def cudnn(self) -> Any:  # noqa: ANN401
        """The convolution alone in fp16, channels last, by cuDNN."""
        x = torch.randn(self.batch, self.channels, self.side, self.side, device=self.x.device).half()
        x = x.contiguous(memory_format=torch.channels_last)
        w = torch.randn(self.channels, self.channels, 3, 3, device=self.x.device).half() / 48
        w = w.contiguous(memory_format=torch.channels_last)
        return lambda: F.conv2d(x, w, padding=1)


def microseconds(work: Any) -> tuple[float, float]:  # noqa: ANN401
    rested, kept = gpu_timing.replay_ms(*gpu_timing.captured(lambda: [work() for _ in range(10)]), least_s=0.4)
    return 100 * rested, 100 * kept


def compare(kind: str, batch: int, side: int, channels: int, *, residual: bool) -> dict[str, Any]:
    """The best tile of a layer by its time kept up, and cuDNN's, in turn."""
    layer = Layer(kind, batch, side, channels, residual=residual, device="cuda")
    torch.backends.cudnn.benchmark = True
    rows: list[dict[str, Any]] = []
    for tile in TILES:
        if tile.channels > channels or tile.depth > channels:
            continue
        try:
            off, border = layer.errors(tile)
        except triton.runtime.errors.OutOfResources:
            continue
        if off > (0.01 if kind == "fp8" else 0) or border:  # the units sum fp8 products in fewer bits than float32
            raise SystemExit(f"{kind} {side}x{side} {channels}: {tile}: {off:.2%} wrong, border {border}")
        rested, kept = microseconds(layer.launch(tile))
        rows.append({"tile": str(tile), "rested_us": rested, "us": kept})
    best = min(rows, key=lambda row: row["us"])
    rested, kept = microseconds(layer.cudnn())
    return {"kind": kind, "side": side, "channels": channels, "residual": residual, **best,
            "cudnn_rested_us": rested, "cudnn_us": kept, "times": kept / best["us"]}  # fmt: skip


def check() -> None:
    """Hold every tile's answers against the exact ones on small layers, on the CPU."""
    for kind, residual, (side, channels) in itertools.product(KINDS, (False, True), ((14, 128), (7, 256))):
        layer = Layer(kind, 3, side, channels, residual=residual, device="cpu")
        for tile in TILES:
            if tile.channels <= channels and tile.depth <= channels:
                off, border = layer.errors(tile)
                print(f"{kind} {side}x{side} {channels} residual={residual} {tile}: {off:.2%} wrong, border {border}")
                # The interpreter's own conversion to fp8 loses the carry into the exponent, and cuts off small numbers.
                assert off <= (0.03 if kind == "fp8" else 0)
                assert border == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--kind", action="append", choices=list(KINDS))
    parser.add_argument("--check", action="store_true", help="answers only; with TRITON_INTERPRET=1 on the CPU")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    if options.check:
        if os.environ.get("TRITON_INTERPRET") != "1":
            raise SystemExit("--check runs in Triton's interpreter: set TRITON_INTERPRET=1")
        check()
        return
    rows = []
    for kind in options.kind or list(KINDS):
        for (side, channels), residual in itertools.product(((56, 64), (28, 128), (14, 256), (7, 512)), (False, True)):
            row = compare(kind, options.batch, side, channels, residual=residual)
            rows.append(row)
            print(
                f"{kind} {side:>2}x{side:<2} {channels:>3} {'residual' if residual else 'PReLU':<8} "
                f"{row['rested_us']:6.1f} {row['us']:6.1f} us; cuDNN fp16 alone {row['cudnn_rested_us']:6.1f} "
                f"{row['cudnn_us']:6.1f}; {row['times']:.2f} times; {row['tile']}",
                flush=True,
            )
    if options.output:
        options.output.write_text(json.dumps({"device": torch.cuda.get_device_name(), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
