"""Searches of many callers, batched: what waits while one search runs is the next one.

Owns a bounded queue and one thread. A batch of 64 queries reads the vectors once, a single query reads them once,
too: under load a search costs each caller a fraction of what it costs alone, and nobody waits on purpose. Any number
of threads may submit; an event loop wraps the future (`asyncio.wrap_future`).
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from facefleet.errors import ClosedError, FacefleetError, InternalError, QueueFullError
from facefleet.gallery.gallery import Gallery
from facefleet.gallery.records import Match, Scoring
from facefleet.gallery.vectors import checked_vectors
from facefleet.types import F32Array


@dataclass(slots=True)
class _Request:
    vector: F32Array
    options: dict[str, Any]
    group: str
    future: Future[list[Match]] = field(default_factory=Future)


class SearchQueue:
    """See this module.

    Args:
        gallery: Open; not closed here.
        max_batch: Most queries of one search.
        max_waiting: Most queries that wait.
    """

    def __init__(self, gallery: Gallery, *, max_batch: int = 64, max_waiting: int = 4096) -> None:
        self._gallery = gallery
        self._max_batch = max_batch
        self._max_waiting = max_waiting
        self._requests: deque[_Request] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self.batches = 0
        self.searched = 0
        self._thread = threading.Thread(target=self._run, name="facefleet-search", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; what still waits gets a `ClosedError`."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def submit(
        self,
        query: ArrayLike,
        *,
        fingerprint: str,
        k: int = 1,
        threshold: float | None = None,
        where: Mapping[str, Any] | None = None,
        scoring: Scoring = "best",
    ) -> Future[list[Match]]:
        """As `Gallery.identify` for one query; may be cancelled while it waits.

        Raises:
            PipelineMismatchError, InvalidEmbeddingError: At once, so that it fails alone.
            QueueFullError: Too many wait.
            ClosedError: The queue was closed.
        """
        self._gallery.require(fingerprint)
        vectors = checked_vectors(query, self._gallery.header.pipeline.dimension)
        options = {"k": k, "threshold": threshold, "where": dict(where or {}), "scoring": scoring}
        request = _Request(vectors[:1], options, json.dumps(options, sort_keys=True, default=repr))
        with self._changed:
            if self._closed:
                raise ClosedError("the search queue was closed")
            if len(self._requests) >= self._max_waiting:
                raise QueueFullError(f"{len(self._requests)} searches wait", retry_after_s=1.0)
            self._requests.append(request)
            self._changed.notify()
        return request.future

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._requests and not self._closed:
                    self._changed.wait()
                if self._closed:
                    left, self._requests = list(self._requests), deque()
                    break
                batch = self._next()
            self._search(batch)
        for request in left:
            _settle(request.future, ClosedError("the search queue was closed"))

    def _next(self) -> list[_Request]:
        """The oldest request, and others with the same options, in order."""
        group = self._requests[0].group
        batch: list[_Request] = []
        rest: deque[_Request] = deque()
        while self._requests and len(batch) < self._max_batch:
            request = self._requests.popleft()
            (batch if request.group == group else rest).append(request)
        self._requests = rest + self._requests
        return [request for request in batch if request.future.set_running_or_notify_cancel()]

    def _search(self, batch: list[_Request]) -> None:
        if not batch:
            return
        try:
            queries = np.concatenate([request.vector for request in batch])
            fingerprint = self._gallery.header.pipeline.fingerprint
            answers = self._gallery.identify(queries, fingerprint=fingerprint, **batch[0].options)
        except FacefleetError as error:
            for request in batch:
                _settle(request.future, error)
            return
        except Exception as error:  # every caller gets an answer, and the thread goes on
            for request in batch:
                _settle(request.future, InternalError(f"a search failed: {error!r}"))
            return
        self.batches += 1
        self.searched += len(batch)
        for request, answer in zip(batch, answers, strict=True):
            with contextlib.suppress(InvalidStateError):
                request.future.set_result(answer)


def _settle(future: Future[list[Match]], error: Exception) -> None:
    with contextlib.suppress(InvalidStateError):
        future.set_exception(error)
