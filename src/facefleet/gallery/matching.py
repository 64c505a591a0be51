"""From the nearest samples to the nearest people.

Owns how a person with several samples is scored, and how far one has to look to have k different people.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from facefleet.gallery.index.base import NOTHING
from facefleet.gallery.index.flat import FlatSegment
from facefleet.gallery.index.layered import Base, LayeredIndex, LayeredState
from facefleet.gallery.view import Seen
from facefleet.types import F32Array

_PEOPLE = 4096
_FIRST = 4  # samples looked at per person wanted, the first time


@dataclass(frozen=True, slots=True)
class Candidate:
    """Somebody, scored.

    Attributes:
        person: Id.
        score: Cosine.
        sample: The best sample; None for mean scoring.
    """

    person: int
    score: float
    sample: int | None


def best_people(
    seen: Seen, queries: F32Array, k: int, threshold: float, allowed: NDArray[np.int64] | None
) -> list[list[Candidate]]:
    """The k people with the best single samples, for each query.

    Args:
        seen: The state.
        queries: (q, d) float32 of length one.
        k: How many people, at most.
        threshold: Least score.
        allowed: Samples to choose from, ascending; None: all.
    """
    answers: list[list[Candidate]] = [[] for _ in queries]
    open_ = np.arange(len(queries))
    fetch = _FIRST * k
    while len(open_):
        hits = seen.searcher.search(queries[open_], fetch, allowed=allowed)
        people = seen.roster.people_of(hits.ids)
        more = []
        for row, query in enumerate(open_):
            answers[query], done = _grouped(hits.ids[row], hits.scores[row], people[row], k, threshold)
            if not done:
                more.append(query)
        open_ = np.array(more, np.int64)
        fetch *= 4
    return answers


def _grouped(
    ids: NDArray[np.int64], scores: F32Array, people: NDArray[np.int64], k: int, threshold: float
) -> tuple[list[Candidate], bool]:
    """The first sample of each person, best first; and whether more samples could not change that."""
    found: dict[int, Candidate] = {}
    for sample, score, person in zip(ids.tolist(), scores.tolist(), people.tolist(), strict=True):
        if sample == NOTHING or score < threshold:
            return list(found.values()), True
        if person >= 0 and person not in found:  # -1: a server that is ahead of this state
            found[person] = Candidate(person, score, sample)
            if len(found) == k:
                return list(found.values()), True
    return list(found.values()), False


class Means:
    """The mean of each person's samples, normalized: what mean scoring compares with. Made for one state.

    Source: template averaging, e.g. Whitelam et al., "IARPA Janus Benchmark-B face dataset", CVPRW 2017.

    Args:
        seen: The state.
        vectors: Every sample's vector, where the state does not have them itself: (n,) ids, ascending, and (n, d).
    """

    def __init__(self, seen: Seen, vectors: tuple[NDArray[np.int64], F32Array] | None = None) -> None:
        ids, people = seen.roster.arrays()
        if vectors is None:
            assert isinstance(seen.searcher, LayeredState)
            vectors = seen.searcher.living()
        living, matrix = vectors
        order = np.argsort(people, kind="stable")
        owners, starts = np.unique(people[order], return_index=True)
        rows = np.searchsorted(living, ids[order])
        means = np.empty((len(owners), matrix.shape[1]), np.float32)
        counts = np.diff(np.append(starts, len(rows)))
        for first in range(0, len(owners), _PEOPLE):
            some = slice(first, first + _PEOPLE)
            sums = matrix[rows[starts[some]]].astype(np.float64)
            for place in range(1, int(counts[some].max())):
                more = np.flatnonzero(counts[some] > place)
                sums[more] += matrix[rows[starts[some][more] + place]]
            norms = np.linalg.norm(sums, axis=1, keepdims=True)
            means[some] = sums / np.where(norms > 0, norms, 1.0)
        base = Base(owners, means, FlatSegment(means) if len(owners) else None)
        self.revision = seen.revision
        self._index = LayeredIndex(matrix.shape[1], FlatSegment, {}, base)

    def search(
        self, queries: F32Array, k: int, threshold: float, allowed: NDArray[np.int64] | None
    ) -> list[list[Candidate]]:
        """The k people with the best means, for each query.

        Args:
            queries: (q, d) float32 of length one.
            k: How many people, at most.
            threshold: Least score.
            allowed: People to choose from, ascending; None: all.
        """
        hits = self._index.search(queries, k, allowed=allowed)
        return [
            [
                Candidate(person, score, None)
                for person, score in zip(ids, scores, strict=True)
                if person != NOTHING and score >= threshold
            ]
            for ids, scores in zip(hits.ids.tolist(), hits.scores.tolist(), strict=True)
        ]
