"""An index in Milvus: Milvus Lite in the gallery's folder, or a server by URI for more than a machine holds.

The record stays SQLite: Milvus is filled from it, and what it has taken in is noted in a file beside the record, so
that a server that was away, lost data, or is new is brought up to the record by the next search. Writes to the
gallery never wait for it. Searches are strongly consistent: what was written is found. Milvus Lite is one process's:
a second one that opens the gallery for searching is refused, with a typed error.

Answers are scored again in double precision from the vectors that come with them, as every index does it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from facefleet.errors import BackendUnavailableError, ConfigError, SearchUnavailableError
from facefleet.gallery.index.base import Hits, Index, Searcher
from facefleet.gallery.index.flat import refuse_options
from facefleet.gallery.index.layered import merged
from facefleet.gallery.records import Header
from facefleet.types import F32Array

_log = logging.getLogger(__name__)
_OPTIONS = ("uri", "token", "type", "timeout_s")
_TYPES = ("FLAT", "IVF_FLAT", "HNSW", "AUTOINDEX")
_EXACT = ("FLAT",)
_MARK = "milvus.json"
_LITE = "milvus.db"
_BATCH = 1000
_FLUSH_ROWS = 5000  # rows that are not flushed are searched one by one, whatever the index
_MARGIN = 16
_MOST = 16_384  # what one search of Milvus may ask for
_FILTER_IDS = 50_000
_ANSWER_BYTES = 32 << 20  # of the vectors that come with one answer; servers refuse messages that are too long


class MilvusIndex(Index):
    """See this module.

    Args:
        folder: The gallery's.
        header: The gallery's.
        options: ``uri`` of a server (Milvus Lite in the folder), ``token``, ``type`` (FLAT, IVF_FLAT, HNSW,
            AUTOINDEX; FLAT), ``timeout_s`` (10).

    Raises:
        BackendUnavailableError: A library is missing.
        SearchUnavailableError: The server does not answer, or another process has the folder open.
        ConfigError: An option is unknown.
    """

    kind = "milvus"

    def __init__(self, folder: Path, header: Header, options: Mapping[str, Any]) -> None:
        refuse_options(self.kind, options, _OPTIONS)
        self.dimension = header.pipeline.dimension
        self._type = str(options.get("type", "FLAT"))
        if self._type not in _TYPES:
            raise ConfigError(f"index option type={self._type!r}", hint=f"choose one of {', '.join(_TYPES)}")
        self._timeout_s = float(options.get("timeout_s", 10.0))
        self._uri = str(options.get("uri") or folder / _LITE)
        self.local = "://" not in self._uri
        self._mark = folder / _MARK
        self._collection = f"ff_{header.uuid}_{header.pipeline.fingerprint[:12]}"
        self._unflushed = 0
        self._client = _connected(self._uri, str(options.get("token", "")), self._timeout_s)
        try:
            with self._mapped():
                fresh = not self._client.has_collection(self._collection, timeout=self._timeout_s)
                if fresh:
                    self._create()
                else:
                    self._client.load_collection(self._collection, timeout=self._timeout_s)
            if fresh:
                self._mark.unlink(missing_ok=True)
        except BaseException:
            self.close()
            raise

    @property
    def exact(self) -> bool:
        """See `Index.exact`."""
        return self._type in _EXACT

    @property
    def applied(self) -> tuple[int, int] | None:
        """Revision and token of the state that the server has; None where that is not known."""
        try:
            values = json.loads(self._mark.read_text())
            if (values["uri"], values["collection"]) == (self._uri, self._collection):
                return int(values["revision"]), int(values["token"])
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return None

    def mark(self, revision: int, token: int) -> None:
        """Note which state the server has now."""
        values = {"uri": self._uri, "collection": self._collection, "revision": revision, "token": token}
        temporary = self._mark.with_name(f".{self._mark.name}.{os.getpid()}.tmp")
        try:
            temporary.write_text(json.dumps(values))
            temporary.replace(self._mark)
        except OSError as error:
            _log.warning("%s: %s: the server is brought up again next time", self._mark, error)

    def clear(self) -> None:
        """Drop everything the server has of this gallery."""
        self.drop()
        with self._mapped():
            self._create()

    def drop(self) -> None:
        """Drop everything the server has of this gallery, to be closed: nothing can be searched any more."""
        self._mark.unlink(missing_ok=True)
        with self._mapped():
            self._client.drop_collection(self._collection, timeout=self._timeout_s)

    def flush(self) -> None:
        """Let the server arrange what it was given: rows that are not flushed are searched one by one."""
        with self._mapped():
            self._client.flush(self._collection, timeout=10 * self._timeout_s)
            self._unflushed = 0

    def purge(self) -> None:
        """After an erasing: make the server let go of what was deleted; Milvus Lite is emptied, to be filled anew."""
        if self.local:
            self.clear()
            return
        self.flush()
        with self._mapped():
            self._client.compact(self._collection, timeout=self._timeout_s)

    def apply(self, ids: NDArray[np.int64], vectors: F32Array, removed: NDArray[np.int64]) -> None:
        """See `Index.apply`."""
        with self._mapped():
            for start in range(0, len(removed), _BATCH):
                some = [int(number) for number in removed[start : start + _BATCH]]
                self._client.delete(self._collection, ids=some, timeout=self._timeout_s)
            for start in range(0, len(ids), _BATCH):
                rows = [
                    {"id": int(number), "vector": vector}
                    for number, vector in zip(ids[start : start + _BATCH], vectors[start : start + _BATCH], strict=True)
                ]
                self._client.upsert(self._collection, rows, timeout=self._timeout_s)
            self._unflushed += len(ids)
            if self._unflushed >= _FLUSH_ROWS:
                self.flush()

    def searcher(self) -> Searcher:
        """See `Index.searcher`: the server's state, whenever it is searched."""
        return _MilvusSearcher(self)

    def find(self, queries: F32Array, k: int, allowed: NDArray[np.int64] | None) -> Hits:
        """As `Searcher.search`."""
        if not len(queries) or (allowed is not None and not len(allowed)):
            return Hits.none(len(queries), k)
        groups: list[list[int] | None] = [None]
        if allowed is not None:
            numbers = [int(number) for number in allowed]
            groups = [numbers[start : start + _FILTER_IDS] for start in range(0, len(numbers), _FILTER_IDS)]
        limit = min(k + _MARGIN, _MOST)
        step = max(1, _ANSWER_BYTES // (4 * self.dimension * limit))
        hits = Hits.none(len(queries), k)
        for start in range(0, len(queries), step):
            some = queries[start : start + step]
            found = merged([self._found(some, limit, group) for group in groups], len(some), k)
            hits.ids[start : start + step], hits.scores[start : start + step] = found.ids, found.scores
        return hits

    def _found(self, queries: F32Array, limit: int, allowed: list[int] | None) -> tuple[NDArray[np.int64], F32Array]:
        with self._mapped():
            found = self._client.search(
                self._collection,
                data=list(queries),
                limit=limit,
                anns_field="vector",
                filter="" if allowed is None else f"id in {allowed}",
                search_params={"metric_type": "COSINE"},
                output_fields=["vector"],
                consistency_level="Strong",
                timeout=self._timeout_s,
            )
        return _scored(queries, found)

    def __len__(self) -> int:
        with self._mapped():
            found = self._client.query(
                self._collection,
                filter="",
                output_fields=["count(*)"],
                consistency_level="Strong",
                timeout=self._timeout_s,
            )
        return int(found[0]["count(*)"])

    def close(self) -> None:
        """See `Index.close`."""
        with contextlib.suppress(Exception):
            if self.local:
                self._client.flush(self._collection)
            self._client.close()

    def _create(self) -> None:
        from pymilvus import DataType

        schema = self._client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", DataType.INT64, is_primary=True)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=self.dimension)
        index = self._client.prepare_index_params()
        index.add_index("vector", index_type=self._type, metric_type="COSINE", params=_PARAMETERS.get(self._type, {}))
        self._client.create_collection(
            self._collection,
            schema=schema,
            index_params=index,
            consistency_level="Strong",
            timeout=self._timeout_s,
        )
        self._client.load_collection(self._collection, timeout=self._timeout_s)

    @contextlib.contextmanager
    def _mapped(self) -> Iterator[None]:
        """Everything that the client raises becomes ours here."""
        try:
            yield
        except Exception as error:
            raise _away(self._uri, error) from error


_PARAMETERS: dict[str, dict[str, int]] = {"IVF_FLAT": {"nlist": 1024}, "HNSW": {"M": 32, "efConstruction": 200}}


class _MilvusSearcher:
    """The searcher of a server."""

    def __init__(self, index: MilvusIndex) -> None:
        self._index = index

    def search(self, queries: F32Array, k: int, *, allowed: NDArray[np.int64] | None = None) -> Hits:
        """See `Searcher.search`."""
        return self._index.find(queries, k, allowed)


def _scored(queries: F32Array, found: Any) -> tuple[NDArray[np.int64], F32Array]:  # noqa: ANN401  # pymilvus
    """(q, m) ids and float32 cosines of what a search gave, scored in double precision."""
    width = max((len(hits) for hits in found), default=0)
    ids = np.full((len(queries), width), -1, np.int64)
    scores = np.full((len(queries), width), -np.inf, np.float32)
    for row, hits in enumerate(found):
        if not len(hits):
            continue
        near = np.array([hit["entity"]["vector"] for hit in hits], np.float64)
        ids[row, : len(hits)] = [hit["id"] for hit in hits]
        scores[row, : len(hits)] = np.clip(near @ queries[row].astype(np.float64), -1.0, 1.0)
    return ids, scores


def _connected(uri: str, token: str, timeout_s: float) -> Any:  # noqa: ANN401  # pymilvus is an extra
    try:
        from pymilvus import MilvusClient
    except ImportError as error:
        raise BackendUnavailableError("pymilvus is not installed", hint='pip install "facefleet[milvus]"') from error
    # It logs every failed call with a traceback; the error that is raised says the same.
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
    try:
        return MilvusClient(uri=uri, token=token, timeout=timeout_s)
    except Exception as error:
        raise _away(uri, error) from error


def _away(uri: str, error: Exception) -> SearchUnavailableError:
    text = str(getattr(error, "message", "") or error).splitlines()
    hint = (
        "another process has it open: use a Milvus server for several (index option uri=http://...)"
        if "://" not in uri
        else "is the server up? The gallery itself is not concerned: nothing is lost, searches go on when it is back"
    )
    return SearchUnavailableError(f"Milvus at {uri}: {text[0] if text else type(error).__name__}", hint=hint)
