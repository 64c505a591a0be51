"""An index of one fixed segment, a small delta, and tombstones: changes are seen at once, whatever the kind.

Owns the state that searches see: a frozen object, replaced as a whole, so that a search that has begun keeps its own.
Removing sets a bit; adding puts rows behind the delta's last, where no older state looks. A rebuild arranges
all living rows anew, in any thread, while searches and changes go on; the changes made meanwhile are applied to the
result before it is put in place.

Candidates are scored again in double precision from the vectors themselves: answers do not depend on the kind, the
batch, or how a BLAS adds up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from facefleet.gallery.index.base import MARGIN, NOTHING, Hits, Index, Searcher, Segment
from facefleet.gallery.index.flat import flat_search
from facefleet.types import BoolArray, F32Array

_LEAST_REBUILD = 8192
_REBUILD_SHARE = 0.1
_GATHER_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Base:
    """Rows that a segment was built of.

    Attributes:
        ids: (n,) int64, ascending.
        vectors: (n, d) float32.
        segment: Arranged for searching; None where n is 0.
    """

    ids: NDArray[np.int64]
    vectors: F32Array
    segment: Segment | None

    def rows_of(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows of those of `ids` that are there."""
        if not len(self.ids):
            return np.empty(0, np.int64)
        places = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return np.asarray(places[self.ids[places] == ids], np.int64)


@dataclass(frozen=True, slots=True)
class LayeredState:
    """What one search sees.

    Attributes:
        base: The segment.
        keep: (n,) rows of it that live; None: all.
        ids: (m,) of the delta.
        vectors: (m, d) of the delta.
        alive: (m,) rows of the delta that live.
        places: Row in the delta of each living id.
        count: Living rows in all.
    """

    base: Base
    keep: BoolArray | None
    ids: NDArray[np.int64]
    vectors: F32Array
    alive: BoolArray
    places: dict[int, int] = field(repr=False)
    count: int

    def search(self, queries: F32Array, k: int, *, allowed: NDArray[np.int64] | None = None) -> Hits:
        """See `Searcher.search`."""
        parts = []
        base = self.base
        if base.segment is not None:
            keep = self.keep
            if allowed is not None:
                chosen = np.zeros(len(base.ids), np.bool_)
                chosen[base.rows_of(allowed)] = True
                keep = chosen if keep is None else chosen & keep
            _, rows = base.segment.search(queries, min(k + base.segment.margin, len(base.ids)), keep)
            parts.append(_again(queries, base.vectors, base.ids, rows))
        if self.places:
            alive = self.alive if allowed is None else self.alive & np.isin(self.ids, allowed)
            _, rows = flat_search(self.vectors, queries, min(k + MARGIN, len(self.ids)), alive)
            parts.append(_again(queries, self.vectors, self.ids, rows))
        return merged(parts, len(queries), k)

    def living(self) -> tuple[NDArray[np.int64], F32Array]:
        """(n,) living ids, ascending, and their (n, d) vectors."""
        base = self.base
        if not len(self.ids) and self.keep is None:
            return base.ids, base.vectors
        rows = np.arange(len(base.ids)) if self.keep is None else np.flatnonzero(self.keep)
        more = np.flatnonzero(self.alive)
        ids = np.concatenate([base.ids[rows], self.ids[more]])
        order = np.argsort(ids, kind="stable")
        target = np.empty(len(ids), np.int64)
        target[order] = np.arange(len(ids))
        vectors = np.empty((len(ids), self.vectors.shape[1]), np.float32)
        vectors[target[: len(rows)]] = base.vectors[rows]
        vectors[target[len(rows) :]] = self.vectors[more]
        return ids[order], vectors

    def vectors_of(self, ids: NDArray[np.int64]) -> F32Array:
        """(n, d) vectors of ids that are all there."""
        out = np.empty((len(ids), self.vectors.shape[1]), np.float32)
        for i, number in enumerate(ids):
            place = self.places.get(int(number))
            if place is None:
                out[i] = self.base.vectors[self.base.rows_of(ids[i : i + 1])[0]]
            else:
                out[i] = self.vectors[place]
        return out


