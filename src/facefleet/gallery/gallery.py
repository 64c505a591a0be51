"""`Gallery`: people and their faces; who is this, and is it really they?

Owns the folder of one gallery: `gallery.sqlite`, the record of truth, and snapshots of the index made from it. Several
galleries are several folders. Any number of processes may have it open; one writes at a time, readers are never held
up, and what a write has returned for is on the disk and in every later answer of every process. Safe in any thread.
"""

from __future__ import annotations

import getpass
import json
import math
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from facefleet.errors import (
    ConfigError,
    GalleryCorruptError,
    GalleryError,
    GalleryExistsError,
    GalleryNotFoundError,
    GalleryWriteError,
    PersonNotFoundError,
    PipelineMismatchError,
)
from facefleet.gallery import reads
from facefleet.gallery.calibration import Calibration
from facefleet.gallery.database import FILE, FORMAT, Database
from facefleet.gallery.erase import PENDING, ErasedPerson, erase_person, finish_erase, mark_erased
from facefleet.gallery.index.registry import KINDS, SEGMENTS, segment_type
from facefleet.gallery.matching import Candidate, Means, best_people
from facefleet.gallery.records import (
    METRIC,
    Change,
    Decision,
    Header,
    Match,
    NewSample,
    Person,
    PipelineIdentity,
    Sample,
    Scoring,
)
from facefleet.gallery.transaction import Transaction, writing
from facefleet.gallery.vectors import checked_vectors
from facefleet.gallery.view import View

_MOST = 10_000  # people asked for in one search


