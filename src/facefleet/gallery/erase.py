"""Erasing a person: from the record, its log, every snapshot and index; and looking whether anything is left.

Owns the order: the rows are deleted and the deletion is durable; snapshots are deleted; the log is written back and
cut to nothing; then every file of the gallery is searched for the bytes of the vectors. SQLite overwrites what is
deleted with zeros; where it left copies nonetheless, the file is written anew. A crash in between is made good when
the gallery is opened again. What was exported or copied elsewhere before is out of reach.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from facefleet.errors import EraseIncompleteError, GalleryWriteError
from facefleet.gallery import scanner
from facefleet.gallery.database import Database
from facefleet.gallery.transaction import Transaction, no_person, writing
from facefleet.gallery.view import ERASED, View, snapshot_files, snapshots_locked

PENDING = "erase_pending"
_NEEDLE_BYTES = 32
_WAIT_S = 5.0


@dataclass(frozen=True, slots=True)
class ErasedPerson:
    """What was removed.

    Attributes:
        person: The id, which is never given again.
        samples: Vectors, with their chips and sources.
        snapshots: Files that were deleted since they held the vectors.
        files_scanned: Files that were searched for what may be left; nothing was found.
    """

    person: int
    samples: int
    snapshots: int
    files_scanned: int


def erase_person(database: Database, view: View, person: int, who: str, *, wait_s: float = _WAIT_S) -> ErasedPerson:
    """Erase somebody and verify that nothing is left.

    Raises:
        PersonNotFoundError: There is no such person.
        EraseIncompleteError: The record is clean, but another process still reads the state before, so that the log
            keeps traces; they go when the gallery is next opened or checked.
        SearchUnavailableError: The index's server is away; it is told when it is back.
    """
    with writing(database, who) as change:
        if change.db.execute("SELECT 1 FROM people WHERE id = ?", (person,)).fetchone() is None:
            raise no_person(person)
        blobs = [row[0] for row in change.db.execute("SELECT embedding FROM samples WHERE person = ?", (person,))]
        samples = change.remove_person(person)
        needles = _needles(_not_of_others(change, blobs))
        change.db.execute("INSERT OR IGNORE INTO erased VALUES (?)", (person,))
        change.note("erase", person, samples)
        mark_erased(change)
    snapshots = finish_erase(database, view, wait_s=wait_s)
    try:
        files = scan(database.path.parent, needles)
    except EraseIncompleteError:
        # Rows that a page's rebalancing moved leave copies in the unused part of pages, zeros or not.
        database.compact()
        _cut_log(database, wait_s)
        files = scan(database.path.parent, needles)
    return ErasedPerson(person, samples, snapshots, files)


def mark_erased(change: Transaction) -> None:
    """Within a transaction that deletes: no older snapshot may be used, and the files have to be cleaned."""
    change.remember(ERASED, str(change.revision))
    change.remember(PENDING, "1")


def finish_erase(database: Database, view: View, *, wait_s: float = _WAIT_S) -> int:
    """Clean the files after a deletion; returns how many snapshots there were.

    Raises:
        EraseIncompleteError: A reader keeps the log.
        SearchUnavailableError: The index's server is away; opening the gallery or checking it tries again.
    """
    folder = database.path.parent
    with snapshots_locked(folder):
        files = snapshot_files(folder)
        for path in files:
            path.unlink(missing_ok=True)
    _cut_log(database, wait_s)
    view.renew()
    view.purge()
    with database.writing() as db:
        db.execute("DELETE FROM meta WHERE key = ?", (PENDING,))
    return len(files)


def _cut_log(database: Database, wait_s: float) -> None:
    deadline = time.monotonic() + wait_s
    while not database.truncate_log():
        if time.monotonic() > deadline:
            raise EraseIncompleteError(
                f"{database.path}: erased, but the write-ahead log is still read by another process",
                hint="run `facefleet gallery check` when it is done",
            )
        time.sleep(0.02)


def _not_of_others(change: Transaction, blobs: Sequence[bytes]) -> list[bytes]:
    """Without vectors that somebody else has, too: the same picture under two names."""
    shared: set[bytes] = set()
    for start in range(0, len(blobs), 500):
        some = blobs[start : start + 500]
        marks = ",".join("?" * len(some))
        query = f"SELECT DISTINCT embedding FROM samples WHERE embedding IN ({marks})"  # noqa: S608  # only marks
        shared.update(row[0] for row in change.db.execute(query, some))
    return [blob for blob in blobs if blob not in shared]


def _needles(blobs: Sequence[bytes]) -> list[bytes]:
    """Pieces of the vectors that would not be found in other data by chance, from both halves."""
    needles = []
    for blob in blobs:
        for start in (0, len(blob) // 2):
            piece = blob[start : start + _NEEDLE_BYTES]
            if len(set(piece)) > 4:  # not of zeros, which are everywhere
                needles.append(piece)
    return needles


def scan(folder: Path, needles: Sequence[bytes]) -> int:
    """Search every file of a folder for bytes that must not be there, in a process of its own (see `scanner`).

    Returns:
        How many files there are.

    Raises:
        EraseIncompleteError: They are there.
        GalleryWriteError: A file cannot be read.
    """
    command = [sys.executable, "-I", scanner.__file__, str(folder)]
    done = subprocess.run(
        command, input="\n".join(needle.hex() for needle in needles), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise GalleryWriteError(f"{folder}: cannot be searched: {done.stderr.strip().splitlines()[-1:]}")
    answer = json.loads(done.stdout)
    if answer["found"]:
        raise EraseIncompleteError(
            f"{answer['found'][0]}: still holds an erased vector", hint="run `facefleet gallery check`"
        )
    return int(answer["files"])
