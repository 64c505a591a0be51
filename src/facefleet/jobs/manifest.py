"""What a job has done so far, in SQLite beside the output.

Owns the state of every input and of every part file. A commit is one transaction, made after the part it names is
durable, so that at any moment each input is either done, with its results on disk, or not begun. Used by one thread.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from facefleet.errors import OutputError, OutputExistsError
from facefleet.sinks import Span

_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS items (
    key TEXT PRIMARY KEY, position INTEGER NOT NULL, run INTEGER NOT NULL,
    size INTEGER NOT NULL, mtime INTEGER NOT NULL, pictures TEXT NOT NULL,
    status TEXT NOT NULL, code TEXT, reason TEXT, faces INTEGER NOT NULL,
    part INTEGER, start INTEGER, length INTEGER
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS items_by_position ON items (run, position);
CREATE TABLE IF NOT EXISTS parts (id INTEGER PRIMARY KEY AUTOINCREMENT, file TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS moved (key TEXT PRIMARY KEY, start INTEGER, length INTEGER) WITHOUT ROWID;
"""
_VERSION = "1"
OUTPUT = 0
"""The `part` of items whose results are in the output itself."""


class Status(StrEnum):
    """How an input ended."""

    OK = "ok"
    NO_FACE = "no_face"
    FAILED_RETRYABLE = "failed_retryable"
    FAILED_PERMANENT = "failed_permanent"


