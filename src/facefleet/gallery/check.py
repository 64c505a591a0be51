"""Is everything that is stored what was written? Reads all of a gallery; changes nothing but what an erasing left."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from facefleet.errors import FacefleetError
from facefleet.gallery import reads
from facefleet.gallery.erase import PENDING, finish_erase
from facefleet.gallery.gallery import Gallery
from facefleet.gallery.index.registry import SEGMENTS, segment_type
from facefleet.gallery.index.snapshot import read_snapshot
from facefleet.gallery.records import METRIC
from facefleet.gallery.transaction import expected_counts, person_checksum


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What was found.

    Attributes:
        people: Rows read.
        samples: Rows read.
        snapshots: Files read.
        problems: What is wrong; empty where all is well.
    """

    people: int
    samples: int
    snapshots: int
    problems: tuple[str, ...]


def check_gallery(gallery: Gallery) -> CheckReport:
    """Check file structure, every row, every snapshot, and that index and record agree."""
    problems: list[str] = []
    people = samples = 0
    try:
        with gallery.database.reading() as db:
            problems += [f"database: {row[0]}" for row in db.execute("PRAGMA integrity_check(20)") if row[0] != "ok"]
            people = _check_people(db, problems)
            samples = _check_samples(db, problems)
            if (people, samples) != (wanted := expected_counts(db)):
                problems.append(
                    f"{people} people and {samples} samples were read, {wanted[0]} and {wanted[1]} have to be"
                )
            pending = reads.meta(db, PENDING)
        if pending is not None:
            finish_erase(gallery.database, gallery.view)
    except FacefleetError as error:
        problems.append(error.message)
    snapshots = _check_snapshots(gallery, problems)
    if not problems:
        _check_index(gallery, samples, problems)
    return CheckReport(people, samples, snapshots, tuple(problems))


def _check_people(db: sqlite3.Connection, problems: list[str]) -> int:
    count = 0
    for number, name, metadata, checksum in db.execute("SELECT id, name, metadata, checksum FROM people"):
        count += 1
        if checksum != person_checksum(number, name, metadata):
            problems.append(f"person {number} is damaged")
    return count


def _check_samples(db: sqlite3.Connection, problems: list[str]) -> int:
    count = 0
    for (number,) in db.execute("SELECT id FROM samples ORDER BY id").fetchall():
        count += 1
        try:
            if not reads.some_samples(db, [number]):
                problems.append(f"sample {number} is listed and not there")
        except FacefleetError as error:
            problems.append(error.message)
    orphans = "SELECT id FROM samples WHERE person NOT IN (SELECT id FROM people)"
    problems += [f"sample {row[0]} belongs to nobody" for row in db.execute(orphans)]
    return count


def _check_snapshots(gallery: Gallery, problems: list[str]) -> int:
    options = dict(gallery.header.index)
    kind = str(options.pop("kind"))
    files = sorted(gallery.folder.glob("*.snapshot"))
    for path in files if kind in SEGMENTS else ():
        try:
            read_snapshot(path, segment_type(kind), options)
        except FacefleetError as error:
            problems.append(error.message)
    return len(files)


def _check_index(gallery: Gallery, samples: int, problems: list[str]) -> None:
    try:
        with gallery.view.searching():
            index = gallery.view.index
            if index is not None and len(index) != samples:
                problems.append(f"the index has {len(index)} vectors, the record {samples}")
    except FacefleetError as error:
        problems.append(error.message)


def statistics(gallery: Gallery) -> dict[str, object]:
    """What a gallery is and how large."""
    people, samples = gallery.counts()
    header = gallery.header
    files = [path for path in gallery.folder.rglob("*") if path.is_file()]
    with gallery.database.reading() as db:
        revision = db.execute("SELECT MAX(revision) FROM commits").fetchone()[0]
        chips = db.execute("SELECT COUNT(*) FROM samples WHERE chip IS NOT NULL").fetchone()[0]
    with gallery.view.searching():
        index = gallery.view.index
        base = getattr(index, "base", None)
        segment = None if base is None or base.segment is None else base.segment.facts()
    return {
        "folder": str(gallery.folder),
        "uuid": header.uuid,
        "people": people,
        "samples": samples,
        "chips": chips,
        "revision": revision,
        "metric": METRIC,
        "dimension": header.pipeline.dimension,
        "threshold": header.pipeline.threshold,
        "fingerprint": header.pipeline.fingerprint,
        "pipeline": dict(header.pipeline.description),
        "index": dict(header.index) | {"built": segment or {}},
        "bytes": sum(path.stat().st_size for path in files),
    }
