"""What a gallery holds, without searching: people and samples, read and changed.

Owns every change of the record but erasing. Each is one transaction, on the disk when it returns, or undone.
"""

from __future__ import annotations

import contextlib
import getpass
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from facefleet.errors import (
    EraseIncompleteError,
    GalleryError,
    GalleryNotFoundError,
    PersonNotFoundError,
    PipelineMismatchError,
    SearchUnavailableError,
)
from facefleet.gallery import reads
from facefleet.gallery.calibration import Calibration
from facefleet.gallery.database import FILE, Database
from facefleet.gallery.erase import PENDING, finish_erase, mark_erased
from facefleet.gallery.header import read_header
from facefleet.gallery.records import Change, NewSample, Person, Sample
from facefleet.gallery.transaction import Transaction, checked_name, writing
from facefleet.gallery.vectors import checked_vectors
from facefleet.gallery.view import View, require_same

_log = logging.getLogger(__name__)


class GalleryRecord:
    """A gallery that is open, without its searches; see `facefleet.gallery.gallery.Gallery`.

    Args:
        folder: The gallery's folder.
        actor: Who changes it, for the history; default: the user of this process.
    """

    def __init__(self, folder: Path, *, actor: str | None = None) -> None:
        if not (folder / FILE).is_file():
            raise GalleryNotFoundError(f"{folder}: no gallery", hint=f"facefleet gallery create {folder}")
        self.folder = folder
        self.actor = actor or current_user()
        self.database = Database(folder)
        try:
            self.header = read_header(self.database)
            self.view = View(self.database, folder, self.header)
            with self.database.reading() as db:
                pending = reads.meta(db, PENDING)
            if pending is not None:
                self._finish_pending()
        except BaseException:
            self.database.close()
            raise

    def _finish_pending(self) -> None:
        """Clean up after an erasing that was cut off.

        The next opening tries again if others read the files now, or the index's server is away.
        """
        try:
            finish_erase(self.database, self.view, wait_s=0.0)
        except (EraseIncompleteError, SearchUnavailableError) as error:
            _log.warning("%s", error)

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

    # Writing

    @contextlib.contextmanager
    def writing(self) -> Iterator[Transaction]:
        """A write transaction on the gallery that was opened, not on one that was re-embedded meanwhile."""
        with writing(self.database, self.actor) as change:
            require_same(change.db, self.header)
            yield change

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
        with self.writing() as change:
            person = find_or_add(change, who, metadata, new=new)
            ids = [
                change.add_sample(person, vector, sample if self.header.keep_chips else without_chip(sample))
                for vector, sample in zip(vectors, samples, strict=True)
            ]
            change.note("enrol", person, len(ids))
        return person, ids

    def update(self, who: int | str, metadata: Mapping[str, Any]) -> None:
        """Replace somebody's metadata."""
        with self.writing() as change:
            person = reads.person(change.db, who).id
            change.change_person(person, metadata=metadata)
            change.note("update", person, detail={"keys": len(metadata)})

    def rename(self, who: int | str, name: str) -> None:
        """Give somebody another name."""
        with self.writing() as change:
            person = reads.person(change.db, who).id
            change.change_person(person, name=name)
            change.note("rename", person)

    def merge(self, into: int | str, other: int | str) -> int:
        """Two people are one: `other`'s samples become `into`'s, `other` is gone; returns how many samples moved.

        Raises:
            PersonNotFoundError: One is not there.
            GalleryError: Both are the same.
        """
        with self.writing() as change:
            target, source = reads.person(change.db, into).id, reads.person(change.db, other).id
            if target == source:
                raise GalleryError(f"person {target} cannot be merged with itself")
            ids = [row[0] for row in change.db.execute("SELECT id FROM samples WHERE person = ?", (source,))]
            change.move_samples(ids, target)
            change.remove_person(source)
            change.note("merge", target, len(ids), {"other": source})
            change.note("merged", source, len(ids), {"into": target})
        return len(ids)

    def split(
        self, who: int | str, samples: Sequence[int], name: str, metadata: Mapping[str, Any] | None = None
    ) -> int:
        """One person is two: some of the samples become a new person's, whose id is returned.

        Raises:
            PersonNotFoundError: A sample is not this person's, or none is named.
        """
        with self.writing() as change:
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
        with self.writing() as change:
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

    def remember_calibration(self, calibration: Calibration | None) -> None:
        """Use a calibration for probabilities from now on."""
        with self.writing() as change:
            change.remember("calibration", None if calibration is None else calibration.to_json())
            change.note("calibrate", None)


def find_or_add(change: Transaction, who: int | str, metadata: Mapping[str, Any] | None, *, new: bool) -> int:
    """The id of somebody, who is made where the name is nobody's, or where `new` is said.

    Raises:
        PersonNotFoundError: No person of that id, or several of that name.
        GalleryError: The name or the metadata cannot be used.
    """
    if isinstance(who, str):
        name = checked_name(who)
        count = change.db.execute("SELECT COUNT(*) FROM people WHERE name = ?", (name,)).fetchone()[0]
        if new or not count:
            return change.add_person(who, metadata or {})
    person = reads.person(change.db, who).id
    if metadata is not None:
        change.change_person(person, metadata=metadata)
    return person


def without_chip(sample: NewSample) -> NewSample:
    """A sample as a gallery without chips keeps it."""
    return NewSample(sample.embedding, sample.source, sample.source_sha256, sample.quality, sample.box)


def current_user() -> str:
    """The user of this process."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
