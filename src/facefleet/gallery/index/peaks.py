# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
"""The best score of every tile of rows, for int8 rows on a CUDA device, as one Triton kernel.

Owns device code only. Rows are read once and no score is written: what is left to look at afterwards is one number a
query and tile.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def peaks(queries, rows, scales, keep, best, count, tiles,
          DEPTH: tl.constexpr, BLOCK: tl.constexpr, QUERIES: tl.constexpr, TILE: tl.constexpr,
          MASKED: tl.constexpr):  # fmt: skip
    """Largest product with each query among the kept rows of a tile, times the row's scale; -inf if there is none.

    `queries` is (QUERIES, DEPTH) int8, `rows` (at least tiles * TILE, DEPTH) int8, `best` (QUERIES, tiles) float32.
    """
    tile = tl.program_id(0).to(tl.int64)
    row = tile * TILE + tl.arange(0, TILE)
    query = tl.arange(0, QUERIES)
    column = tl.arange(0, BLOCK)
    total = tl.zeros((TILE, QUERIES), dtype=tl.int32)
    for start in range(0, DEPTH, BLOCK):
        some = tl.load(rows + row[:, None] * DEPTH + start + column[None, :])
        asked = tl.load(queries + query[None, :] * DEPTH + start + column[:, None])
        total = tl.dot(some, asked, total, out_dtype=tl.int32)
    score = total.to(tl.float32) * tl.load(scales + row)[:, None]
    live = row < count
    if MASKED:
        live = live & (tl.load(keep + row, mask=live, other=0) != 0)
    score = tl.where(live[:, None], score, float("-inf"))
    tl.store(best + query.to(tl.int64) * tiles + tile, tl.max(score, axis=0))
