"""The cache on disk: SQLite, bounded by bytes, shared by processes, least recently used out first.

Owns entries, their order of use, and claims: who computes what, so that nobody else does meanwhile. A commit is not
synced: what a power cut loses is computed again. Safe in any thread; one connection behind a lock.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from facefleet.errors import CacheError

_FORMAT = 1
_TOUCHES = 256
_LOW_WATER = 0.9
_CLAIM_S = 60.0
_BUSY_S = 10.0
_ROW_BYTES = 120  # what a row costs beside its data, about
_SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (
    key BLOB PRIMARY KEY, used INTEGER NOT NULL, size INTEGER NOT NULL, data BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS entries_by_use ON entries (used, size);
CREATE TABLE IF NOT EXISTS claims (key BLOB PRIMARY KEY, owner TEXT NOT NULL, until_s REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS totals (
    id INTEGER PRIMARY KEY CHECK (id = 1), bytes INTEGER NOT NULL, evicted INTEGER NOT NULL
);
INSERT OR IGNORE INTO totals VALUES (1, 0, 0);
"""


@dataclass(frozen=True, slots=True)
class CacheStats:
    """What a cache did, in this process, and what it holds.

    Attributes:
        hits: Pictures that were there.
        misses: Pictures that were not.
        shared: Pictures that waited for an equal one on its way.
        entries: Held now.
        bytes: Held now.
        evicted: Entries that had to go, in all processes.
    """

    hits: int
    misses: int
    shared: int
    entries: int
    bytes: int
    evicted: int


class FeatureCache(ABC):
    """Results by key. A failing store raises `CacheError`; whoever uses it goes on without."""

    @abstractmethod
    def get(self, key: bytes) -> bytes | None:
        """What is stored, and note that it was used."""

    @abstractmethod
    def put(self, key: bytes, data: bytes) -> None:
        """Store, and give up the claim; the least recently used go where room is needed."""

    @abstractmethod
    def claim(self, key: bytes) -> bool:
        """Say that one is computing it; False: somebody else is. A claim ends by itself after a while."""

    @abstractmethod
    def release(self, key: bytes) -> None:
        """Give up a claim without a result."""

    @abstractmethod
    def held(self) -> tuple[int, int, int]:
        """Entries and bytes held, and entries evicted so far."""

    def close(self) -> None:  # noqa: B027  # a store may have nothing to give back
        """Give everything back."""


class SqliteCache(FeatureCache):
    """See this module.

    Args:
        path: The file; made if need be.
        max_bytes: Most bytes of results held.

    Raises:
        CacheError: It cannot be used.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._owner = f"{os.getpid()}-{id(self)}-{time.time_ns()}"
        self._lock = threading.Lock()
        self._touched: dict[bytes, int] = {}
        with self._mapped():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, isolation_level=None, timeout=_BUSY_S, check_same_thread=False)
            try:
                self._prepare()
            except BaseException:
                self._db.close()
                raise

    def _prepare(self) -> None:
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, _FORMAT):
            raise CacheError(f"{self.path}: a cache of version {version}", hint="delete it: it is only a cache")
        with self._transaction():
            for statement in filter(str.strip, _SCHEMA.split(";")):
                self._db.execute(statement)
            self._db.execute(f"PRAGMA user_version={_FORMAT}")

    def close(self) -> None:
        """See `FeatureCache.close`."""
        with self._lock, contextlib.suppress(sqlite3.Error):
            if self._touched:
                with self._transaction():
                    self._flush()
            self._db.execute("DELETE FROM claims WHERE owner = ?", (self._owner,))
            self._db.close()

    def get(self, key: bytes) -> bytes | None:
        """See `FeatureCache.get`."""
        with self._lock, self._mapped():
            row = self._db.execute("SELECT data FROM entries WHERE key = ?", (key,)).fetchone()
            if row is None:
                return None
            self._touched[key] = time.time_ns()
            if len(self._touched) >= _TOUCHES:
                with self._transaction():
                    self._flush()
            return bytes(row[0])

    def put(self, key: bytes, data: bytes) -> None:
        """See `FeatureCache.put`."""
        size = len(data) + _ROW_BYTES
        with self._lock, self._mapped(), self._transaction():
            self._db.execute("DELETE FROM claims WHERE key = ?", (key,))
            if size > self._max_bytes:
                return
            old = self._db.execute("SELECT size FROM entries WHERE key = ?", (key,)).fetchone()
            self._db.execute("INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?)", (key, time.time_ns(), size, data))
            self._db.execute("UPDATE totals SET bytes = bytes + ?", (size - (0 if old is None else old[0]),))
            total = self._db.execute("SELECT bytes FROM totals").fetchone()[0]
            if total > self._max_bytes:
                self._flush()
                self._evict(total)

    def claim(self, key: bytes) -> bool:
        """See `FeatureCache.claim`."""
        now = time.time()
        with self._lock, self._mapped(), self._transaction():
            row = self._db.execute("SELECT owner, until_s FROM claims WHERE key = ?", (key,)).fetchone()
            if row is not None and row[0] != self._owner and row[1] > now and _alive(row[0]):
                return False
            self._db.execute("INSERT OR REPLACE INTO claims VALUES (?, ?, ?)", (key, self._owner, now + _CLAIM_S))
            return True

    def release(self, key: bytes) -> None:
        """See `FeatureCache.release`."""
        with self._lock, self._mapped():
            self._db.execute("DELETE FROM claims WHERE key = ? AND owner = ?", (key, self._owner))

    def held(self) -> tuple[int, int, int]:
        """See `FeatureCache.held`."""
        with self._lock, self._mapped():
            size, evicted = self._db.execute("SELECT bytes, evicted FROM totals").fetchone()
            return int(self._db.execute("SELECT COUNT(*) FROM entries").fetchone()[0]), int(size), int(evicted)

    def _flush(self) -> None:
        """Write down what was used when; within a transaction."""
        rows = [(used, key) for key, used in self._touched.items()]
        self._touched.clear()
        self._db.executemany("UPDATE entries SET used = ? WHERE key = ?", rows)

    def _evict(self, total: int) -> None:
        target = int(_LOW_WATER * self._max_bytes)
        gone: list[tuple[int, bytes]] = []
        for size, key in self._db.execute("SELECT size, key FROM entries ORDER BY used"):
            if total <= target:
                break
            total -= size
            gone.append((size, key))
        self._db.executemany("DELETE FROM entries WHERE key = ?", [(key,) for _, key in gone])
        self._db.execute("UPDATE totals SET bytes = ?, evicted = evicted + ?", (total, len(gone)))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")
            raise

    @contextlib.contextmanager
    def _mapped(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise CacheError(f"{self.path}: {error}", hint="delete it if it is damaged: it is only a cache") from error


def _alive(owner: str) -> bool:
    """Whether the process of a claim still runs, on this machine."""
    try:
        os.kill(int(owner.split("-", maxsplit=1)[0]), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, ValueError):
        return True
    return True
