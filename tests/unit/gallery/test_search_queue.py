"""Searches that are batched answer as each alone would, and one that fails fails alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from facefleet.errors import ClosedError, ConfigError, InvalidEmbeddingError, PipelineMismatchError, QueueFullError
from facefleet.gallery import Gallery, Match, SearchQueue
from tests.unit.gallery.fake import IDENTITY, filled, unit_vectors

F = IDENTITY.fingerprint


class Slow:
    """A gallery whose searches wait for a word."""

    def __init__(self, gallery: Gallery) -> None:
        self.gallery = gallery
        self.header = gallery.header
        self.begun = threading.Event()
        self.go = threading.Event()
        self.sizes: list[int] = []

    def require(self, fingerprint: str) -> None:
        self.gallery.require(fingerprint)

    def identify(self, queries: np.ndarray, **options: Any) -> list[list[Match]]:
        self.begun.set()
        self.go.wait(10)
        self.sizes.append(len(queries))
        return self.gallery.identify(queries, **options)


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Slow]:
    gallery, _, _ = filled(tmp_path / "g", people=30)
    with gallery:
        yield Slow(gallery)


def test_what_waits_is_one_batch(slow: Slow) -> None:
    queue = SearchQueue(slow, max_batch=16)  # type: ignore[arg-type]
    vectors = unit_vectors(41, seed=3)
    futures = [queue.submit(vectors[0], fingerprint=F, k=3, threshold=-1)]
    slow.begun.wait(10)
    for number in range(1, 41):
        futures.append(queue.submit(vectors[number], fingerprint=F, k=3 if number % 2 else 2, threshold=-1))
    slow.go.set()
    for number, future in enumerate(futures):
        k = 3 if number % 2 or number == 0 else 2
        alone = slow.gallery.identify(vectors[number], fingerprint=F, k=k, threshold=-1)[0]
        assert future.result(timeout=10) == alone
    assert slow.sizes[0] == 1
    assert max(slow.sizes) == 16
    assert sum(slow.sizes) == queue.searched == 41
    queue.close()


def test_failures(slow: Slow) -> None:
    slow.go.set()
    queue = SearchQueue(slow)  # type: ignore[arg-type]
    with pytest.raises(InvalidEmbeddingError):
        queue.submit(np.full(32, np.nan), fingerprint=F)
    with pytest.raises(PipelineMismatchError):
        queue.submit(unit_vectors(1)[0], fingerprint="x")
    bad = queue.submit(unit_vectors(1)[0], fingerprint=F, k=-1)
    good = queue.submit(unit_vectors(1)[0], fingerprint=F)
    with pytest.raises(ConfigError):
        bad.result(timeout=10)
    assert good.result(timeout=10) is not None
    queue.close()
    with pytest.raises(ClosedError):
        queue.submit(unit_vectors(1)[0], fingerprint=F)


def test_full_cancelled_closed(slow: Slow) -> None:
    queue = SearchQueue(slow, max_waiting=3)  # type: ignore[arg-type]
    first = queue.submit(unit_vectors(1)[0], fingerprint=F)
    slow.begun.wait(10)
    waiting: list[Future[list[Match]]] = [queue.submit(unit_vectors(1)[0], fingerprint=F) for _ in range(3)]
    with pytest.raises(QueueFullError):
        queue.submit(unit_vectors(1)[0], fingerprint=F)
    assert waiting[0].cancel()
    closing = threading.Thread(target=queue.close)
    closing.start()
    slow.go.set()
    closing.join(10)
    assert first.result(timeout=10) is not None
    for future in waiting[1:]:
        try:
            assert future.result(timeout=10) is not None
        except ClosedError:
            continue


def test_from_an_event_loop(slow: Slow) -> None:
    slow.go.set()
    queue = SearchQueue(slow)  # type: ignore[arg-type]

    async def search() -> list[list[Match]]:
        futures = [queue.submit(vector, fingerprint=F, threshold=-1) for vector in unit_vectors(20)]
        return list(await asyncio.gather(*map(asyncio.wrap_future, futures)))

    assert all(len(answer) == 1 for answer in asyncio.run(search()))
    queue.close()
