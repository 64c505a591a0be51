# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
"""Triton kernels: implicit-GEMM convolutions with everything that follows fused in, and the network's first layer.

Owns device code only. Maps are NHWC in 16 bits and hold their own border, so that no convolution pads. Each kernel is
launched by `triton_conv`; nothing here allocates. Offsets are 32 bits: a map has fewer than 2**31 elements.

The convolution as a matrix product without the patches being written anywhere: Chetlur et al., "cuDNN: efficient
primitives for deep learning", 2014, section 3.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _finish(acc, bias, slope, res, y, m, live, n, hw, width, y_n, y_h, y_w, r_n, r_h, r_w,
            PRELU: tl.constexpr, RESIDUAL: tl.constexpr, SWAP: tl.constexpr):  # fmt: skip
    """Bias, residual, PReLU, and the store; `acc` is (pixels, channels), or the other way round if `SWAP`."""
    image = m // hw
    rest = m % hw
    row = rest // width
    col = rest % width
    y_at = image * y_n + row * y_h + col * y_w
    if SWAP:
        add = tl.load(bias + n)[:, None]
        at = y_at[None, :] + n[:, None]
        mask = live[None, :]
    else:
        add = tl.load(bias + n)[None, :]
        at = y_at[:, None] + n[None, :]
        mask = live[:, None]
    out = acc + add
    if RESIDUAL:
        r_at = image * r_n + row * r_h + col * r_w
        if SWAP:
            out += tl.load(res + r_at[None, :] + n[:, None], mask=mask, other=0.0).to(tl.float32)
        else:
            out += tl.load(res + r_at[:, None] + n[None, :], mask=mask, other=0.0).to(tl.float32)
    if PRELU:
        s = tl.load(slope + n)
        if SWAP:
            s = s[:, None]
        else:
            s = s[None, :]
        out = tl.where(out > 0, out, out * s)
    tl.store(y + at, out.to(y.dtype.element_ty), mask=mask)


@triton.jit
def conv_gather(x, w, bias, slope, res, y, partial, arrived, pixels, hw, width, c_in, c_out,
                x_n, x_h, x_w, y_n, y_h, y_w, r_n, r_h, r_w,
                KW: tl.constexpr, TAPS: tl.constexpr, STRIDE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
                BK: tl.constexpr, SPLIT: tl.constexpr, PRELU: tl.constexpr, RESIDUAL: tl.constexpr,
                SWAP: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """A convolution whose pixels are gathered by address: any stride, few pixels, the sum split over programs.

    Grid: (pixel tiles x channel tiles, SPLIT). With SPLIT > 1 each program leaves its part in `partial`; the last one
    of a tile to arrive adds the parts, always in the same order, and sets `arrived` back to zero.
    """
    tiles_n = c_out // BN
    pid = tl.program_id(0)
    part = tl.program_id(1)
    m = (pid // tiles_n) * BM + tl.arange(0, BM)
    n = (pid % tiles_n) * BN + tl.arange(0, BN)
    live = m < pixels
    there = tl.where(live, m, 0)
    rest = there % hw
    x_at = (there // hw) * x_n + (rest // width) * STRIDE * x_h + (rest % width) * STRIDE * x_w
    k = tl.arange(0, BK)
    chunks = c_in // BK
    total = TAPS * chunks
    each = (total + SPLIT - 1) // SPLIT
    first = part * each
    last = tl.minimum(first + each, total)
    x_ptr = x + x_at[:, None] + k[None, :]
    w_ptr = w + n[:, None] * (TAPS * c_in) + k[None, :]
    if PDL:
        tl.extra.cuda.gdc_wait()
    if SWAP:
        acc = tl.zeros((BN, BM), dtype=tl.float32)
    else:
        acc = tl.zeros((BM, BN), dtype=tl.float32)
    for i in range(first, last):
        tap = i // chunks
        shift = (tap // KW) * x_h + (tap % KW) * x_w + (i - tap * chunks) * BK
        a = tl.load(x_ptr + shift)
        b = tl.load(w_ptr + i * BK)
        if SWAP:
            acc = tl.dot(b, a.T, acc)
        else:
            acc = tl.dot(a, b.T, acc)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    if SPLIT == 1:
        _finish(acc, bias, slope, res, y, m, live, n, hw, width, y_n, y_h, y_w, r_n, r_h, r_w, PRELU, RESIDUAL, SWAP)
    else:
        if SWAP:
            inner = tl.arange(0, BN)[:, None] * BM + tl.arange(0, BM)[None, :]
        else:
            inner = tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :]
        mine = partial + (pid * SPLIT) * (BM * BN) + inner
        tl.store(mine + part * (BM * BN), acc, cache_modifier=".cg")
        tl.debug_barrier()
        if tl.atomic_add(arrived + pid, 1, sem="acq_rel") == SPLIT - 1:
            whole = tl.load(mine, cache_modifier=".cg")
            for other in range(1, SPLIT):
                whole += tl.load(mine + other * (BM * BN), cache_modifier=".cg")
            tl.store(arrived + pid, 0)
            _finish(
                whole, bias, slope, res, y, m, live, n, hw, width, y_n, y_h, y_w, r_n, r_h, r_w, PRELU, RESIDUAL, SWAP
            )


@triton.jit
def conv_rows(x, w, bias, slope, res, y, count, height, width, c_in, c_out, x_rows, x_columns,
              y_n, y_h, y_w, r_n, r_h, r_w,
              KW: tl.constexpr, TAPS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
              PRELU: tl.constexpr, RESIDUAL: tl.constexpr, SWAP: tl.constexpr):  # fmt: skip
    """A convolution of stride 1 over the bordered map as one long list of pixels, fetched by the copy engine.

    `x` and `w` are tensor descriptors of (count * x_rows * x_columns, c_in) and (c_out, TAPS * c_in), with blocks
    (BM, BK) and (BN, BK). What starts at a pixel is computed for the border too, and not stored there: a tap is then
    the same list some pixels further on. Grid: (tiles of that list x channel tiles,).
    """
    tiles_n = c_out // BN
    pid = tl.program_id(0)
    n0 = (pid % tiles_n) * BN
    m0 = (pid // tiles_n) * BM
    chunks = c_in // BK
    if SWAP:
        acc = tl.zeros((BN, BM), dtype=tl.float32)
    else:
        acc = tl.zeros((BM, BN), dtype=tl.float32)
    for i in range(0, TAPS * chunks):
        tap = i // chunks
        a = x.load([m0 + (tap // KW) * x_columns + tap % KW, (i - tap * chunks) * BK])
        b = w.load([n0, i * BK])
        if SWAP:
            acc = tl.dot(b, a.T, acc)
        else:
            acc = tl.dot(a, b.T, acc)
    at = m0 + tl.arange(0, BM)
    image = at // (x_rows * x_columns)
    rest = at % (x_rows * x_columns)
    row = rest // x_columns
    col = rest % x_columns
    live = (image < count) & (row < height) & (col < width)
    hw = height * width
    m = tl.where(live, image * hw + row * width + col, 0)
    n = n0 + tl.arange(0, BN)
    _finish(acc, bias, slope, res, y, m, live, n, hw, width, y_n, y_h, y_w, r_n, r_h, r_w, PRELU, RESIDUAL, SWAP)


@triton.jit
def stem(pictures, w, bias, slope, mean, y, pixels, height, width, c_out, y_n, y_h, y_w, rows, columns,
         PAD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, STRIDE: tl.constexpr, BM: tl.constexpr,
         BN: tl.constexpr, BK: tl.constexpr, PRELU: tl.constexpr):  # fmt: skip
    """The first convolution straight from uint8 pictures (n, rows, columns, 3), less `mean` inside the picture.

    `w` is (c_out, BK), its columns (tap, color) and zero after KH * KW * 3; the divisors are in it.
    """
    tiles_n = c_out // BN
    pid = tl.program_id(0)
    m = (pid // tiles_n) * BM + tl.arange(0, BM)
    n = (pid % tiles_n) * BN + tl.arange(0, BN)
    live = m < pixels
    hw = height * width
    image = m // hw
    rest = m % hw
    k = tl.arange(0, BK)
    tap = k // 3
    row = (rest // width)[:, None] * STRIDE + (tap // KW)[None, :] - PAD
    col = (rest % width)[:, None] * STRIDE + (tap % KW)[None, :] - PAD
    inside = (row >= 0) & (row < rows) & (col >= 0) & (col < columns) & live[:, None] & (tap < KH * KW)[None, :]
    at = (image[:, None] * rows + row) * (columns * 3) + col * 3 + (k % 3)[None, :]
    value = tl.load(pictures + at, mask=inside, other=0).to(tl.float32) - tl.load(mean + k)[None, :]
    a = tl.where(inside, value, 0.0).to(w.dtype.element_ty)
    b = tl.load(w + n[:, None] * BK + k[None, :])
    acc = tl.dot(a, b.T)
    _finish(acc, bias, slope, y, y, m, live, n, hw, width, y_n, y_h, y_w, 0, 0, 0, PRELU, False, False)


@triton.jit
def spread(pictures, mean, x, pixels, height, width, rows, columns,
           PAD: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """uint8 pictures (n, height, width, 3) less `mean` into the inside of maps (n, rows, columns, 4) of 16 bits."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    pixel = at // 4
    color = at % 4
    image = pixel // (height * width)
    rest = pixel % (height * width)
    there = (image * rows + rest // width + PAD) * columns + rest % width + PAD
    known = (pixel < pixels) & (color < 3)
    value = tl.load(pictures + pixel * 3 + color, mask=known, other=0).to(tl.float32)
    value = tl.where(known, value - tl.load(mean + color), 0.0)
    tl.store(x + there * 4 + color, value.to(x.dtype.element_ty), mask=pixel < pixels)


@triton.jit
def stem_spread(x, w, bias, slope, y, pixels, height, width, c_out, rows, columns, y_n, y_h, y_w,
                STRIDE: tl.constexpr, KH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
                PRELU: tl.constexpr):  # fmt: skip
    """The first convolution from what `spread` made: a row of the filter is 16 numbers that lie side by side.

    `w` is (c_out, 64), its columns (filter row, filter column, color) in steps of 16, 4 and 1, zero elsewhere. What is
    read beside a filter's row belongs to other pixels and is multiplied by zero.
    """
    tiles_n = c_out // BN
    pid = tl.program_id(0)
    m = (pid // tiles_n) * BM + tl.arange(0, BM)
    n = (pid % tiles_n) * BN + tl.arange(0, BN)
    live = m < pixels
    hw = height * width
    there = tl.where(live, m, 0)
    rest = there % hw
    start = ((there // hw) * rows + (rest // width) * STRIDE) * columns + (rest % width) * STRIDE
    k = tl.arange(0, 64)
    line = k // 16
    line = tl.where(line < KH, line, 0)
    a = tl.load(x + (start[:, None] + line[None, :] * columns) * 4 + (k % 16)[None, :])
    b = tl.load(w + n[:, None] * 64 + k[None, :])
    acc = tl.dot(a, b.T)
    _finish(acc, bias, slope, y, y, m, live, n, hw, width, y_n, y_h, y_w, 0, 0, 0, PRELU, False, False)
