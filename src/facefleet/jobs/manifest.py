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

from facefleet.errors import OutputError, OutputExistsError
from facefleet.sinks import Span

_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS items (
    key TEXT PRIMARY KEY, position INTEGER NOT NULL, run INTEGER NOT NULL,
    size INTEGER NOT NULL, mtime INTEGER NOT NULL,
    status TEXT NOT NULL, code TEXT, reason TEXT, faces INTEGER NOT NULL,
    part INTEGER, start INTEGER, length INTEGER
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS items_by_position ON items (run, position);
CREATE TABLE IF NOT EXISTS parts (id INTEGER PRIMARY KEY, file TEXT NOT NULL);
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
class Entry:
    """One finished input, as it is recorded.

    Attributes:
        key: The input.
        position: Its place in the order of this run.
        size_bytes: Its size, to notice a change; -1 where not known.
        mtime_ns: Its time of change; -1 where not known.
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
        OutputError: The file cannot be used.
    """

    def __init__(self, path: Path, settings: str) -> None:
        self.path = path
        try:
            self._db = sqlite3.connect(path, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            with self._transaction():
                for statement in filter(str.strip, _SCHEMA.split(";")):
                    self._db.execute(statement)
                for key, value in (("version", _VERSION), ("settings", settings)):
                    self._db.execute("INSERT OR IGNORE INTO meta VALUES (?, ?)", (key, value))
        except sqlite3.Error as error:
            raise OutputError(f"{path}: cannot be used: {error}", hint="delete it to start the job anew") from error
        if self.meta("version") != _VERSION or self.meta("settings") != settings:
            self.close()
            raise OutputExistsError(
                f"{path.name}: this output was made with another model or other settings",
                hint="write to another file, or use --overwrite to start anew",
            )
        self.run = 1 + (self._one("SELECT MAX(run) FROM items") or 0)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def meta(self, key: str) -> str | None:
        """A remembered value."""
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def state(self, key: str) -> tuple[int, int, int, Status] | None:
        """Run, size, time of change and status of an input that has been seen before."""
        row = self._db.execute("SELECT run, size, mtime, status FROM items WHERE key = ?", (key,)).fetchone()
        return None if row is None else (row[0], row[1], row[2], Status(row[3]))

    def commit(self, entries: Iterable[Entry], kept: Iterable[tuple[str, int]], part: Path | None) -> None:
        """Record finished inputs and, of those done in a run before, their place in this one.

        Args:
            entries: Finished in this run; their results are in `part`.
            kept: Key and position.
            part: The part file, durable already; None if no entry has results.
        """
        with self._transaction():
            number = None
            if part is not None:
                number = self._db.execute("INSERT INTO parts (file) VALUES (?)", (part.name,)).lastrowid
            self._db.executemany(
                "INSERT OR REPLACE INTO items VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    (e.key, e.position, self.run, e.size_bytes, e.mtime_ns, e.status.value, e.code, e.reason, e.faces)
                    + ((number, e.span.start, e.span.length) if e.span is not None else (None, None, None))
                    for e in entries
                ),
            )
            self._db.executemany(
                "UPDATE items SET position = ?, run = ? WHERE key = ?",
                ((position, self.run, key) for key, position in kept),
            )

    def spans(self, output: Path, folder: Path) -> Iterator[tuple[str, Path, Span]]:
        """Results of this run's inputs in order: key, file, and where in it."""
        files = {OUTPUT: output} | {
            number: folder / name for number, name in self._db.execute("SELECT id, file FROM parts")
        }
        rows = self._db.cursor().execute(
            "SELECT key, part, start, length FROM items WHERE run = ? AND part IS NOT NULL ORDER BY position", (self.run,)
        )
        for key, part, start, length in rows:
            yield key, files[part], Span(start, length)

    def order_changed(self) -> bool:
        """Whether the output is not what this run's inputs, in their order, should give."""
        last = self.meta("output_order")
        return last is None or last != self._order() or self.pending_parts() > 0

    def pending_parts(self) -> int:
        """Part files not merged into the output yet."""
        return int(self._one("SELECT COUNT(*) FROM parts") or 0)

    def plan_move(self, spans: Iterable[tuple[str, Span]]) -> None:
        """Record where results will lie in a new output, which is written while `spans` is iterated."""
        with self._transaction():
            self._db.execute("DELETE FROM moved")
            self._db.executemany("INSERT INTO moved VALUES (?, ?, ?)", ((k, s.start, s.length) for k, s in spans))

    def begin_move(self, sha256: str) -> None:
        """The new output is complete and has this digest; from here on the move can be finished after a kill."""
        with self._transaction():
            self._db.execute("INSERT OR REPLACE INTO meta VALUES ('moving', ?)", (sha256,))

    def finish_move(self) -> None:
        """The output is in place: results lie there now, and parts are no longer needed."""
        with self._transaction():
            self._db.execute(
                "UPDATE items SET part = ?, start = moved.start, length = moved.length FROM moved"
                " WHERE moved.key = items.key",
                (OUTPUT,),
            )
            # Inputs that this run did not name are not in the output: they are forgotten.
            self._db.execute(
                "DELETE FROM items WHERE part IS NOT NULL AND key NOT IN (SELECT key FROM moved)",
            )
            self._db.execute("DELETE FROM parts")
            self._db.execute("DELETE FROM moved")
            self._db.execute("DELETE FROM meta WHERE key = 'moving'")
            run = int(self._one("SELECT MAX(run) FROM items") or 0)
            self._db.execute("DELETE FROM items WHERE run <> ?", (run,))
            self._db.execute("INSERT OR REPLACE INTO meta VALUES ('output_order', ?)", (self._order(run),))

    def cancel_move(self) -> None:
        """The output did not get into place: forget the plan."""
        with self._transaction():
            self._db.execute("DELETE FROM moved")
            self._db.execute("DELETE FROM meta WHERE key = 'moving'")

    def part_names(self) -> set[str]:
        """Names of the part files in use."""
        return {name for (name,) in self._db.execute("SELECT file FROM parts")}

    def counts(self) -> dict[Status, int]:
        """Inputs of this run by status."""
        rows = self._db.execute("SELECT status, COUNT(*) FROM items WHERE run = ? GROUP BY status", (self.run,))
        found = {Status(status): count for status, count in rows}
        return {status: found.get(status, 0) for status in Status}

    def faces(self) -> int:
        """Faces of this run's inputs."""
        return int(self._one("SELECT SUM(faces) FROM items WHERE run = ?", self.run) or 0)

    def errors(self) -> dict[str, int]:
        """Failed inputs of this run by error code."""
        rows = self._db.execute(
            "SELECT code, COUNT(*) FROM items WHERE run = ? AND code IS NOT NULL GROUP BY code ORDER BY code", (self.run,)
        )
        return dict(rows.fetchall())

    def failures(self) -> Iterator[tuple[str, str, str, str]]:
        """Failed inputs of this run in order: key, status, code, reason."""
        yield from self._db.cursor().execute(
            "SELECT key, status, code, reason FROM items WHERE run = ? AND code IS NOT NULL ORDER BY position", (self.run,)
        )

    def _order(self, run: int | None = None) -> str:
        """A digest of which results this run's output has, in which order."""
        state = hashlib.sha256()
        rows = self._db.cursor().execute(
            "SELECT key, start, length FROM items WHERE run = ? AND part IS NOT NULL ORDER BY position",
            (run or self.run,),
        )
        for row in rows:
            state.update(repr(row).encode("utf-8", "surrogateescape"))
        return state.hexdigest()

    def _one(self, query: str, *parameters: object) -> int | None:
        value: int | None = self._db.execute(query, parameters).fetchone()[0]
        return value

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise OutputError(f"{self.path}: {error}", hint="free some space, then run the job again") from error
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

