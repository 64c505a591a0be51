"""From the nearest samples to the nearest people.

Owns how a person with several samples is scored, and how far one has to look to have k different people.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from facefleet.gallery.index.base import NOTHING
from facefleet.gallery.index.layered import LayeredState
from facefleet.gallery.view import Seen
from facefleet.types import F32Array

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
    """

    def __init__(self, seen: Seen, allowed: NDArray[np.int64] | None, vectors: Mapping[int, F32Array] | None) -> None:
        ids, people = seen.roster.arrays()
        if allowed is not None:
            rows = np.isin(ids, allowed)
            ids, people = ids[rows], people[rows]
        if isinstance(seen.searcher, LayeredState):
            living, all_vectors = seen.searcher.living()
            matrix = all_vectors[np.searchsorted(living, ids)] if len(ids) else all_vectors[:0]
        else:
            assert vectors is not None
            matrix = np.stack([vectors[int(number)] for number in ids]) if len(ids) else np.empty((0, 1), np.float32)
        self.people, groups = np.unique(people, return_inverse=True)
        order = np.argsort(groups, kind="stable")
        starts = np.searchsorted(groups[order], np.arange(len(self.people)))
        sums = np.add.reduceat(matrix[order].astype(np.float64), starts, axis=0) if len(ids) else matrix
        norms = np.linalg.norm(sums, axis=1, keepdims=True)
        self.vectors = (sums / np.where(norms > 0, norms, 1.0)).astype(np.float32)

    def search(self, queries: F32Array, k: int, threshold: float) -> list[list[Candidate]]:
        """The k people with the best means, for each query."""
        if not len(self.people):
            return [[] for _ in queries]
        scores = np.clip(queries.astype(np.float64) @ self.vectors.T.astype(np.float64), -1, 1).astype(np.float32)
        answers = []
        for line in scores:
            order = np.lexsort((self.people, -line))[:k]
            answers.append(
                [Candidate(int(self.people[i]), float(line[i]), None) for i in order if line[i] >= threshold]
            )
        return answers
