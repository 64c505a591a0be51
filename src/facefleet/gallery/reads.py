"""What is read from a gallery's database: people, samples, changes; every row is held against its checksum.

All functions take a connection, within a transaction where several answers have to fit each other.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from facefleet.errors import ConfigError, GalleryCorruptError, PersonNotFoundError
from facefleet.gallery.checksums import row_checksum
from facefleet.gallery.records import Change, Person, Sample
from facefleet.gallery.transaction import no_person, person_checksum
from facefleet.types import F32Array

_CHUNK = 500
_PERSON = (
    "SELECT id, name, metadata, created_s, checksum,"
    " (SELECT COUNT(*) FROM samples WHERE person = people.id) FROM people"
)
_SAMPLE = (
    "SELECT id, person, embedding, checksum, source, source_sha256, quality, box, chip, facts_checksum, created_s"
    " FROM samples"
)


_LATER_VECTORS = (  # said, since SQLite would read the whole table to save itself the sorting
    "SELECT COUNT(*) FROM samples INDEXED BY samples_by_revision WHERE revision > ?",
    "SELECT id, person, embedding, checksum FROM samples INDEXED BY samples_by_revision WHERE revision > ? ORDER BY id",
)
_ALL_VECTORS = (
    "SELECT COUNT(*) FROM samples NOT INDEXED WHERE revision > ?",
    "SELECT id, person, embedding, checksum FROM samples NOT INDEXED WHERE revision > ? ORDER BY id",
)


def damaged(what: str) -> GalleryCorruptError:
    """The error for a row that is not what was written."""
    return GalleryCorruptError(
        f"{what} is damaged: its checksum differs", hint="restore the folder from a backup, or import an export"
    )


def meta(db: sqlite3.Connection, key: str) -> str | None:
    """A remembered value."""
    row = db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return None if row is None else str(row[0])


def people(db: sqlite3.Connection, where: Mapping[str, Any] | None = None) -> Iterator[Person]:
    """Everybody, by id; or those whose metadata fit (see `condition`)."""
    clause, parameters = condition(where or {})
    for row in db.execute(f"{_PERSON} WHERE {clause} ORDER BY id", parameters):
        yield _person(row)


def some_people(db: sqlite3.Connection, ids: Sequence[int]) -> dict[int, Person]:
    """Those of `ids` who are there."""
    found = {}
    for start in range(0, len(ids), _CHUNK):
        chunk = [int(each) for each in ids[start : start + _CHUNK]]
        marks = ",".join("?" * len(chunk))
        for row in db.execute(f"{_PERSON} WHERE id IN ({marks})", chunk):
            found[row[0]] = _person(row)
    return found


def person(db: sqlite3.Connection, who: int | str) -> Person:
    """Somebody by id, or by a name that only one has.

    Raises:
        PersonNotFoundError: Nobody, or several.
    """
    if isinstance(who, int):
        rows = db.execute(f"{_PERSON} WHERE id = ?", (who,)).fetchall()
    else:
        rows = db.execute(
            f"{_PERSON} WHERE name = ? ORDER BY id LIMIT 9", (who.strip().encode(errors="replace").decode(),)
        ).fetchall()
    if not rows:
        raise no_person(who)
    if len(rows) > 1:
        ids = ", ".join(str(row[0]) for row in rows)
        raise PersonNotFoundError(f"several people are called {who!r}: {ids}", hint="name one by id")
    return _person(rows[0])


def _person(row: Sequence[Any]) -> Person:
    number, name, metadata, created_s, checksum, samples = row
    if checksum != person_checksum(number, name, metadata):
        raise damaged(f"person {number}")
    return Person(number, name, json.loads(metadata), samples, created_s)


def condition(where: Mapping[str, Any]) -> tuple[str, list[object]]:
    """SQL for people whose metadata have every value asked for; a list asks for any of its values.

    Args:
        where: Key, with dots for nested ones, to a text, number, bool, None or list of these.

    Raises:
        ConfigError: A value of another kind.
    """
    clauses = ["1"]
    parameters: list[object] = []
    for key, value in where.items():
        path = "$" + "".join(f'."{part}"' for part in key.replace('"', "").split("."))
        values = value if isinstance(value, (list, tuple, set, frozenset)) else [value]
        tests = []
        for each in values:
            if each is not None and not isinstance(each, (str, int, float, bool)):
                raise ConfigError(f"filter {key!r}: {each!r} cannot be compared", hint="use text, numbers, true, false")
            tests.append("json_extract(metadata, ?) IS ?")
            parameters += [path, each]
        clauses.append(f"({' OR '.join(tests) or '0'})")
    return " AND ".join(clauses), parameters


def samples_of(db: sqlite3.Connection, person_id: int) -> list[Sample]:
    """All samples of somebody, by id."""
    return list(_samples(db.execute(f"{_SAMPLE} WHERE person = ? ORDER BY id", (person_id,))))


def all_samples(db: sqlite3.Connection) -> Iterator[Sample]:
    """All samples, by id."""
    yield from _samples(db.execute(f"{_SAMPLE} ORDER BY id"))


def some_samples(db: sqlite3.Connection, ids: Sequence[int]) -> dict[int, Sample]:
    """Those of `ids` that are there."""
    found = {}
    for number in ids:
        for sample in _samples(db.execute(f"{_SAMPLE} WHERE id = ?", (int(number),))):
            found[sample.id] = sample
    return found


def _samples(rows: Iterable[Sequence[Any]]) -> Iterator[Sample]:
    for number, owner, data, checksum, source, digest, quality, box, chip, facts_checksum, created_s in rows:
        if checksum != row_checksum(number, owner, data):
            raise damaged(f"sample {number}")
        if facts_checksum != row_checksum(source, digest, quality, box, chip):
            raise damaged(f"sample {number}")
        yield Sample(
            number,
            owner,
            np.frombuffer(data, "<f4").astype(np.float32, copy=False),
            source,
            digest,
            json.loads(quality),
            None if box is None else tuple(json.loads(box)),
            chip,
            created_s,
        )


def vectors_after(
    db: sqlite3.Connection, revision: int, dimension: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], F32Array]:
    """Samples added or changed after a revision, by id.

    Returns:
        ids (n,), people (n,), and vectors (n, d).

    Raises:
        GalleryCorruptError: A row is damaged.
    """
    # Everything is read from the table itself: an index that lost a row must not hide it.
    count_query, query = _ALL_VECTORS if revision < 0 else _LATER_VECTORS
    count = db.execute(count_query, (revision,)).fetchone()[0]
    ids, owners = np.empty(count, np.int64), np.empty(count, np.int64)
    vectors = np.empty((count, dimension), np.float32)
    i, last = -1, -1
    for i, (number, owner, data, checksum) in enumerate(db.execute(query, (revision,))):
        if i >= count or number <= last:
            raise damaged("the table of samples")
        last = number
        if checksum != row_checksum(number, owner, data) or len(data) != 4 * dimension:
            raise damaged(f"sample {number}")
        ids[i], owners[i], vectors[i] = number, owner, np.frombuffer(data, "<f4")
    if i + 1 != count:
        raise damaged("the table of samples")
    return ids, owners, vectors


def removed_after(db: sqlite3.Connection, revision: int) -> NDArray[np.int64]:
    """(n,) ids of samples removed after a revision."""
    rows = db.execute("SELECT sample FROM removed WHERE revision > ?", (revision,))
    return np.fromiter((row[0] for row in rows), np.int64)


def token_of(db: sqlite3.Connection, revision: int) -> int | None:
    """What tells a revision from one of the same number in another copy's life; None if there is none."""
    row = db.execute("SELECT token FROM commits WHERE revision = ?", (revision,)).fetchone()
    return None if row is None else int(row[0])


def counts(db: sqlite3.Connection) -> tuple[int, int]:
    """How many people and samples there are."""
    return (
        int(db.execute("SELECT COUNT(*) FROM people").fetchone()[0]),
        int(db.execute("SELECT COUNT(*) FROM samples").fetchone()[0]),
    )


def history(db: sqlite3.Connection, person_id: int | None = None, limit: int | None = None) -> Iterator[Change]:
    """Changes, latest first; of one person, if given."""
    clause, parameters = ("1", []) if person_id is None else ("person = ?", [person_id])
    query = (
        "SELECT revision, at_s, who, action, person, history.samples, detail FROM history JOIN commits USING (revision)"
    )
    order = "ORDER BY history.id DESC LIMIT ?"
    for row in db.execute(f"{query} WHERE {clause} {order}", (*parameters, -1 if limit is None else limit)):
        revision, at_s, who, action, person_of, samples, detail = row
        yield Change(revision, at_s, who, action, person_of, samples, json.loads(detail))
