"""Exact search: every vector is compared, with the BLAS that numpy brings.

Scores are made block by block and held against the k-th best so far while they are in the cache, so that selecting
costs next to nothing and memory does not grow with the number of vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from facefleet.errors import ConfigError
from facefleet.gallery.index.base import Segment
from facefleet.types import BoolArray, F32Array

_SCORES = 1 << 21
"""Scores of a block: 8 MiB, measured best; a shared cache holds it."""
_ROWS = (2048, 1 << 17)


class FlatSegment(Segment):
    """See this module."""

    kind: ClassVar[str] = "flat"
    exact = True

    def __init__(self, vectors: F32Array) -> None:
        self._vectors = vectors

    @classmethod
    def build(cls, vectors: F32Array, options: Mapping[str, Any]) -> Self:
        """See `Segment.build`; there are no options."""
        refuse_options(cls.kind, options, ())
        return cls(vectors)

    def search(self, queries: F32Array, k: int, keep: BoolArray | None) -> tuple[F32Array, NDArray[np.int64]]:
        """See `Segment.search`."""
        return flat_search(self._vectors, queries, k, keep)


def flat_search(
    vectors: F32Array, queries: F32Array, k: int, keep: BoolArray | None = None
) -> tuple[F32Array, NDArray[np.int64]]:
    """The best rows for each query, in any order; as `Segment.search`."""
    best = _Best(len(queries), k)
    rows = int(np.clip(_SCORES // max(1, len(queries)), *_ROWS))
    for start in range(0, len(vectors), rows):
        block = vectors[start : start + rows]
        scores = (block @ queries[0])[None] if len(queries) == 1 else queries @ block.T
        if keep is not None:
            scores[:, ~keep[start : start + rows]] = -np.inf
        best.offer(scores, start)
    return best.finish()


class _Best:
    """The k best of a stream of score blocks, for each query.

    Candidates above the k-th best score so far are gathered, and cut down to k when there are many.
    """

    def __init__(self, queries: int, k: int) -> None:
        self._k = k
        self._limits = np.full(queries, -np.inf, np.float32)
        self._scores: list[list[F32Array]] = [[] for _ in range(queries)]
        self._rows: list[list[NDArray[np.int64]]] = [[] for _ in range(queries)]
        self._held = np.zeros(queries, np.int64)

    def offer(self, scores: F32Array, start: int) -> None:
        """Take in (q, m) scores of the rows from `start` on; -inf is no candidate."""
        reach = scores.max(axis=1) > self._limits
        for query in np.flatnonzero(reach).tolist():
            line = scores[query]
            found = np.flatnonzero(line > self._limits[query])
            if len(found) > self._k:  # the first blocks
                found = found[np.argpartition(line[found], -self._k)[-self._k :]]
            self._scores[query].append(line[found])
            self._rows[query].append(found + start)
            self._held[query] += len(found)
            if self._held[query] > 4 * self._k or self._limits[query] == -np.inf:
                self._cut(query)

    def _cut(self, query: int) -> None:
        scores, rows = np.concatenate(self._scores[query]), np.concatenate(self._rows[query])
        if len(scores) > self._k:
            chosen = np.argpartition(scores, -self._k)[-self._k :]
            scores, rows = scores[chosen], rows[chosen]
        if len(scores) == self._k:
            self._limits[query] = scores.min()
        self._scores[query], self._rows[query], self._held[query] = [scores], [rows], len(scores)

    def finish(self) -> tuple[F32Array, NDArray[np.int64]]:
        """(q, k) scores and rows."""
        scores = np.full((len(self._held), self._k), -np.inf, np.float32)
        rows = np.full((len(self._held), self._k), -1, np.int64)
        for query in np.flatnonzero(self._held).tolist():
            self._cut(query)
            n = len(self._scores[query][0])
            scores[query, :n], rows[query, :n] = self._scores[query][0], self._rows[query][0]
        return scores, rows


def refuse_options(kind: str, options: Mapping[str, Any], known: tuple[str, ...]) -> None:
    """Refuse options that a kind of index does not have.

    Raises:
        ConfigError: There is one.
    """
    for key in options:
        if key not in known:
            listed = f"it knows {', '.join(known)}" if known else "it has none"
            raise ConfigError(f"index {kind!r}: unknown option {key!r}", hint=listed)
