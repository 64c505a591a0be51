"""Whose track it is: somebody of a gallery, or one of the unknown persons who are told apart by their embeddings.

Greedy clustering in the order the tracks come, against the mean embedding of each person; a track never joins a
person who is seen elsewhere at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from facefleet.types import F32Array


class Identifier(Protocol):
    """A gallery, as tracks see it."""

    def identify(self, embedding: F32Array) -> tuple[str, float] | None:
        """Name and score of the person with this embedding.

        Args:
            embedding: (d,) float32, L2-normalised.

        Returns:
            The best match at or above the gallery's threshold, or None.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonOptions:
    """What counts as the same person.

    Attributes:
        threshold: Least cosine similarity of a track and a person.
        overlap_s: Two tracks that are seen together for longer are two persons.
    """

    threshold: float
    overlap_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TrackIdentity:
    """Whose track it is.

    Attributes:
        person: The gallery's name, or ``person N``, or ``unknown`` without an embedding.
        score: Similarity to the person as known before; None for the first track of an unknown person.
        known: Whether the gallery knows the person.
    """

    person: str
    score: float | None
    known: bool


UNKNOWN = TrackIdentity("unknown", None, known=False)


class Persons:
    """The persons of one video or stream.

    Args:
        options: What counts as the same person.
        gallery: Asked first; None: everybody is unknown.
    """

    def __init__(self, options: PersonOptions, gallery: Identifier | None = None) -> None:
        self._options = options
        self._gallery = gallery
        self._sums: list[F32Array] = []
        self._times: list[list[tuple[float, float]]] = []

    def identify(self, embedding: F32Array | None, start_s: float, end_s: float, *, weight: float = 1) -> TrackIdentity:
        """Find the person of a track, or begin a new one.

        Args:
            embedding: (d,) float32, L2-normalised mean of the track's best faces; None if it has none.
            start_s: When the track begins.
            end_s: When it ends.
            weight: How much it counts in the person's mean, e.g. the number of embeddings.
        """
        if embedding is None:
            return UNKNOWN
        found = self._gallery.identify(embedding) if self._gallery is not None else None
        if found is not None:
            return TrackIdentity(found[0], found[1], known=True)
        scores = [float(total @ embedding / max(float(np.linalg.norm(total)), 1e-9)) for total in self._sums]
        for number in np.argsort(scores)[::-1] if scores else []:
            if scores[number] < self._options.threshold:
                break
            if self._together(int(number), start_s, end_s):
                continue
            self._sums[number] = self._sums[number] + embedding * np.float32(weight)
            self._times[number].append((start_s, end_s))
            return TrackIdentity(f"person {number + 1}", scores[number], known=False)
        self._sums.append(embedding * np.float32(weight))
        self._times.append([(start_s, end_s)])
        return TrackIdentity(f"person {len(self._sums)}", None, known=False)

    def _together(self, person: int, start_s: float, end_s: float) -> bool:
        limit = self._options.overlap_s
        return any(min(end, end_s) - max(start, start_s) > limit for start, end in self._times[person])