@dataclass(frozen=True, slots=True)
class Known:
    """What is recorded of an input.

    Attributes:
        run: The run that saw it last.
        size_bytes: Its size then.
        mtime_ns: Its time of change then.
        pictures: The folders of pictures that were written for it.
        status: How it ended.
        code: Error code.
        faces: Faces found.
    """

    run: int
    size_bytes: int
    mtime_ns: int
    pictures: str
    status: Status
    code: str | None
    faces: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One finished input, as it is recorded.

    Attributes:
        key: The input.
        position: Its place in the order of this run.
        size_bytes: Its size, to notice a change; -1 where not known.
        mtime_ns: Its time of change; -1 where not known.
        pictures: The folders of pictures that were written for it.
        status: How it ended.
        faces: Faces found.
        code: Error code.
        reason: Error message.
        span: Where its results lie in the part.
    """

    key: str
    position: int
    size_bytes: int
    mtime_ns: int
    pictures: str
    status: Status
    faces: int = 0
    code: str | None = None
    reason: str | None = None
    span: Span | None = None


class JobManifest:
    """The record of one output.

    Args:
        path: The SQLite file.
        settings: What results depend on; an existing record of other settings is refused.

    Raises:
        OutputExistsError: The output was made with other settings, or by another version's manifest.
        OutputError: The file cannot be used. Every method raises it when the disk fails or is full.
    """

    def __init__(self, path: Path, settings: str) -> None:
        self.path = path
        overwrite = "use --overwrite to start the job anew"
        try:
            self._db = sqlite3.connect(path, isolation_level=None)
        except sqlite3.Error as error:
            raise OutputError(f"{path}: cannot be used: {error}", hint=overwrite) from error
        try:
            try:
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.execute("PRAGMA synchronous=FULL")
            except sqlite3.Error as error:
                raise OutputError(f"{path}: cannot be used: {error}", hint=overwrite) from error
            with self._transaction():
                for statement in filter(str.strip, _SCHEMA.split(";")):
                    self._do(statement)
                for key, value in (("version", _VERSION), ("settings", settings)):
                    self._do("INSERT OR IGNORE INTO meta VALUES (?, ?)", key, value)
            if self.meta("version") != _VERSION or self.meta("settings") != settings:
                raise OutputExistsError(
                    f"{path.name}: this output was made with another model or other settings",
                    hint="write to another file, or use --overwrite to start anew",
                )
            self.run = 1 + int(self.meta("run") or 0)
            with self._transaction():
                self.remember("run", str(self.run))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def meta(self, key: str) -> str | None:
        """A remembered value."""
        value = self._one("SELECT value FROM meta WHERE key = ?", key)
        return None if value is None else str(value)

    def remember(self, key: str, value: str) -> None:
        """Remember a value."""
        self._do("INSERT OR REPLACE INTO meta VALUES (?, ?)", key, value)

    def state(self, key: str) -> Known | None:
        """What is recorded of an input that has been seen before."""
        query = "SELECT run, size, mtime, pictures, status, code, faces FROM items WHERE key = ?"
        row = next(self._rows(query, key), None)
        if row is None:
            return None
        run, size, mtime, pictures, status, code, faces = row
        return Known(run, size, mtime, pictures, Status(status), code, faces)

    def commit(self, entries: Iterable[Entry], kept: Iterable[tuple[str, int]], part: Path | None) -> None:
        """Record finished inputs and, of those done in a run before, their place in this one.

        Args:
            entries: Finished in this run; their results are in `part`.
            kept: Key and position.
            part: The part file, durable already; None if no entry has results.
        """
        with self._transaction():
            number = None if part is None else self._do("INSERT INTO parts (file) VALUES (?)", part.name).lastrowid
            self._many(
                f"INSERT OR REPLACE INTO items VALUES ({', '.join('?' * 13)})",  # noqa: S608  # no text from outside
                (self._row(entry, number) for entry in entries),
            )
            self._many(
                "UPDATE items SET position = ?, run = ? WHERE key = ?",
                ((position, self.run, key) for key, position in kept),
            )

    def _row(self, e: Entry, part: int | None) -> tuple[object, ...]:
        reason = None if e.reason is None else e.reason.encode("utf-8", "backslashreplace").decode()
        place = (None, None, None) if e.span is None else (part, e.span.start, e.span.length)
        known = (e.key, e.position, self.run, e.size_bytes, e.mtime_ns, e.pictures)
        return (*known, e.status.value, e.code, reason, e.faces, *place)

    def spans(self, output: Path, folder: Path) -> Iterator[tuple[str, Path, Span]]:
        """Results of this run's inputs in order: key, file, and where in it."""
        files = {OUTPUT: output} | {number: folder / name for number, name in self._rows("SELECT id, file FROM parts")}
        query = "SELECT key, part, start, length FROM items WHERE run = ? AND part IS NOT NULL ORDER BY position"
        for key, part, start, length in self._rows(query, self.run):
            yield key, files[part], Span(start, length)

    def order_changed(self) -> bool:
        """Whether the output is not what this run's inputs, in their order, should give."""
        return bool(self._one("SELECT COUNT(*) FROM parts")) or self.meta("output_order") != self._order(self.run)

    def plan_move(self, spans: Iterable[tuple[str, Span]]) -> None:
        """Record where results will lie in a new output, which is written while `spans` is iterated."""
        with self._transaction():
            self._do("DELETE FROM moved")
            self._many("INSERT INTO moved VALUES (?, ?, ?)", ((key, s.start, s.length) for key, s in spans))

    def begin_move(self, sha256: str) -> None:
        """The new output is complete and has this digest; from here on the move can be finished after a kill."""
        with self._transaction():
            self.remember("moving", sha256)
            self.remember("moving_run", str(self.run))

    def finish_move(self, stamp: str) -> None:
        """The output is in place: results lie there now, and parts are no longer needed.

        Inputs that the run did not name are not in it: they are forgotten.

        Args:
            stamp: Tells whether the output is still this one.
        """
        run, sha256 = int(self.meta("moving_run") or 0), self.meta("moving") or ""
        with self._transaction():
            self._do("DELETE FROM items WHERE run <> ?", run)
            self._do(
                "UPDATE items SET part = ?, (start, length) ="
                " (SELECT start, length FROM moved WHERE moved.key = items.key)"
                " WHERE key IN (SELECT key FROM moved)",
                OUTPUT,
            )
            self._do("DELETE FROM parts")
            self._do("DELETE FROM moved")
            self._do("DELETE FROM meta WHERE key = 'moving'")
            self.remember("output_sha256", sha256)
            self.remember("output_stamp", stamp)
            self.remember("output_order", self._order(run))

    def cancel_move(self) -> None:
        """The output did not get into place: forget the plan."""
        with self._transaction():
            self._do("DELETE FROM moved")
            self._do("DELETE FROM meta WHERE key = 'moving'")

    def forget_unseen(self) -> int:
        """Forget inputs that this run did not name; returns how many there were."""
        with self._transaction():
            return self._do("DELETE FROM items WHERE run <> ?", self.run).rowcount

    def forget_output(self) -> None:
        """The output is gone: what was in it has to be done again."""
        with self._transaction():
            self._do("DELETE FROM items WHERE part = ?", OUTPUT)
            self._do("DELETE FROM meta WHERE key = 'output_order'")

    def forget_part(self, name: str) -> None:
        """A part file is gone: what was in it has to be done again."""
        with self._transaction():
            self._do("DELETE FROM items WHERE part = (SELECT id FROM parts WHERE file = ?)", name)
            self._do("DELETE FROM parts WHERE file = ?", name)

    def part_names(self) -> set[str]:
        """Names of the part files in use."""
        return {name for (name,) in self._rows("SELECT file FROM parts")}

    def counts(self) -> dict[Status, int]:
        """Inputs of this run by status."""
        found = dict(self._rows("SELECT status, COUNT(*) FROM items WHERE run = ? GROUP BY status", self.run))
        return {status: found.get(status.value, 0) for status in Status}

    def faces(self) -> int:
        """Faces of this run's inputs."""
        return int(self._one("SELECT SUM(faces) FROM items WHERE run = ?", self.run) or 0)

    def errors(self) -> dict[str, int]:
        """Failed inputs of this run by error code."""
        query = "SELECT code, COUNT(*) FROM items WHERE run = ? AND code IS NOT NULL GROUP BY code ORDER BY code"
        return dict(self._rows(query, self.run))

    def failures(self) -> Iterator[tuple[str, str, str, str]]:
        """Failed inputs of this run in order: key, status, code, reason."""
        query = "SELECT key, status, code, reason FROM items WHERE run = ? AND code IS NOT NULL ORDER BY position"
        yield from self._rows(query, self.run)

    def _order(self, run: int) -> str:
        """A digest of which results this run's output has, in which order."""
        state = hashlib.sha256()
        query = "SELECT key, start, length FROM items WHERE run = ? AND part IS NOT NULL ORDER BY position"
        for row in self._rows(query, run):
            state.update(repr(row).encode())
        return state.hexdigest()

    def _one(self, query: str, *parameters: object) -> Any:  # noqa: ANN401  # whatever the column holds
        row = next(self._rows(query, *parameters), None)
        return None if row is None else row[0]

    def _rows(self, query: str, *parameters: object) -> Iterator[Any]:
        with self._mapped():
            yield from self._db.execute(query, parameters)

    def _do(self, query: str, *parameters: object) -> sqlite3.Cursor:
        with self._mapped():
            return self._db.execute(query, parameters)

    def _many(self, query: str, rows: Iterable[tuple[object, ...]]) -> None:
        with self._mapped():
            self._db.executemany(query, rows)

    @contextlib.contextmanager
    def _mapped(self) -> Iterator[None]:
        """Everything that SQLite raises becomes ours here."""
        try:
            yield
        except sqlite3.Error as error:
            raise OutputError(
                f"{self.path}: {error}", hint="check permissions and free space, then run the job again"
            ) from error

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._do("BEGIN IMMEDIATE")
        try:
            yield
            self._do("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")
            raise
