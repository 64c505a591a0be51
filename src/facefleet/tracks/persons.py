"""Whose track it is: somebody of a gallery, or one of the unknown persons who are told apart by their embeddings.

Greedy clustering in the order the tracks come, against the mean embedding of each person; a track never joins a
person who is seen elsewhere at the same time.
"""

from __future__ import annotations

from collections import deque
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
        overlap_s: Two tracks of one camera that are seen together for longer are two persons.
        most: Unknown persons that are remembered, those seen last; None: all. For streams that never end.
        most_times: Tracks a person that are remembered for `overlap_s`; None: all.
    """

    threshold: float
    overlap_s: float = 0.0
    most: int | None = None
    most_times: int | None = None


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


@dataclass(slots=True)
class _Unknown:
    total: F32Array  # weighted sum of embeddings
    times: deque[tuple[str, float, float]]  # camera, start, end of tracks


class Persons:
    """The persons of one video or stream.

    Args:
        options: What counts as the same person.
        gallery: Asked first; None: everybody is unknown.
    """

    def __init__(self, options: PersonOptions, gallery: Identifier | None = None) -> None:
        self._options = options
        self._gallery = gallery
        self._people: dict[int, _Unknown] = {}  # those seen last at the end
        self._count = 0

    def identify(
        self, embedding: F32Array | None, start_s: float, end_s: float, *, weight: float = 1, camera: str = ""
    ) -> TrackIdentity:
        """Find the person of a track, or begin a new one.

        Args:
            embedding: (d,) float32, L2-normalised mean of the track's best faces; None if it has none.
            start_s: When the track begins.
            end_s: When it ends.
            weight: How much it counts in the person's mean, e.g. the number of embeddings.
            camera: Where it was seen; a person may be before two cameras at once.
        """
        if embedding is None:
            return UNKNOWN
        found = self._gallery.identify(embedding) if self._gallery is not None else None
        if found is not None:
            return TrackIdentity(found[0], found[1], known=True)
        number, score = self._likest(embedding, start_s, end_s, camera)
        if number is None:
            self._count += 1
            number = self._count
            person = _Unknown(np.zeros_like(embedding), deque(maxlen=self._options.most_times))
        else:
            person = self._people.pop(number)
        person.total = person.total + embedding * np.float32(weight)
        person.times.append((camera, start_s, end_s))
        self._people[number] = person
        if self._options.most is not None and len(self._people) > self._options.most:
            del self._people[next(iter(self._people))]
        return TrackIdentity(f"person {number}", score, known=False)

    def _likest(
        self, embedding: F32Array, start_s: float, end_s: float, camera: str
    ) -> tuple[int, float] | tuple[None, None]:
        """The person that is most like it, among those alike enough and not seen elsewhere meanwhile."""
        if not self._people:
            return None, None
        numbers = list(self._people)
        totals = np.stack([person.total for person in self._people.values()])
        scores = totals @ embedding / np.maximum(np.linalg.norm(totals, axis=1), 1e-9)
        for at in np.argsort(-scores, kind="stable").tolist():
            if scores[at] < self._options.threshold:
                break
            if not self._together(self._people[numbers[at]], start_s, end_s, camera):
                return numbers[at], float(scores[at])
        return None, None

    def _together(self, person: _Unknown, start_s: float, end_s: float, camera: str) -> bool:
        limit = self._options.overlap_s
        return any(
            where == camera and min(end, end_s) - max(start, start_s) > limit for where, start, end in person.times
        )
