"""`Gallery`: people and their faces; who is this, and is it really they?

Owns the folder of one gallery: `gallery.sqlite`, the record of truth, and snapshots of the index made from it. Several
galleries are several folders. Any number of processes may have it open; one writes at a time, readers are never held
up, and what a write has returned for is on the disk and in every later answer of every process. Safe in any thread.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from facefleet.errors import (
    ConfigError,
    PersonNotFoundError,
)
from facefleet.gallery import reads
from facefleet.gallery.calibration import Calibration
from facefleet.gallery.erase import ErasedPerson, erase_person
from facefleet.gallery.header import create_files
from facefleet.gallery.matching import Candidate, Means, best_people
from facefleet.gallery.record import GalleryRecord, current_user
from facefleet.gallery.records import (
    Decision,
    Match,
    Person,
    PipelineIdentity,
    Scoring,
)
from facefleet.gallery.vectors import checked_vectors
from facefleet.gallery.view import Seen

_MOST = 10_000  # people asked for in one search


class Gallery(GalleryRecord):
    """A gallery that is open; see `create`, `open` and this module.

    Args:
        folder: The gallery's folder.
        actor: Who changes it, for the history; default: the user of this process.
    """

    _means: Means | None = None

    @classmethod
    def create(
        cls,
        folder: str | Path,
        pipeline: PipelineIdentity,
        *,
        index: str = "flat",
        options: Mapping[str, Any] | None = None,
        keep_chips: bool = False,
        actor: str | None = None,
    ) -> Self:
        """Make an empty gallery and open it.

        Args:
            folder: A new or empty folder.
            pipeline: What will make its embeddings; nothing else is let in.
            index: ``flat``, ``faiss``, ``flat-cuda`` or ``milvus``.
            options: Of the index.
            keep_chips: Whether aligned faces are stored.
            actor: See `Gallery`.

        Raises:
            GalleryExistsError: There is one, or the folder is not empty.
            ConfigError: The index or its options are unknown.
            BackendUnavailableError: A library that the index needs is missing.
            GalleryWriteError: The folder cannot be made.
        """
        create_files(Path(folder), pipeline, index, options or {}, keep_chips=keep_chips, actor=actor or current_user())
        return cls(Path(folder), actor=actor)

    @classmethod
    def open(cls, folder: str | Path, *, actor: str | None = None) -> Self:
        """Open a gallery.

        Raises:
            GalleryNotFoundError: There is none.
            GalleryCorruptError: It is damaged, or of another version.
        """
        return cls(Path(folder), actor=actor)

    def identify(
        self,
        queries: ArrayLike,
        *,
        fingerprint: str,
        k: int = 1,
        threshold: float | None = None,
        where: Mapping[str, Any] | None = None,
        scoring: Scoring = "best",
    ) -> list[list[Match]]:
        """Who are these people, of all that are known (1:N).

        Args:
            queries: (q, d) or (d,) embeddings.
            fingerprint: Of the pipeline that made them.
            k: How many people a query, at most.
            threshold: Least score; default: the pack's. -1 lets everybody through.
            where: Only people whose metadata fit, see `people`.
            scoring: ``best`` sample of a person, or ``mean`` of all.

        Returns:
            For each query the matches, best first; none for somebody unknown.

        Raises:
            PipelineMismatchError: `fingerprint` is not the gallery's.
            InvalidEmbeddingError: A query is not finite, zero or of another dimension.
            ConfigError: `k`, `threshold` or `where` make no sense.
            GalleryCorruptError: The record is damaged.
            SearchUnavailableError: The index's server is away.
        """
        self.require(fingerprint)
        vectors = checked_vectors(queries, self.header.pipeline.dimension)
        if not 1 <= k <= _MOST:
            raise ConfigError(f"k={k}", hint=f"1 to {_MOST}")
        if scoring not in ("best", "mean"):
            raise ConfigError(f"scoring {scoring!r}", hint="choose one of best, mean")
        limit = self.header.pipeline.threshold if threshold is None else threshold
        if not math.isfinite(limit):
            raise ConfigError(f"threshold {limit}", hint="a cosine, -1 to 1")
        calibration = self.calibration()
        with self.view.searching() as (db, seen):
            chosen = None if not where else sorted(person.id for person in reads.people(db, where))
            if scoring == "best":
                allowed = None if chosen is None else seen.roster.samples_of(chosen)
                answers = best_people(seen, vectors, k, limit, allowed)
            else:
                allowed = None if chosen is None else np.array(chosen, np.int64)
                answers = self._means_of(seen, db).search(vectors, k, limit, allowed)
            wanted = sorted({each.person for answer in answers for each in answer})
            people = reads.some_people(db, wanted)
            if len(people) != len(wanted):  # the same state of the record says that they have samples
                raise reads.damaged("the table of people")
        return [[_match(each, people, calibration) for each in answer] for answer in answers]

    def _means_of(self, seen: Seen, db: sqlite3.Connection) -> Means:
        """The means of a state; the latest are kept."""
        means = self._means
        if means is None or means.revision != seen.revision:
            stored = None
            if self.view.remote:
                ids, _, vectors = reads.vectors_after(db, -1, self.header.pipeline.dimension)
                stored = ids, vectors
            self._means = means = Means(seen, stored)
        return means

    def verify(
        self,
        query: ArrayLike,
        who: int | str,
        *,
        fingerprint: str,
        threshold: float | None = None,
        scoring: Scoring = "best",
    ) -> Decision:
        """Whether this is the person (1:1).

        Args:
            query: (d,) an embedding.
            who: Id, or a name that only one has.
            fingerprint: See `identify`.
            threshold: See `identify`.
            scoring: See `identify`.

        Raises:
            PersonNotFoundError: Nobody, several of that name, or a person without samples.
            PipelineMismatchError, InvalidEmbeddingError: See `identify`.
        """
        self.require(fingerprint)
        vector = checked_vectors(query, self.header.pipeline.dimension)[0].astype(np.float64)
        limit = self.header.pipeline.threshold if threshold is None else threshold
        calibration = self.calibration()
        with self.database.reading() as db:
            person = reads.person(db, who)
            samples = reads.samples_of(db, person.id)
        if not samples:
            raise PersonNotFoundError(f"person {person.id} has no samples", hint="enrol one first")
        stored = np.stack([sample.embedding for sample in samples]).astype(np.float64)
        if scoring == "mean":
            total = stored.sum(axis=0)
            stored = (total / max(np.linalg.norm(total), 1e-12))[None]
        score = float(np.float32(np.clip(stored @ vector, -1, 1).max()))
        probability = None if calibration is None else calibration.probability(score)
        return Decision(person.id, score >= limit, score, limit, probability)

    def erase(self, who: int | str) -> ErasedPerson:
        """Remove somebody everywhere, and look whether anything is left; see `facefleet.gallery.erase`.

        Raises:
            PersonNotFoundError: Nobody, or several of that name.
            EraseIncompleteError: Removed from the record and all answers, but traces are on the disk for now.
        """
        return erase_person(self.database, self.view, self.person(who).id, self.actor)


def _match(candidate: Candidate, people: Mapping[int, Person], calibration: Calibration | None) -> Match:
    person = people[candidate.person]
    probability = None if calibration is None else calibration.probability(candidate.score)
    return Match(person.id, person.name, person.metadata, candidate.score, candidate.sample, probability)