class Gallery:
    """A gallery that is open; see `create`, `open` and this module.

    Args:
        folder: The gallery's folder.
        actor: Who changes it, for the history; default: the user of this process.
    """

    def __init__(self, folder: Path, *, actor: str | None = None) -> None:
        if not (folder / FILE).is_file():
            raise GalleryNotFoundError(f"{folder}: no gallery", hint=f"facefleet gallery create {folder}")
        self.folder = folder
        self.actor = actor or _user()
        self.database = Database(folder)
        try:
            self.header = read_header(self.database)
            self.view = View(self.database, folder, self.header)
            with self.database.reading() as db:
                pending = reads.meta(db, PENDING)
            if pending is not None:
                finish_erase(self.database, self.view, wait_s=0.0)
        except BaseException:
            self.database.close()
            raise

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
        folder = Path(folder)
        if index not in KINDS:
            raise ConfigError(f"index {index!r}", hint=f"choose one of {', '.join(KINDS)}")
        if index in SEGMENTS:
            segment_type(index).build(np.eye(1, pipeline.dimension, dtype=np.float32), options or {})
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.iterdir()):
                raise GalleryExistsError(f"{folder}: not empty", hint="name a new folder")
        except OSError as error:
            raise GalleryWriteError(f"{folder}: {error}", hint="check permissions") from error
        database = Database(folder)
        try:
            with database.writing() as db:
                database.create()
                change = Transaction(db, actor or _user())
                for key, value in {
                    "format": FORMAT,
                    "uuid": uuid.uuid4().hex,
                    "metric": METRIC,
                    "pipeline": _pipeline_text(pipeline),
                    "index": json.dumps({"kind": index} | dict(options or {}), sort_keys=True),
                    "keep_chips": json.dumps(keep_chips),
                    "created_s": repr(time.time()),
                }.items():
                    change.remember(key, value)
                change.note("create", None)
        finally:
            database.close()
        return cls(folder, actor=actor)

    @classmethod
    def open(cls, folder: str | Path, *, actor: str | None = None) -> Self:
        """Open a gallery.

        Raises:
            GalleryNotFoundError: There is none.
            GalleryCorruptError: It is damaged, or of another version.
        """
        return cls(Path(folder), actor=actor)

    def close(self) -> None:
        """Wait for an index that is being rebuilt, and give everything back."""
        self.view.close()
        self.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Reading

    def require(self, fingerprint: str) -> None:
        """Refuse embeddings of another pipeline.

        Raises:
            PipelineMismatchError: It is not the gallery's.
        """
        if fingerprint != self.header.pipeline.fingerprint:
            made = ", ".join(f"{key} {value}" for key, value in self.header.pipeline.description.items())
            raise PipelineMismatchError(
                f"{self.folder}: made with another model, aligner or detector ({made or 'see `gallery stats`'})",
                hint=f"use the same pack and options, or `facefleet gallery reembed {self.folder}`",
            )

    def __len__(self) -> int:
        with self.database.reading() as db:
            return reads.counts(db)[0]

    def counts(self) -> tuple[int, int]:
        """How many people and samples there are."""
        with self.database.reading() as db:
            return reads.counts(db)

    def people(self, where: Mapping[str, Any] | None = None) -> list[Person]:
        """Everybody, or those whose metadata have these values; by id.

        Args:
            where: Key, with dots for nested ones, to a value or a list of values.
        """
        with self.database.reading() as db:
            return list(reads.people(db, where))

    def person(self, who: int | str) -> Person:
        """Somebody, by id or by a name that only one has.

        Raises:
            PersonNotFoundError: Nobody, or several.
        """
        with self.database.reading() as db:
            return reads.person(db, who)

    def samples(self, who: int | str) -> list[Sample]:
        """The faces of somebody, by id."""
        with self.database.reading() as db:
            return reads.samples_of(db, reads.person(db, who).id)

    def history(self, who: int | None = None, *, limit: int | None = None) -> list[Change]:
        """Who changed what, latest first; of somebody, even if erased, or of all."""
        with self.database.reading() as db:
            return list(reads.history(db, who, limit))

    def calibration(self) -> Calibration | None:
        """The calibration in use, if one was made for this pipeline."""
        with self.database.reading() as db:
            text = reads.meta(db, "calibration")
        return None if text is None else Calibration.from_json(text)

    # Searching

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
        """Who are these? (1:N)

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
            allowed = None
            if where:
                allowed = seen.roster.samples_of(person.id for person in reads.people(db, where))
            if scoring == "best":
                answers = best_people(seen, vectors, k, limit, allowed)
            else:
                stored = None
                if self.view.remote:
                    ids = seen.roster.arrays()[0].tolist()
                    stored = {number: each.embedding for number, each in reads.some_samples(db, ids).items()}
                answers = Means(seen, allowed, stored).search(vectors, k, limit)
            people = reads.some_people(db, sorted({each.person for answer in answers for each in answer}))
        return [[_match(each, people, calibration) for each in answer] for answer in answers]

    def verify(
        self, query: ArrayLike, who: int | str, *, fingerprint: str, threshold: float | None = None, scoring: Scoring = "best"
    ) -> Decision:
        """Is this the person? (1:1)

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

    # Writing

    def enrol(
        self,
        who: int | str,
        samples: Sequence[NewSample],
        *,
        fingerprint: str,
        metadata: Mapping[str, Any] | None = None,
        new: bool = False,
    ) -> tuple[int, list[int]]:
        """Store faces of somebody, all or none; on the disk when it returns.

        Args:
            who: Id, or a name; somebody of that name is made where there is nobody.
            samples: At least one; none for a new person who has no face yet.
            fingerprint: Of the pipeline that made the embeddings.
            metadata: JSON object, for a new person, or to replace somebody's.
            new: Whether a new person is made even where somebody has this name.

        Returns:
            The person's id, and those of the samples.

        Raises:
            PipelineMismatchError, InvalidEmbeddingError: See `identify`.
            PersonNotFoundError: No person of that id, or several of that name.
            GalleryBusyError, GalleryWriteError: Nothing was stored.
        """
        self.require(fingerprint)
        vectors = [checked_vectors(sample.embedding, self.header.pipeline.dimension)[0] for sample in samples]
        with writing(self.database, self.actor) as change:
            person = self._find_or_add(change, who, metadata, new=new)
            ids = [
                change.add_sample(person, vector, sample if self.header.keep_chips else without_chip(sample))
                for vector, sample in zip(vectors, samples, strict=True)
            ]
            change.note("enrol", person, len(ids))
        return person, ids

    def _find_or_add(self, change: Transaction, who: int | str, metadata: Mapping[str, Any] | None, *, new: bool) -> int:
        if isinstance(who, str):
            count = change.db.execute("SELECT COUNT(*) FROM people WHERE name = ?", (who.strip(),)).fetchone()[0]
            if new or not count:
                return change.add_person(who, metadata or {})
        person = reads.person(change.db, who).id
        if metadata is not None:
            change.change_person(person, metadata=metadata)
        return person

    def update(self, who: int | str, metadata: Mapping[str, Any]) -> None:
        """Replace somebody's metadata."""
        with writing(self.database, self.actor) as change:
            person = reads.person(change.db, who).id
            change.change_person(person, metadata=metadata)
            change.note("update", person, detail={"keys": len(metadata)})

    def rename(self, who: int | str, name: str) -> None:
        """Give somebody another name."""
        with writing(self.database, self.actor) as change:
            person = reads.person(change.db, who).id
            change.change_person(person, name=name)
            change.note("rename", person)

    def merge(self, into: int | str, other: int | str) -> int:
        """Two people are one: `other`'s samples become `into`'s, `other` is gone; returns how many samples moved.

        Raises:
            PersonNotFoundError: One is not there.
            GalleryError: Both are the same.
        """
        with writing(self.database, self.actor) as change:
            target, source = reads.person(change.db, into).id, reads.person(change.db, other).id
            if target == source:
                raise GalleryError(f"person {target} cannot be merged with itself")
            ids = [row[0] for row in change.db.execute("SELECT id FROM samples WHERE person = ?", (source,))]
            change.move_samples(ids, target)
            change.db.execute("DELETE FROM people WHERE id = ?", (source,))
            change.note("merge", target, len(ids), {"other": source})
            change.note("merged", source, len(ids), {"into": target})
        return len(ids)

    def split(self, who: int | str, samples: Sequence[int], name: str, metadata: Mapping[str, Any] | None = None) -> int:
        """One person is two: some of the samples become a new person's, whose id is returned.

        Raises:
            PersonNotFoundError: A sample is not this person's, or none is named.
        """
        with writing(self.database, self.actor) as change:
            person = reads.person(change.db, who).id
            self._owned(change, person, samples)
            fresh = change.add_person(name, metadata or {})
            change.move_samples(samples, fresh)
            change.note("split", person, len(samples), {"into": fresh})
            change.note("split_off", fresh, len(samples), {"from": person})
        return fresh

    def remove_samples(self, who: int | str, samples: Sequence[int]) -> None:
        """Remove some of somebody's faces.

        Raises:
            PersonNotFoundError: A sample is not this person's, or none is named.
        """
        with writing(self.database, self.actor) as change:
            person = reads.person(change.db, who).id
            self._owned(change, person, samples)
            change.remove_samples(samples)
            change.note("remove_samples", person, len(samples))
            mark_erased(change)
        finish_erase(self.database, self.view)

    def _owned(self, change: Transaction, person: int, samples: Sequence[int]) -> None:
        owned = {row[0] for row in change.db.execute("SELECT id FROM samples WHERE person = ?", (person,))}
        missing = [number for number in samples if number not in owned]
        if missing or not samples:
            raise PersonNotFoundError(
                f"person {person} has no sample {missing[0] if missing else 'that was named'}",
                hint=f"see `facefleet gallery show {self.folder} {person}`",
            )

    def erase(self, who: int | str) -> ErasedPerson:
        """Remove somebody everywhere, and look whether anything is left; see `facefleet.gallery.erase`.

        Raises:
            PersonNotFoundError: Nobody, or several of that name.
            EraseIncompleteError: Removed from the record and all answers, but traces are on the disk for now.
        """
        return erase_person(self.database, self.view, self.person(who).id, self.actor)

    def remember_calibration(self, calibration: Calibration | None) -> None:
        """Use a calibration for probabilities from now on."""
        with writing(self.database, self.actor) as change:
            change.remember("calibration", None if calibration is None else calibration.to_json())
            change.note("calibrate", None)


