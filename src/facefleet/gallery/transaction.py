"""What changes a gallery: every write is one transaction, one revision and at least one line of the history.

Owns ids and revisions: ids are SQLite's AUTOINCREMENT, never given twice. A sample carries the revision of its last
change and a removed one leaves a tombstone, so that any index can be brought from the state it has to the present
one. Runs in the caller's thread; SQLite lets in one writer of all processes.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from facefleet.errors import GalleryCorruptError, GalleryError, PersonNotFoundError
from facefleet.gallery.checksums import row_checksum
from facefleet.gallery.chips import encode_chip
from facefleet.gallery.database import Database
from facefleet.gallery.records import NewSample
from facefleet.types import F32Array

_LONGEST_NAME = 1000


class Transaction:
    """An open write transaction; made by `writing`.

    Attributes:
        db: The connection.
        revision: Of the state after it.
    """

    def __init__(self, db: sqlite3.Connection, who: str) -> None:
        self.db = db
        self.at_s = time.time()
        self.revision = latest_revision(db) + 1
        self.people, self.samples = expected_counts(db)
        self._token = secrets.randbits(62)
        db.execute("INSERT INTO commits VALUES (?, ?, ?, ?, 0, 0, 0)", (self.revision, self._token, self.at_s, who))

    def seal(self) -> None:
        """The last thing before the commit: how many people and samples there have to be after it."""
        checksum = row_checksum(self.revision, self._token, self.people, self.samples)
        self.db.execute(
            "UPDATE commits SET people = ?, samples = ?, checksum = ? WHERE revision = ?",
            (self.people, self.samples, checksum, self.revision),
        )

    def note(self, action: str, person: int | None, samples: int = 0, detail: Mapping[str, Any] | None = None) -> None:
        """A line of the history; `detail` holds no name and nothing of a picture."""
        self.db.execute(
            "INSERT INTO history (revision, action, person, samples, detail) VALUES (?, ?, ?, ?, ?)",
            (self.revision, action, person, samples, json.dumps(detail or {})),
        )

    def add_person(self, name: str, metadata: Mapping[str, Any], *, id: int | None = None) -> int:  # noqa: A002
        """Add somebody; returns the id."""
        name, text = checked_name(name), metadata_text(metadata)
        cursor = self.db.execute(
            "INSERT INTO people (id, name, metadata, created_s, checksum) VALUES (?, ?, ?, ?, 0)",
            (id, name, text, self.at_s),
        )
        assert cursor.lastrowid is not None
        self.people += 1
        self._seal_person(cursor.lastrowid, name, text)
        return cursor.lastrowid

    def change_person(self, person: int, *, name: str | None = None, metadata: Mapping[str, Any] | None = None) -> None:
        """Give somebody another name or other metadata."""
        row = self.db.execute("SELECT name, metadata FROM people WHERE id = ?", (person,)).fetchone()
        if row is None:
            raise no_person(person)
        name = row[0] if name is None else checked_name(name)
        text = row[1] if metadata is None else metadata_text(metadata)
        self._seal_person(person, name, text)

    def _seal_person(self, person: int, name: str, text: str) -> None:
        self.db.execute(
            "UPDATE people SET name = ?, metadata = ?, checksum = ? WHERE id = ?",
            (name, text, person_checksum(person, name, text), person),
        )

    def remove_person(self, person: int) -> int:
        """Remove somebody with all samples; returns how many samples there were."""
        samples = [row[0] for row in self.db.execute("SELECT id FROM samples WHERE person = ?", (person,))]
        self.remove_samples(samples)
        self.people -= self.db.execute("DELETE FROM people WHERE id = ?", (person,)).rowcount
        return len(samples)

    def add_sample(
        self,
        person: int,
        vector: F32Array,
        sample: NewSample,
        *,
        id: int | None = None,  # noqa: A002
        chip_png: bytes | None = None,
    ) -> int:
        """Add a face.

        Args:
            person: Whose it is.
            vector: (d,) float32 of length one.
            sample: Everything else of it.
            id: Its id; None for a new one.
            chip_png: Its aligned face, if `sample` has none as an array.

        Returns:
            The id.
        """
        data = vector.astype("<f4").tobytes()
        if sample.chip is not None:
            chip_png = encode_chip(sample.chip)
        facts = facts_of(sample)
        cursor = self.db.execute(
            "INSERT INTO samples (id, person, revision, embedding, checksum, created_s, source, source_sha256, quality,"
            " box, chip, facts_checksum) VALUES (?, ?, ?, ?, 0, ?, ?, ?, ?, ?, ?, ?)",
            (id, person, self.revision, data, self.at_s, *facts, chip_png, row_checksum(*facts, chip_png)),
        )
        number = cursor.lastrowid
        assert number is not None
        self.db.execute("UPDATE samples SET checksum = ? WHERE id = ?", (row_checksum(number, person, data), number))
        self.db.execute("DELETE FROM removed WHERE sample = ?", (number,))
        self.samples += 1
        return number

    def move_samples(self, samples: Sequence[int], person: int) -> None:
        """Give samples to somebody else."""
        for number in samples:
            row = self.db.execute("SELECT embedding FROM samples WHERE id = ?", (number,)).fetchone()
            self.db.execute(
                "UPDATE samples SET person = ?, revision = ?, checksum = ? WHERE id = ?",
                (person, self.revision, row_checksum(number, person, row[0]), number),
            )

    def remove_samples(self, samples: Sequence[int]) -> None:
        """Remove faces, leaving tombstones."""
        self.samples -= self.db.executemany("DELETE FROM samples WHERE id = ?", [(n,) for n in samples]).rowcount
        self.db.executemany("DELETE FROM reembedded WHERE sample = ?", ((number,) for number in samples))
        self.db.executemany(
            "INSERT OR REPLACE INTO removed VALUES (?, ?)", ((number, self.revision) for number in samples)
        )

    def remember(self, key: str, value: str | None) -> None:
        """A value of the gallery as a whole; None forgets it."""
        if value is None:
            self.db.execute("DELETE FROM meta WHERE key = ?", (key,))
        else:
            self.db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))


@contextlib.contextmanager
def writing(database: Database, who: str) -> Iterator[Transaction]:
    """A write transaction: durable when the block ends, undone if it raises."""
    with database.writing() as db:
        change = Transaction(db, who)
        yield change
        change.seal()


def latest_revision(db: sqlite3.Connection) -> int:
    """Number of the last write."""
    return int(db.execute("SELECT MAX(revision) FROM commits").fetchone()[0] or 0)


def expected_counts(db: sqlite3.Connection) -> tuple[int, int]:
    """How many people and samples there are, as the last write has noted; (0, 0) before the first.

    Raises:
        GalleryCorruptError: The note is damaged.
    """
    query = "SELECT revision, token, people, samples, checksum FROM commits ORDER BY revision DESC LIMIT 1"
    row = db.execute(query).fetchone()
    if row is None:
        return 0, 0
    if row[4] != row_checksum(*row[:4]):
        raise GalleryCorruptError("the list of changes is damaged", hint="restore a backup, or import an export")
    return int(row[2]), int(row[3])


def person_checksum(person: int, name: str, metadata: str) -> int:
    """What a row of people is sealed with."""
    return row_checksum(person, name, metadata)


def facts_of(sample: NewSample) -> tuple[str | None, str | None, str, str | None]:
    """The columns of a sample that are no vector: source, source_sha256, quality, box."""
    box = None if sample.box is None else json.dumps([round(float(value), 3) for value in sample.box])
    quality = json.dumps({key: round(float(value), 5) for key, value in sample.quality.items() if value == value})  # noqa: PLR0124  # NaN
    return sample.source, sample.source_sha256, quality, box


def checked_name(name: str) -> str:
    """A name that can be stored and shown.

    Raises:
        GalleryError: It is empty, too long, or has control characters or parts of characters.
    """
    name = name.strip()
    if not name or len(name) > _LONGEST_NAME or any(ord(sign) < 32 or 0xD800 <= ord(sign) < 0xE000 for sign in name):
        raise GalleryError(f"the name {name[:40]!r} cannot be used", hint=f"1 to {_LONGEST_NAME} characters of text")
    return name


def metadata_text(metadata: Mapping[str, Any]) -> str:
    """Metadata as it is stored.

    Raises:
        GalleryError: It is not a JSON object.
    """
    try:
        return json.dumps(dict(metadata), ensure_ascii=False, allow_nan=False, sort_keys=True)
    except (TypeError, ValueError) as error:
        raise GalleryError(f"metadata is not JSON: {error}", hint="use text, numbers, lists and objects") from error


def no_person(person: int | str) -> PersonNotFoundError:
    """The error for somebody who is not there."""
    return PersonNotFoundError(f"no person {person!r} in this gallery", hint="see `facefleet gallery list`")
