# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
"""The rows that may be among the nearest of a query, on a CUDA device, as three Triton kernels.

Owns device code only. The first pass (`peaks_of_words` for a few queries, `peaks_of_products` for many) reads every
row once and leaves the best score of each tile of rows. `limits` finds a score that at least k tiles reach, less what
low precision may be wrong by. `collect` looks through the tiles that reach it and appends their rows that do. No score
of a row is written but those that are handed back.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _scored(some, asked, WORDS_OF_BYTES: tl.constexpr, DP4A: tl.constexpr):
    """(r,) float32 products of (r, c) rows with a (c,) query; words of four bytes, or floating point."""
    asked = tl.broadcast_to(asked[None, :], some.shape)
    if WORDS_OF_BYTES:
        if DP4A:
            product = tl.inline_asm_elementwise(
                "dp4a.s32.s32 $0, $1, $2, $3;",
                "=r,r,r,r",
                [some, asked, tl.zeros_like(some)],
                dtype=tl.int32,
                is_pure=True,
                pack=1,
            )
        else:
            product = ((some << 24) >> 24) * ((asked << 24) >> 24)
            product += ((some << 16) >> 24) * ((asked << 16) >> 24)
            product += ((some << 8) >> 24) * ((asked << 8) >> 24)
            product += (some >> 24) * (asked >> 24)
        score = tl.sum(product, axis=1).to(tl.float32)
    else:
        score = tl.sum(some.to(tl.float32) * asked.to(tl.float32), axis=1)
    return score


@triton.jit
def _kept(keep, row, count, MASKED: tl.constexpr):
    """Which rows are there and to be chosen from."""
    live = row < count
    if MASKED:
        live = live & (tl.load(keep + row, mask=live, other=0) != 0)
    return live


@triton.jit
def peaks_of_words(queries, rows, scales, keep, best, count, tiles,
                   DEPTH: tl.constexpr, WIDTH: tl.constexpr, QUERIES: tl.constexpr, TILE: tl.constexpr,
                   STAGES: tl.constexpr, BYTES: tl.constexpr, DP4A: tl.constexpr, MASKED: tl.constexpr):  # fmt: skip
    """Largest product with each query among the kept rows of a tile, times the row's scale; -inf if there is none.

    `queries` is (QUERIES, DEPTH), `rows` (at least tiles * TILE, DEPTH), of float, or with BYTES of int32 that hold
    four bytes each; `best` (QUERIES, tiles) float32; WIDTH the power of two that is no less than DEPTH. Rows go
    straight into registers, 16 bytes a thread, and each is used for all queries. A program takes every n-th tile.
    """
    column = tl.arange(0, WIDTH)
    inside = column < DEPTH
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), num_stages=STAGES):
        row = tl.cast(tile, tl.int64) * TILE + tl.arange(0, TILE)
        place = rows + row[:, None] * DEPTH + column[None, :]
        if WIDTH == DEPTH:
            some = tl.load(place, eviction_policy="evict_first")
        else:
            some = tl.load(place, mask=inside[None, :], other=0, eviction_policy="evict_first")
        live = _kept(keep, row, count, MASKED)
        for query in tl.static_range(QUERIES):
            asked = tl.load(queries + query * DEPTH + column, mask=inside, other=0)
            score = _scored(some, asked, BYTES, DP4A)
            if BYTES:
                score = score * tl.load(scales + row)
            tl.store(
                best + query * tl.cast(tiles, tl.int64) + tile, tl.max(tl.where(live, score, float("-inf")), axis=0)
            )


@triton.jit
def peaks_of_products(queries, rows, scales, keep, best, count, tiles,
                      DEPTH: tl.constexpr, BLOCK: tl.constexpr, QUERIES: tl.constexpr, TILE: tl.constexpr,
                      FLATTEN: tl.constexpr, BYTES: tl.constexpr, MASKED: tl.constexpr):  # fmt: skip
    """As `peaks_of_words`, for many queries, with matrix products; `queries` and `rows` of int8, or of float."""
    query = tl.arange(0, QUERIES)
    column = tl.arange(0, BLOCK)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=FLATTEN):
        row = tl.cast(tile, tl.int64) * TILE + tl.arange(0, TILE)
        total = tl.zeros((TILE, QUERIES), dtype=tl.int32 if BYTES else tl.float32)
        for start in range(0, DEPTH, BLOCK):
            some = tl.load(rows + row[:, None] * DEPTH + start + column[None, :])
            asked = tl.load(queries + query[None, :] * DEPTH + start + column[:, None])
            if BYTES:
                total = tl.dot(some, asked, total, out_dtype=tl.int32)
            else:
                total = tl.dot(some, asked, total, input_precision="ieee")
        score = total.to(tl.float32)
        if BYTES:
            score = score * tl.load(scales + row)[:, None]
        live = _kept(keep, row, count, MASKED)
        score = tl.where(live[:, None], score, float("-inf"))
        tl.store(best + query.to(tl.int64) * tiles + tile, tl.max(score, axis=0))


@triton.jit
def limits(best, slack, limit, counter, tiles, k,
           SLOTS: tl.constexpr, LINES: tl.constexpr):  # fmt: skip
    """For each query a score that the k best rows are not below, less its slack; and a counter set to nothing.

    Tiles are dealt to SLOTS slots; the k-th best slot is reached by k different tiles at least, and, where there are
    many slots for each of k, by few more. `best` is (q, tiles) float32; one program a query; k at most SLOTS.
    """
    query = tl.program_id(0)
    slot = tl.arange(0, SLOTS)
    line = tl.arange(0, LINES)
    top = tl.full((SLOTS,), float("-inf"), tl.float32)
    for start in range(0, tiles, SLOTS * LINES):
        place = start + line[:, None] * SLOTS + slot[None, :]
        some = tl.load(best + query.to(tl.int64) * tiles + place, mask=place < tiles, other=float("-inf"))
        top = tl.maximum(top, tl.max(some, axis=0))
    bits = top.to(tl.int32, bitcast=True)
    keys = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # whole numbers in the order of the scores
    key = tl.where(tl.sum((keys >= 0).to(tl.int32), axis=0) >= k, 0, -0x80000000)
    for bit in range(31):  # the k-th largest, from its highest bit on
        more = key + (tl.cast(1, tl.int32) << (30 - bit))
        key = tl.where(tl.sum((keys >= more).to(tl.int32), axis=0) >= k, more, key)
    kth = (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    tl.store(limit + query, kth - tl.load(slack + query))
    tl.store(counter + query, 0)


@triton.jit
def collect(queries, rows, scales, keep, best, limit, counter, found_rows, found_scores, count, tiles, room,
            DEPTH: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr, GROUP: tl.constexpr,
            BYTES: tl.constexpr, DP4A: tl.constexpr, MASKED: tl.constexpr):  # fmt: skip
    """Append to each query's list the kept rows that reach its limit, in no order; and count them, also beyond `room`.

    `found_rows` is (q, room) int32, `found_scores` float32; one program a group of tiles and query.
    """
    query = tl.program_id(1)
    bar = tl.load(limit + query)
    line = best + query.to(tl.int64) * tiles
    first = tl.program_id(0) * GROUP
    member = first + tl.arange(0, GROUP)
    peaks = tl.load(line + member, mask=member < tiles, other=float("-inf"))
    column = tl.arange(0, WIDTH)
    inside = column < DEPTH
    highest = tl.max(peaks, axis=0)
    if (highest >= bar) & (highest > float("-inf")):
        asked = tl.load(queries + query * DEPTH + column, mask=inside, other=0)
        for tile in range(first, tl.minimum(first + GROUP, tiles)):
            if tl.load(line + tile) >= bar:
                row = tl.cast(tile, tl.int64) * TILE + tl.arange(0, TILE)
                some = tl.load(rows + row[:, None] * DEPTH + column[None, :], mask=inside[None, :], other=0)
                score = _scored(some, asked, BYTES, DP4A)
                if BYTES:
                    score = score * tl.load(scales + row)
                good = _kept(keep, row, count, MASKED) & (score >= bar)
                amount = good.to(tl.int32)
                start = tl.atomic_add(counter + query, tl.sum(amount, axis=0))
                place = start + tl.cumsum(amount, axis=0) - 1
                good = good & (place < room)
                tl.store(found_rows + query * room + place, row.to(tl.int32), mask=good)
                tl.store(found_scores + query * room + place, score, mask=good)