def galleries(folder: str | Path) -> list[Path]:
    """The folders of all galleries in a file tree."""
    return sorted(path.parent for path in Path(folder).rglob(FILE))


def read_header(database: Database) -> Header:
    """The contract of a gallery.

    Raises:
        GalleryCorruptError: It is missing or of another version.
    """
    with database.reading() as db:
        values = dict(db.execute("SELECT key, value FROM meta").fetchall())
    try:
        if values["format"] != FORMAT or values["metric"] != METRIC:
            raise GalleryCorruptError(
                f"{database.path}: format {values['format']}, metric {values['metric']}; this version reads {FORMAT}, {METRIC}",
                hint="use the version of facefleet that made it, export, and import here",
            )
        pipeline = PipelineIdentity(**json.loads(values["pipeline"]))
        if not re.fullmatch(r"[0-9a-f]{32}", values["uuid"]) or pipeline.dimension < 1:
            raise ValueError("uuid or dimension")
        return Header(
            values["uuid"],
            pipeline,
            json.loads(values["index"]),
            json.loads(values["keep_chips"]),
            float(values["created_s"]),
            values["metric"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise GalleryCorruptError(f"{database.path}: its header is damaged: {error}", hint="restore a backup") from error


def _pipeline_text(pipeline: PipelineIdentity) -> str:
    return json.dumps(
        {
            "fingerprint": pipeline.fingerprint,
            "dimension": pipeline.dimension,
            "threshold": pipeline.threshold,
            "description": dict(pipeline.description),
        }
    )


def without_chip(sample: NewSample) -> NewSample:
    """A sample as a gallery without chips keeps it."""
    return NewSample(sample.embedding, sample.source, sample.source_sha256, sample.quality, sample.box)


def _match(candidate: Candidate, people: Mapping[int, Person], calibration: Calibration | None) -> Match:
    person = people[candidate.person]
    probability = None if calibration is None else calibration.probability(candidate.score)
    return Match(person.id, person.name, person.metadata, candidate.score, candidate.sample, probability)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


__all__ = ["Gallery", "galleries"]
