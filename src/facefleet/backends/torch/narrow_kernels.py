# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
"""A Triton kernel: a convolution of few channels, with bias, residual and ReLU in it.

Owns device code only; launched by `narrow_ops`. Maps are NHWC in 16 bits without a border of their own. The convolution
as a matrix product without the patches being written anywhere: Chetlur et al., "cuDNN: efficient primitives for deep
learning", 2014, section 3.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def conv(x, w, bias, residual, y, rows, columns, height, width, across,
         C_IN: tl.constexpr, C_OUT: tl.constexpr, X_STEP: tl.constexpr, R_STEP: tl.constexpr, Y_STEP: tl.constexpr,
         SIDE: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, BY: tl.constexpr, BX: tl.constexpr,
         BK: tl.constexpr, BN: tl.constexpr, RELU: tl.constexpr, RESIDUAL: tl.constexpr):  # fmt: skip
    """One tile of BY x BX pixels and all channels a program. Grid: (tiles of a picture, pictures).

    `w` is (SIDE * SIDE, channels in, BN) with zeros beyond what there is, its second side a multiple of BK. Pixels
    lie X_STEP, R_STEP and Y_STEP numbers apart, rows without gaps.
    """
    tile = tl.program_id(0)
    image = tl.program_id(1).to(tl.int64)
    m = tl.arange(0, BY * BX)
    row = (tile // across) * BY + m // BX
    column = (tile % across) * BX + m % BX
    k = tl.arange(0, BK)
    n = tl.arange(0, BN)
    x_image = x + image * rows * columns * X_STEP
    chunks: tl.constexpr = (C_IN + BK - 1) // BK
    acc = tl.zeros((BY * BX, BN), dtype=tl.float32)
    for i in range(SIDE * SIDE * chunks):
        tap = i // chunks
        first = (i % chunks) * BK
        up = row * STRIDE - PAD + tap // SIDE
        left = column * STRIDE - PAD + tap % SIDE
        inside = (up >= 0) & (up < rows) & (left >= 0) & (left < columns)
        at = (up * columns + left) * X_STEP + first
        a = tl.load(x_image + at[:, None] + k[None, :], mask=inside[:, None] & (first + k < C_IN)[None, :], other=0.0)
        b = tl.load(w + (i * BK + k)[:, None] * BN + n[None, :])
        acc = tl.dot(a, b, acc)
    acc += tl.load(bias + n)[None, :]
    live = ((row < height) & (column < width))[:, None] & (n < C_OUT)[None, :]
    pixel = row * width + column
    if RESIDUAL:
        there = residual + image * height * width * R_STEP
        acc += tl.load(there + pixel[:, None] * R_STEP + n[None, :], mask=live, other=0.0).to(tl.float32)
    if RELU:
        acc = tl.maximum(acc, 0.0)
    into = y + image * height * width * Y_STEP
    tl.store(into + pixel[:, None] * Y_STEP + n[None, :], acc.to(y.dtype.element_ty), mask=live)
