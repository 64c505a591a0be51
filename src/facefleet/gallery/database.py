"""The SQLite file of a gallery: its tables, its connections, and what its errors mean.

Owns one connection a thread, in WAL mode with full synchronization: a commit is on the disk when it returns, readers
see one state as long as their transaction lasts and hold nobody up, and deleted content is overwritten with zeros.
Refuses to know what a person is: that is `store`'s and `transaction`'s.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

from facefleet.errors import (
    ClosedError,
    FacefleetError,
    GalleryBusyError,
    GalleryCorruptError,
    GalleryWriteError,
    InternalError,
)

FILE = "gallery.sqlite"
FORMAT = "1"
_BUSY_S = 30.0
_PAGE_BYTES = 8192  # a 512-d embedding and its row fit a page several times
_PRAGMAS = (
    f"page_size={_PAGE_BYTES}",
    "journal_mode=WAL",
    "synchronous=FULL",
    "secure_delete=ON",
    "foreign_keys=ON",
)
_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE people (
    id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, metadata TEXT NOT NULL, created_s REAL NOT NULL,
    checksum INTEGER NOT NULL
);
CREATE INDEX people_by_name ON people (name);
CREATE TABLE samples (
    id INTEGER PRIMARY KEY AUTOINCREMENT, person INTEGER NOT NULL REFERENCES people (id),
    revision INTEGER NOT NULL, embedding BLOB NOT NULL, checksum INTEGER NOT NULL,
    created_s REAL NOT NULL, source TEXT, source_sha256 TEXT, quality TEXT NOT NULL, box TEXT, chip BLOB,
    facts_checksum INTEGER NOT NULL
);
CREATE INDEX samples_by_person ON samples (person);
CREATE INDEX samples_by_revision ON samples (revision);
CREATE INDEX samples_by_source ON samples (source_sha256) WHERE source_sha256 IS NOT NULL;
CREATE TABLE removed (sample INTEGER PRIMARY KEY, revision INTEGER NOT NULL);
CREATE INDEX removed_by_revision ON removed (revision);
CREATE TABLE erased (person INTEGER PRIMARY KEY);
CREATE TABLE commits (
    revision INTEGER PRIMARY KEY, token INTEGER NOT NULL, at_s REAL NOT NULL, who TEXT NOT NULL,
    people INTEGER NOT NULL, samples INTEGER NOT NULL, checksum INTEGER NOT NULL
);
CREATE TABLE history (
    id INTEGER PRIMARY KEY, revision INTEGER NOT NULL, action TEXT NOT NULL, person INTEGER, samples INTEGER NOT NULL,
    detail TEXT NOT NULL
);
CREATE INDEX history_by_person ON history (person);
CREATE TABLE reembedded (sample INTEGER PRIMARY KEY, embedding BLOB NOT NULL, checksum INTEGER NOT NULL);
"""


class Database:
    """Connections to one gallery's file.

    Args:
        folder: The gallery's folder.

    Raises:
        GalleryCorruptError: The file is not a gallery's, or damaged.
        GalleryWriteError: It cannot be opened.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._local = threading.local()
        self._lock = threading.Lock()
        self._connections: list[tuple[threading.Thread, sqlite3.Connection]] = []
        self._closed = False

    def create(self) -> None:
        """Make the tables of a new file."""
        db = self.connection()
        with self.mapped():
            for statement in filter(str.strip, _SCHEMA.split(";")):
                db.execute(statement)

    def close(self) -> None:
        """Close every thread's connection; one that is in use is closed when it is done with."""
        with self._lock:
            self._closed = True
            connections, self._connections = self._connections, []
        _closed(connections)

    def connection(self) -> sqlite3.Connection:
        """This thread's connection."""
        found: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if self._closed:
            raise ClosedError(f"{self.path.parent}: this gallery was closed")
        if found is None:
            with self.mapped():
                found = sqlite3.connect(self.path, isolation_level=None, timeout=_BUSY_S, check_same_thread=False)
                try:
                    for pragma in _PRAGMAS:
                        found.execute(f"PRAGMA {pragma}")
                except BaseException:
                    found.close()
                    raise
            self._local.connection = found
            with self._lock:
                ended = [entry for entry in self._connections if not entry[0].is_alive()]
                self._connections = [entry for entry in self._connections if entry not in ended]
                self._connections.append((threading.current_thread(), found))
            _closed(ended)
        return found

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """One state of the file, however long it takes; writers are not held up."""
        yield from self._transaction("BEGIN")

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """The only writer, of all threads and processes; committed and on the disk at the end, or undone.

        Raises:
            GalleryBusyError: Another one has been writing for too long.
        """
        yield from self._transaction("BEGIN IMMEDIATE")

    def fresh_meta(self, key: str) -> str | None:
        """A remembered value as it is on the disk now, whatever transaction this thread is in."""
        with self.mapped(), contextlib.closing(sqlite3.connect(self.path, timeout=_BUSY_S)) as db:
            row = db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def compact(self) -> None:
        """Write the whole file anew, with nothing in it but what is there."""
        with self.mapped():
            self.connection().execute("VACUUM")

    def truncate_log(self) -> bool:
        """Bring the write-ahead log into the file and cut it to nothing; False while a reader needs it."""
        db = self.connection()
        with self.mapped():
            db.execute("PRAGMA busy_timeout=20")  # it keeps writers out while it waits for readers
            try:
                busy, _, _ = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            finally:
                db.execute(f"PRAGMA busy_timeout={int(1000 * _BUSY_S)}")
        return not busy

    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        db = self.connection()
        if db.in_transaction:
            raise InternalError("a transaction within a transaction")
        with self.mapped():
            db.execute(begin)
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    with contextlib.suppress(sqlite3.Error):
                        db.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def mapped(self) -> Iterator[None]:
        """Everything that SQLite raises becomes ours here."""
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self._as_ours(error) from error

    def _as_ours(self, error: sqlite3.Error | UnicodeDecodeError) -> FacefleetError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        # What SQLite says of text that is none has the row's bytes in it: no vector gets into a log.
        text = f"{self.path}: {'damaged text' if 'decode' in str(error) else error}"
        if self._closed or (isinstance(error, sqlite3.ProgrammingError) and "closed" in str(error)):
            return ClosedError(f"{self.path.parent}: this gallery was closed")
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return GalleryBusyError(text, hint="another process is writing: try again")
        if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
            return GalleryWriteError(text, hint="check permissions and free space")
        return GalleryCorruptError(text, hint=_CORRUPT_HINT)


def _closed(connections: list[tuple[threading.Thread, sqlite3.Connection]]) -> None:
    for _, connection in connections:
        with contextlib.suppress(sqlite3.Error):
            connection.close()


_CORRUPT_HINT = "run `facefleet gallery check`; restore the folder from a backup, or import an export"