class LayeredIndex(Index):
    """See this module.

    Args:
        dimension: Length of a vector.
        segment: The kind of segment.
        options: Of that kind.
        base: What it starts from; default: nothing.
    """

    def __init__(
        self, dimension: int, segment: type[Segment], options: Mapping[str, Any] | None = None, base: Base | None = None
    ) -> None:
        self.kind = segment.kind
        self.dimension = dimension
        self._segment = segment
        self._options = dict(options or {})
        self._lock = threading.Lock()
        self._meanwhile: list[tuple[NDArray[np.int64], F32Array, NDArray[np.int64]]] | None = None
        if base is None:
            base = Base(np.empty(0, np.int64), np.empty((0, dimension), np.float32), None)
            segment.build(np.eye(1, dimension, dtype=np.float32), self._options)  # options are refused early
        self._buffer_ids = np.empty(0, np.int64)
        self._buffer = np.empty((0, dimension), np.float32)
        self._state = self._fresh(base)

    def __len__(self) -> int:
        return self._state.count

    @property
    def exact(self) -> bool:
        """See `Index.exact`."""
        segment = self._state.base.segment
        return segment is None or segment.exact

    @property
    def base(self) -> Base:
        """The present segment with its rows; some may be dead."""
        return self._state.base

    @property
    def pending(self) -> int:
        """Rows of the delta and dead rows of the segment: what a rebuild would clear."""
        state = self._state
        dead = 0 if state.keep is None else len(state.keep) - int(np.count_nonzero(state.keep))
        return len(state.ids) + dead

    @property
    def wants_rebuild(self) -> bool:
        """Whether the delta costs searches more than it should."""
        return self.pending > max(_LEAST_REBUILD, _REBUILD_SHARE * len(self._state.base.ids))

    def apply(self, ids: NDArray[np.int64], vectors: F32Array, removed: NDArray[np.int64]) -> None:
        """See `Index.apply`."""
        with self._lock:
            if self._meanwhile is not None:
                self._meanwhile.append((ids, vectors, removed))
            self._state = self._changed(self._state, ids, vectors, removed)

    def begin_rebuild(self) -> Callable[[], Base]:
        """Note the present state; changes from now on are kept for `end_rebuild`. One rebuild at a time.

        Returns:
            What arranges all living rows anew; call it in any thread, searches and changes go on.
        """
        with self._lock:
            state = self._state
            self._meanwhile = []

        def build() -> Base:
            ids, vectors = state.living()
            return Base(ids, vectors, self._segment.build(vectors, self._options) if len(ids) else None)

        return build

    def end_rebuild(self, base: Base | None) -> None:
        """Put a rebuilt base in place, with the changes made meanwhile; None: it failed, all stays as it is."""
        with self._lock:
            changes, self._meanwhile = self._meanwhile or [], None
            if base is None:
                return
            self._buffer_ids, self._buffer = np.empty(0, np.int64), np.empty((0, self.dimension), np.float32)
            fresh = self._fresh(base)
            for change in changes:
                fresh = self._changed(fresh, *change)
            self._state = fresh

    def rebuild(self) -> None:
        """Both, at once."""
        build = self.begin_rebuild()
        base = None
        try:
            base = build()
        finally:
            self.end_rebuild(base)

    @property
    def state(self) -> LayeredState:
        """The present state."""
        return self._state

    def searcher(self) -> Searcher:
        """See `Index.searcher`."""
        return self._state

    def _fresh(self, base: Base) -> LayeredState:
        none = np.empty(0, np.int64)
        return LayeredState(base, None, none, self._buffer[:0], np.empty(0, np.bool_), {}, len(base.ids))

    def _changed(
        self, state: LayeredState, ids: NDArray[np.int64], vectors: F32Array, removed: NDArray[np.int64]
    ) -> LayeredState:
        gone = np.concatenate([removed, ids])
        keep, places, alive, count = state.keep, state.places, state.alive, state.count
        if len(gone):
            rows = state.base.rows_of(gone)
            if len(rows):
                keep = np.ones(len(state.base.ids), np.bool_) if keep is None else keep.copy()
                count -= int(np.count_nonzero(keep[rows]))
                keep[rows] = False
            places, alive = dict(places), alive.copy()
            for number in gone.tolist():
                place = places.pop(number, None)
                if place is not None:
                    alive[place] = False
                    count -= 1
        start = len(state.ids)
        end = start + len(ids)
        if len(ids):
            self._make_room(state, end)
            self._buffer_ids[start:end], self._buffer[start:end] = ids, vectors
            places = dict(places) | {int(number): start + i for i, number in enumerate(ids)}
            alive = np.concatenate([alive, np.ones(len(ids), np.bool_)])
        return LayeredState(
            state.base, keep, self._buffer_ids[:end], self._buffer[:end], alive, places, count + len(ids)
        )

    def _make_room(self, state: LayeredState, rows: int) -> None:
        """A buffer with place for `rows`; states before keep the one they have."""
        if rows <= len(self._buffer_ids):
            return
        room = max(64, 2 * rows)
        ids, buffer = np.empty(room, np.int64), np.empty((room, self.dimension), np.float32)
        ids[: len(state.ids)], buffer[: len(state.ids)] = state.ids, state.vectors
        self._buffer_ids, self._buffer = ids, buffer


def _again(
    queries: F32Array, vectors: F32Array, ids: NDArray[np.int64], rows: NDArray[np.int64]
) -> tuple[NDArray[np.int64], F32Array]:
    """(q, m) ids and float32 cosines of candidate rows, computed in double precision; `NOTHING` for row -1."""
    scores = np.full(rows.shape, -np.inf, np.float32)
    step = max(1, _GATHER_BYTES // max(1, 8 * rows.shape[1] * vectors.shape[1]))
    for start in range(0, len(rows), step):
        some = slice(start, start + step)
        near = vectors[np.maximum(rows[some], 0)].astype(np.float64)
        exact = np.einsum("qd,qmd->qm", queries[some].astype(np.float64), near)
        scores[some] = np.clip(exact, -1.0, 1.0)
    scores[rows < 0] = -np.inf
    return np.where(rows < 0, NOTHING, ids[np.maximum(rows, 0)]), scores


def merged(parts: list[tuple[NDArray[np.int64], F32Array]], queries: int, k: int) -> Hits:
    """The k best of several lists of (q, m) ids and scores; equal scores by id."""
    hits = Hits.none(queries, k)
    if not parts:
        return hits
    ids, scores = np.concatenate([p[0] for p in parts], axis=1), np.concatenate([p[1] for p in parts], axis=1)
    order = np.lexsort((ids, -scores), axis=1)[:, :k]
    n = order.shape[1]
    hits.ids[:, :n] = np.take_along_axis(ids, order, axis=1)
    hits.scores[:, :n] = np.take_along_axis(scores, order, axis=1)
    hits.ids[np.isneginf(hits.scores)] = NOTHING
    return hits
