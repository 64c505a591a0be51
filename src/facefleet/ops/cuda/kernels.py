# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
"""Triton kernels: the sampling of many pictures and greedy suppression, each in one launch.

Owns device code only; `letterbox`, `align` and `nms` launch it where Triton is installed and the tensors are on a CUDA
device, and say what it computes. Pictures lie one after the other; places in them are 64 bits.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _nearest(x):
    """To the nearest whole number, ties to even; float32."""
    up = tl.floor(x + 0.5)
    tie = (up - x == 0.5) & (up - 2.0 * tl.floor(up * 0.5) == 1.0)
    return tl.where(tie, up - 1.0, up)


@triton.jit
def _taps(place, size, content):
    """Both neighbors of output pixels along an axis, and their weights of 2048."""
    scale = size.to(tl.float64) / content.to(tl.float64)
    at = ((place.to(tl.float64) + 0.5) * scale - 0.5).to(tl.float32)
    floor = tl.floor(at)
    share = at - floor
    first = floor.to(tl.int64)
    last = size - 1
    share = tl.where((first < 0) | (first >= last), 0.0, share)
    first = tl.minimum(tl.maximum(first, 0), last)
    second = tl.minimum(first + 1, last)
    return first, second, _nearest((1.0 - share) * 2048.0).to(tl.int32), _nearest(share * 2048.0).to(tl.int32)


@triton.jit
def letterbox(data, offsets, sizes, contents, out, height, width, BLOCK: tl.constexpr):
    """Pixels of detector inputs. Grid: (pictures, blocks of pixels)."""
    which = tl.program_id(0)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = place < height * width
    y = place // width
    x = place % width
    base = data + tl.load(offsets + which)
    rows = tl.load(sizes + which * 2)
    columns = tl.load(sizes + which * 2 + 1)
    content_rows = tl.load(contents + which * 2)
    content_columns = tl.load(contents + which * 2 + 1)
    inside = live & (y < content_rows) & (x < content_columns)
    y0, y1, b0, b1 = _taps(y, rows, content_rows)
    x0, x1, a0, a1 = _taps(x, columns, content_columns)
    halved = (rows == 2 * content_rows) & (columns == 2 * content_columns)
    above = y0 * columns
    below = y1 * columns
    target = out + (which.to(tl.int64) * height * width + place) * 3
    for color in tl.static_range(3):
        one = tl.load(base + (above + x0) * 3 + color, mask=inside, other=0).to(tl.int32)
        two = tl.load(base + (above + x1) * 3 + color, mask=inside, other=0).to(tl.int32)
        three = tl.load(base + (below + x0) * 3 + color, mask=inside, other=0).to(tl.int32)
        four = tl.load(base + (below + x1) * 3 + color, mask=inside, other=0).to(tl.int32)
        top = (b0 * ((one * a0 + two * a1) >> 4)) >> 16
        bottom = (b1 * ((three * a0 + four * a1) >> 4)) >> 16
        drawn = tl.where(halved, (one + two + three + four + 2) >> 2, (top + bottom + 2) >> 2)
        tl.store(target + color, drawn.to(tl.uint8), mask=live)


@triton.jit
def _pixel(base, y, x, rows, columns, color, live):
    """One channel at whole places, 0 outside of the picture; float32."""
    inside = live & (y >= 0) & (x >= 0) & (y < rows) & (x < columns)
    return tl.load(base + (y * columns + x) * 3 + color, mask=inside, other=0).to(tl.float32)


@triton.jit
def warp_chips(data, offsets, sizes, which, matrices, usable, scales, chips, SIDE: tl.constexpr, BLOCK: tl.constexpr):
    """Pixels of aligned chips. Grid: (faces, blocks of pixels)."""
    face = tl.program_id(0)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    picture = tl.load(which + face)
    scale = tl.load(scales + face)
    good = tl.load(usable + face) != 0
    live = place < SIDE * SIDE
    # The transform from pixels that were reduced by a scale, and its inverse.
    shift = 0.5 / scale - 0.5
    row = matrices + face * 6
    a = tl.load(row).to(tl.float64)
    b = tl.load(row + 1).to(tl.float64)
    d = tl.load(row + 3).to(tl.float64)
    e = tl.load(row + 4).to(tl.float64)
    c = tl.load(row + 2).to(tl.float64) + (a + b) * shift
    f = tl.load(row + 5).to(tl.float64) + (d + e) * shift
    a, b, d, e = a / scale, b / scale, d / scale, e / scale
    determinant = a * e - b * d
    down = (place // SIDE).to(tl.float64)
    along = (place % SIDE).to(tl.float64)
    x = (e / determinant) * along + ((-b / determinant) * down + (b * f - c * e) / determinant)
    y = (-d / determinant) * along + ((a / determinant) * down + (c * d - a * f) / determinant)
    here = live & good & (x > -1e9) & (x < 1e9) & (y > -1e9) & (y < 1e9)
    x = tl.where(here, x, -2.0)
    y = tl.where(here, y, -2.0)
    left = tl.floor(x)
    top = tl.floor(y)
    right = (x - left).to(tl.float32)
    bottom = (y - top).to(tl.float32)
    x0 = left.to(tl.int64)
    y0 = top.to(tl.int64)
    base = data + tl.load(offsets + picture)
    rows = tl.load(sizes + picture * 2)
    columns = tl.load(sizes + picture * 2 + 1)
    target = chips + (face.to(tl.int64) * SIDE * SIDE + place) * 3
    for color in tl.static_range(3):
        one = _pixel(base, y0, x0, rows, columns, color, here)
        two = _pixel(base, y0, x0 + 1, rows, columns, color, here)
        three = _pixel(base, y0 + 1, x0, rows, columns, color, here)
        four = _pixel(base, y0 + 1, x0 + 1, rows, columns, color, here)
        above = one * (1 - right) + two * right
        below = three * (1 - right) + four * right
        tl.store(target + color, _nearest(above * (1 - bottom) + below * bottom).to(tl.uint8), mask=live)


@triton.jit
def nms(boxes, valid, kept, count, iou, COUNT: tl.constexpr):
    """Greedy suppression of the boxes of a picture, strongest first. Grid: (pictures,)."""
    row = tl.program_id(0)
    place = tl.arange(0, COUNT)
    there = place < count
    mine = boxes + row.to(tl.int64) * count * 4
    x1 = tl.load(mine + place * 4, mask=there, other=0.0)
    y1 = tl.load(mine + place * 4 + 1, mask=there, other=0.0)
    x2 = tl.load(mine + place * 4 + 2, mask=there, other=0.0)
    y2 = tl.load(mine + place * 4 + 3, mask=there, other=0.0)
    alive = tl.load(valid + row * count + place, mask=there, other=0).to(tl.int32)
    area = (x2 - x1) * (y2 - y1)
    last = tl.max(tl.where(alive != 0, place, -1), axis=0) + 1
    i = 0
    while i < last:
        keeps = tl.sum(tl.where(place == i, alive, 0), axis=0)
        left = tl.load(mine + i * 4)
        upper = tl.load(mine + i * 4 + 1)
        right = tl.load(mine + i * 4 + 2)
        lower = tl.load(mine + i * 4 + 3)
        width = tl.maximum(tl.minimum(x2, right) - tl.maximum(x1, left), 0.0)
        height = tl.maximum(tl.minimum(y2, lower) - tl.maximum(y1, upper), 0.0)
        overlap = width * height
        own = (right - left) * (lower - upper)
        hit = (overlap > iou * (own + area - overlap)) & (place > i) & (keeps != 0)
        alive = tl.where(hit, 0, alive)
        i += 1
    tl.store(kept + row * count + place, alive.to(tl.uint8), mask=there)
