"""The search side of a gallery in one process: an index and a roster, brought up to the record when one searches.

Owns the order that keeps them in step: under one lock a read transaction is begun, what changed since the last time
is read in it, and index and roster become the next state together; then the lock is given back, and the search runs
on that state while the transaction still shows the same one. Nothing else than the record says what is true: a
snapshot that is damaged, of another life of the file, or that does not count as many samples as the record, is thrown
away and made anew; a record that does not agree with itself is refused.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from facefleet.errors import FacefleetError, GalleryCorruptError, GalleryWriteError, PipelineMismatchError
from facefleet.gallery import reads
from facefleet.gallery.database import Database
from facefleet.gallery.index.base import Index, Searcher
from facefleet.gallery.index.layered import Base, LayeredIndex
from facefleet.gallery.index.registry import SEGMENTS, segment_type
from facefleet.gallery.index.snapshot import Stamp, read_snapshot, write_snapshot
from facefleet.gallery.records import Header, pipeline_text
from facefleet.gallery.roster import Roster
from facefleet.gallery.transaction import expected_counts, latest_revision

if TYPE_CHECKING:
    from facefleet.gallery.index.milvus import MilvusIndex

_log = logging.getLogger(__name__)
_SNAPSHOT_ROWS = 20_000  # fewer are read from the record as fast
_NONE = np.empty(0, np.int64)
ERASED = "erase_revision"
"""Remembered in the record: no snapshot of an earlier state may be left."""


@runtime_checkable
class Marked(Protocol):
    """An index that lives on when this process ends, and notes which state it has."""

    def mark(self, revision: int, token: int) -> None:
        """Note it."""

    def purge(self) -> None:
        """Let go of what was deleted."""

    def flush(self) -> None:
        """Arrange for searching what it was given."""

    def drop(self) -> None:
        """Let go of everything; only to be closed after it."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One state to search in.

    Attributes:
        revision: Which.
        searcher: The nearest samples.
        roster: Whose they are.
    """

    revision: int
    searcher: Searcher
    roster: Roster


class View:
    """See this module.

    Args:
        database: The record.
        folder: Where snapshots are.
        header: The gallery's.
        snapshots: Whether they are written; they are always read.
    """

    def __init__(self, database: Database, folder: Path, header: Header, *, snapshots: bool = True) -> None:
        self._database = database
        self._folder = folder
        self._header = header
        self._snapshots = snapshots
        self._lock = threading.Lock()
        self._index: Index | None = None
        self._seen: Seen | None = None
        self._rebuild: threading.Thread | None = None
        options = dict(header.index)
        self._kind = str(options.pop("kind"))
        self._options = options

    @contextlib.contextmanager
    def searching(self) -> Iterator[tuple[sqlite3.Connection, Seen]]:
        """The present state of record and index, the same in both for the whole block; holds no lock meanwhile.

        Raises:
            GalleryCorruptError: The record is damaged.
            SearchUnavailableError: The index's server is away; the record is not concerned.
        """
        with contextlib.ExitStack() as stack:
            with self._lock:
                db = stack.enter_context(self._database.reading())
                seen = self._caught_up(db)
            yield db, seen

    @property
    def index(self) -> Index | None:
        """The index, once something was searched."""
        return self._index

    @property
    def remote(self) -> bool:
        """Whether the index lives in a server or a folder of its own, which has to be told of every change."""
        return self._kind not in SEGMENTS

    def renew(self) -> None:
        """After an erasing: arrange the index anew in the background, so that memory lets go of the erased, too."""
        with self._lock:
            if self._index is None or self.remote:
                return
            with self._database.reading() as db:
                self._caught_up(db)
            self._start_rebuild(always=True)

    def purge(self) -> None:
        """After an erasing: what a server or a folder of its own holds lets go of the erased.

        Where the gallery was moved to another pipeline meanwhile, it lets go of all that the former one made.

        Raises:
            SearchUnavailableError: The server is away.
        """
        if not self.remote:
            return
        with self._lock, self._database.reading() as db:
            if reads.meta(db, "pipeline") != pipeline_text(self._header.pipeline):
                former: Index = self._connected() if self._index is None else self._index
                self._index = self._seen = None
                try:
                    if isinstance(former, Marked):
                        former.drop()
                finally:
                    former.close()
                return
        with self.searching():
            index = self._index
        if isinstance(index, Marked):
            index.purge()
            self.forget()
            with self.searching():
                pass

    def forget(self) -> None:
        """Drop index and roster; the next search reads all anew."""
        with self._lock:
            if self._index is not None:
                self._index.close()
            self._index = self._seen = None

    def close(self) -> None:
        """Wait for a rebuild that is on its way, and give everything back."""
        rebuild = self._rebuild
        if rebuild is not None:
            rebuild.join()
        self.forget()

    def wait(self) -> None:
        """Wait for a rebuild that is on its way."""
        rebuild = self._rebuild
        if rebuild is not None:
            rebuild.join()

    def rebuild(self) -> None:
        """Arrange the index anew now and write a snapshot of it."""
        with self.searching():
            pass
        if isinstance(self._index, Marked):
            self._index.flush()
        self.wait()
        self._rebuilt()

    def _caught_up(self, db: sqlite3.Connection) -> Seen:
        revision = latest_revision(db)
        seen = self._seen
        if seen is not None and seen.revision == revision:
            return seen
        require_same(db, self._header)
        if seen is None or self._index is None or seen.revision > revision:
            self._seen = seen = self._opened(db, revision)
        else:
            ids, people, vectors = reads.vectors_after(db, seen.revision, self._header.pipeline.dimension)
            removed = reads.removed_after(db, seen.revision)
            self._index.apply(ids, vectors, removed)
            if isinstance(self._index, Marked):
                self._index.mark(revision, reads.token_of(db, revision) or 0)
            self._seen = seen = Seen(revision, self._index.searcher(), seen.roster.changed(ids, people, removed))
            if not self.remote and len(self._index) != expected_counts(db)[1]:
                _log.warning("index and record are out of step: the index is made anew")
                self._seen = seen = self._opened(db, revision)
        self._start_rebuild()
        return seen

    def _opened(self, db: sqlite3.Connection, revision: int) -> Seen:
        """Index and roster from a snapshot and what came after it, or from the record alone."""
        if self._kind not in SEGMENTS:
            return self._opened_remote(db, revision)
        _, count = expected_counts(db)
        start = self._from_snapshot(db, revision)
        for stamp, base, people in filter(None, (start, None)):
            index = LayeredIndex(self._header.pipeline.dimension, segment_type(self._kind), self._options, base)
            ids, owners, vectors = reads.vectors_after(db, stamp.revision, self._header.pipeline.dimension)
            removed = reads.removed_after(db, stamp.revision)
            index.apply(ids, vectors, removed)
            if len(index) == count:
                self._index = index
                return Seen(revision, index.searcher(), Roster(base.ids, people).changed(ids, owners, removed))
            _log.warning("snapshot and record count %d and %d samples: the snapshot is made anew", len(index), count)
        ids, people, vectors = reads.vectors_after(db, -1, self._header.pipeline.dimension)
        if len(ids) != count:
            raise GalleryCorruptError(
                f"{self._folder}: {len(ids)} samples were read, {count} have to be there",
                hint="run `facefleet gallery check`; restore from a backup",
            )
        kind = segment_type(self._kind)
        base = Base(ids, vectors, kind.build(vectors, self._options) if count else None)
        self._index = index = LayeredIndex(self._header.pipeline.dimension, kind, self._options, base)
        self._save(db, revision, base, people)
        return Seen(revision, index.searcher(), Roster(ids, people))

    def _opened_remote(self, db: sqlite3.Connection, revision: int) -> Seen:
        from facefleet.gallery.index.milvus import MilvusIndex

        index = self._index
        if not isinstance(index, MilvusIndex):
            index = self._connected()
        _, count = expected_counts(db)
        since = index.applied
        if since is None or since[0] > revision or reads.token_of(db, since[0]) != since[1]:
            index.clear()
            since = (-1, 0)
        dimension = self._header.pipeline.dimension
        ids, people, vectors = reads.vectors_after(db, since[0], dimension)
        index.apply(ids, vectors, reads.removed_after(db, since[0]))
        if len(index) != count:
            _log.warning("the server has %d vectors, the record %d: it is filled anew", len(index), count)
            index.clear()
            ids, people, vectors = reads.vectors_after(db, -1, dimension)
            index.apply(ids, vectors, _NONE)
        index.mark(revision, reads.token_of(db, revision) or 0)
        self._index = index
        if since[0] >= 0:
            rows = db.execute("SELECT id, person FROM samples ORDER BY id").fetchall()
            table = np.array(rows, np.int64).reshape(-1, 2)
            ids, people = table[:, 0].copy(), table[:, 1].copy()
        return Seen(revision, index.searcher(), Roster(ids, people))

    def _connected(self) -> MilvusIndex:
        from facefleet.gallery.index.milvus import MilvusIndex

        return MilvusIndex(self._folder, self._header, self._options)

    def _from_snapshot(self, db: sqlite3.Connection, revision: int) -> tuple[Stamp, Base, np.ndarray] | None:
        """The latest snapshot that is whole and of this gallery's life."""
        oldest = int(reads.meta(db, ERASED) or 0)
        for path in sorted(self._folder.glob(f"{self._kind}-*.snapshot"), reverse=True):
            try:
                found = read_snapshot(path, segment_type(self._kind), self._options)
            except OSError:
                continue  # replaced by a newer one meanwhile
            except GalleryCorruptError as error:
                _log.warning("%s", error.message)
                continue
            stamp = found[0]
            if (
                (stamp.uuid, stamp.fingerprint) == (self._header.uuid, self._header.pipeline.fingerprint)
                and oldest <= stamp.revision <= revision
                and reads.token_of(db, stamp.revision) == stamp.token
            ):
                return found
            _log.warning("%s: of another state or gallery: not used", path.name)
        return None

    def _save(self, db: sqlite3.Connection, revision: int, base: Base, people: np.ndarray) -> None:
        """Write a snapshot and remove older ones; failing to is logged, the record has everything."""
        if not self._snapshots or len(base.ids) < _SNAPSHOT_ROWS or base.segment is None:
            return
        stamp = Stamp(self._header.uuid, revision, reads.token_of(db, revision) or 0, self._header.pipeline.fingerprint)
        path = self._folder / f"{self._kind}-{revision:012d}.snapshot"
        try:
            with snapshots_locked(self._folder):
                if int(self._database.fresh_meta(ERASED) or 0) > revision:
                    return  # somebody was erased since: this state must not reach the disk any more
                write_snapshot(path, stamp, base, people, self._options)
                for other in self._folder.glob(f"{self._kind}-*.snapshot"):
                    if other.name < path.name:
                        other.unlink(missing_ok=True)
        except GalleryWriteError as error:
            _log.warning("no snapshot was written: %s", error)

    def _start_rebuild(self, *, always: bool = False) -> None:
        index = self._index
        if not isinstance(index, LayeredIndex) or not (always or index.wants_rebuild):
            return
        if self._rebuild is None or not self._rebuild.is_alive():
            self._rebuild = threading.Thread(target=self._rebuilt, name="facefleet-index", daemon=True)
            self._rebuild.start()

    def _rebuilt(self) -> None:
        with self._lock:
            index, seen = self._index, self._seen
            if not isinstance(index, LayeredIndex) or seen is None:
                return
            build = index.begin_rebuild()
        base = None
        try:
            base = build()
        except FacefleetError as error:
            _log.warning("the index was not rebuilt: %s", error)
        except MemoryError:
            _log.warning("the index was not rebuilt: no memory")
        finally:
            with self._lock:
                index.end_rebuild(base)
                if base is not None and self._seen is not None and self._index is index:
                    self._seen = replace(self._seen, searcher=index.searcher())
        if base is not None:
            with contextlib.suppress(FacefleetError), self._database.reading() as db:
                self._save(db, seen.revision, base, seen.roster.people_of(base.ids))


def require_same(db: sqlite3.Connection, header: Header) -> None:
    """Refuse to go on with a gallery whose embeddings are not those that it was opened with.

    Raises:
        PipelineMismatchError: It was re-embedded since.
    """
    if reads.meta(db, "pipeline") != pipeline_text(header.pipeline):
        raise PipelineMismatchError(
            "the gallery was re-embedded with another model since it was opened", hint="open it again"
        )


@contextlib.contextmanager
def snapshots_locked(folder: Path) -> Iterator[None]:
    """Nobody else writes or deletes snapshots in this folder, in any process.

    Raises:
        GalleryWriteError: The folder cannot be written to.
    """
    import fcntl

    try:
        stream = (folder / ".snapshots.lock").open("a")
    except OSError as error:
        raise GalleryWriteError(f"{folder}: {error}", hint="check permissions") from error
    with stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def snapshot_files(folder: Path) -> list[Path]:
    """Every snapshot, and what is left of those that were cut off."""
    return sorted(folder.glob("*.snapshot")) + sorted(folder.glob(".*.snapshot.*.tmp"))
