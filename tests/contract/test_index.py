"""One suite over every kind of index: right answers, typed errors, deltas and tombstones, consistent states."""

from __future__ import annotations

import importlib.util
import os
import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from facefleet.errors import ConfigError
from facefleet.gallery.index.base import NOTHING, Index
from facefleet.gallery.index.layered import LayeredIndex
from facefleet.gallery.index.registry import segment_type
from facefleet.gallery.view import Marked
from tests.conftest import skip_without
from tests.unit.gallery.fake import DIMENSION, IDENTITY, header, unit_vectors

KINDS: dict[str, tuple[str, dict[str, object], str | None]] = {
    "flat": ("flat", {}, None),
    "faiss-flat": ("faiss", {"type": "flat"}, "faiss"),
    "faiss-hnsw": ("faiss", {"type": "hnsw"}, "faiss"),
    "faiss-ivfpq": ("faiss", {"type": "ivfpq"}, "faiss"),
    "flat-cuda-fp32": ("flat-cuda", {"device": "cpu", "precision": "fp32"}, "torch"),
    "flat-cuda-fp16": ("flat-cuda", {"device": "cpu", "precision": "fp16"}, "torch"),
    "flat-cuda-int8": ("flat-cuda", {"device": "cpu", "precision": "int8"}, "torch"),
    "milvus": ("milvus", {}, "milvus_lite"),
    "milvus-server": ("milvus", {"uri": os.environ.get("MILVUS_URI", ""), "timeout_s": 60}, "pymilvus"),
}


def usable(name: str) -> tuple[str, dict[str, object]]:
    """The kind and options of one of `KINDS`; skips where something is missing."""
    kind, options, library = KINDS[name]
    if library is not None and importlib.util.find_spec(library) is None:
        skip_without(library, f"{library} is not installed")
    if options.get("uri") == "":
        skip_without("milvus-server", "MILVUS_URI does not name a server, e.g. http://127.0.0.1:19530")
    return kind, dict(options)


@pytest.fixture(params=KINDS)
def index(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Index]:
    kind, options = usable(request.param)
    made: Index
    if kind == "milvus":
        from facefleet.gallery.index.milvus import MilvusIndex

        made = MilvusIndex(tmp_path, replace(header(kind), uuid=uuid.uuid4().hex), options)
    else:
        made = LayeredIndex(DIMENSION, segment_type(kind), options)
    yield made
    made.close()


def none() -> np.ndarray:
    return np.empty(0, np.int64)


def reference(ids: np.ndarray, vectors: np.ndarray, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    scores = np.clip(queries.astype(np.float64) @ vectors.astype(np.float64).T, -1, 1).astype(np.float32)
    order = np.stack([np.lexsort((ids, -line))[:k] for line in scores])
    return ids[order], np.take_along_axis(scores, order, axis=1)


def settle(index: Index) -> None:
    if isinstance(index, LayeredIndex):
        index.rebuild()
    elif isinstance(index, Marked):
        index.flush()


class TestAnswers:
    def test_empty(self, index: Index) -> None:
        hits = index.search(unit_vectors(2), 3)
        assert (hits.ids == NOTHING).all()
        assert np.isneginf(hits.scores).all()
        assert len(index) == 0
        index.apply(none(), np.empty((0, DIMENSION), np.float32), np.array([5]))
        assert len(index) == 0

    @pytest.mark.parametrize("rebuilt", [False, True])
    def test_nearest(self, index: Index, rebuilt: bool) -> None:
        vectors = unit_vectors(600, seed=1)
        ids = np.arange(600, dtype=np.int64) * 7 + 3
        index.apply(ids[:400], vectors[:400], none())
        if rebuilt:
            settle(index)
        index.apply(ids[400:], vectors[400:], none())
        for queries in (unit_vectors(1, seed=2), unit_vectors(33, seed=3)):
            hits = index.search(queries, 5)
            wanted, scores = reference(ids, vectors, queries, 5)
            np.testing.assert_array_equal(hits.ids, wanted)
            np.testing.assert_allclose(hits.scores, scores, atol=2e-7)
        itself = index.search(vectors, 1)
        np.testing.assert_array_equal(itself.ids[:, 0], ids)
        assert (itself.scores <= 1).all()

    def test_k_larger_than_there_are(self, index: Index) -> None:
        vectors = unit_vectors(4)
        index.apply(np.arange(1, 5), vectors, none())
        settle(index)
        hits = index.search(vectors[:1], 50)
        assert sorted(hits.ids[0, :4].tolist()) == [1, 2, 3, 4]
        assert (hits.ids[0, 4:] == NOTHING).all()
        assert np.isneginf(hits.scores[0, 4:]).all()
        assert (np.diff(hits.scores[0, :4]) <= 0).all()

    def test_equal_scores_come_by_id(self, index: Index) -> None:
        vector = unit_vectors(1)
        index.apply(np.array([9, 2, 5]), np.repeat(vector, 3, axis=0), none())
        assert index.search(vector, 3).ids.tolist() == [[2, 5, 9]]

    def test_only_allowed(self, index: Index) -> None:
        vectors = unit_vectors(300, seed=4)
        ids = np.arange(1, 301)
        index.apply(ids[:200], vectors[:200], none())
        settle(index)
        index.apply(ids[200:], vectors[200:], none())
        allowed = np.array([3, 50, 199, 250, 299])
        hits = index.search(vectors[:10], 4, allowed=allowed)
        wanted, _ = reference(allowed, vectors[allowed - 1], vectors[:10], 4)
        np.testing.assert_array_equal(hits.ids, wanted)
        assert (index.search(vectors[:2], 2, allowed=none()).ids == NOTHING).all()
        assert (index.search(vectors[:2], 2, allowed=np.array([4711])).ids == NOTHING).all()


class TestChanges:
    def test_added_removed_replaced_are_seen_at_once(self, index: Index) -> None:
        vectors = unit_vectors(100, seed=5)
        ids = np.arange(1, 101)
        index.apply(ids, vectors, none())
        settle(index)
        index.apply(none(), vectors[:0], np.array([7, 8, 4711]))
        assert len(index) == 98
        assert not np.isin([7, 8], index.search(vectors[6:8], 100).ids).any()
        index.apply(np.array([7]), vectors[6:7], none())
        assert index.search(vectors[6:7], 1).ids.tolist() == [[7]]
        other = unit_vectors(1, seed=6)
        index.apply(np.array([9]), other, none())
        hits = index.search(np.concatenate([other, vectors[8:9]]), 1)
        assert hits.ids[0, 0] == 9
        assert hits.ids[1, 0] != 9
        assert len(index) == 99
        index.apply(np.array([9]), vectors[8:9], np.array([9]))
        assert index.search(vectors[8:9], 1).ids.tolist() == [[9]]
        assert len(index) == 99

    def test_ten_thousand_deletes(self, index: Index) -> None:
        vectors = unit_vectors(12_000, seed=7)
        ids = np.arange(1, 12_001)
        index.apply(ids, vectors, none())
        settle(index)
        for start in range(0, 10_000, 500):
            index.apply(none(), vectors[:0], ids[start : start + 500])
        assert len(index) == 2000
        hits = index.search(vectors[9_990:10_010], 3)
        wanted, _ = reference(ids[10_000:], vectors[10_000:], vectors[9_990:10_010], 3)
        np.testing.assert_array_equal(hits.ids, wanted)
        settle(index)
        np.testing.assert_array_equal(index.search(vectors[9_990:10_010], 3).ids, wanted)

    def test_all_removed(self, index: Index) -> None:
        vectors = unit_vectors(20)
        index.apply(np.arange(1, 21), vectors, none())
        settle(index)
        index.apply(none(), vectors[:0], np.arange(1, 21))
        settle(index)
        assert len(index) == 0
        assert (index.search(vectors[:1], 3).ids == NOTHING).all()
        index.apply(np.array([30]), vectors[:1], none())
        assert index.search(vectors[:1], 1).ids.tolist() == [[30]]

    def test_applied_twice_is_applied_once(self, index: Index) -> None:
        vectors = unit_vectors(10)
        for _ in range(2):
            index.apply(np.arange(1, 11), vectors, none())
        assert len(index) == 10
        assert index.search(vectors[:1], 10).ids[0].tolist().count(1) == 1

    def test_searches_while_it_changes(self, index: Index) -> None:
        """Fault 43: readers beside a writer; what stays is always found, with the same score."""
        vectors = unit_vectors(500, seed=8)
        ids = np.arange(1, 501)
        index.apply(ids, vectors, none())
        stop = threading.Event()
        problems: list[str] = []

        def read() -> None:
            while not stop.is_set():
                hits = index.search(vectors[:3], 1)
                if hits.ids[:, 0].tolist() != [1, 2, 3] or not np.allclose(hits.scores, 1, atol=1e-6):
                    problems.append(f"{hits}")
                    return

        readers = [threading.Thread(target=read) for _ in range(3)]
        for reader in readers:
            reader.start()
        for turn in range(30):
            index.apply(ids[100 + turn : 110 + turn], vectors[200 + turn : 210 + turn], ids[300 : 300 + turn])
            if turn % 10 == 5:
                settle(index)
        stop.set()
        for reader in readers:
            reader.join()
        assert not problems


class TestApproximate:
    @pytest.mark.parametrize("kind", ["hnsw", "ivfpq"])
    def test_recall_is_measured_and_reached(self, kind: str, tmp_path: Path) -> None:
        if importlib.util.find_spec("faiss") is None:
            skip_without("faiss", "faiss is not installed")
        generator = np.random.default_rng(9)
        centers = generator.normal(size=(1500, 32))
        vectors = (centers[generator.integers(0, 1500, 21_000)] + 0.5 * generator.normal(size=(21_000, 32))).astype(
            np.float32
        )
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        segment = segment_type("faiss").build(vectors, {"type": kind, "recall": 0.9})
        facts = segment.facts()
        assert facts["type"] == kind
        assert not segment.exact
        assert float(str(facts["recall_at_10"])) >= 0.9
        index = LayeredIndex(32, segment_type("faiss"), {"type": kind, "recall": 0.9})
        index.apply(np.arange(len(vectors)), vectors, none())
        index.rebuild()
        index.apply(none(), vectors[:0], np.arange(0, 1000))
        queries = vectors[:300]
        hits = index.search(queries, 10)
        assert not (hits.ids < 1000).any(), "a removed vector is never found"
        wanted, _ = reference(np.arange(1000, 21_000), vectors[1000:], queries, 10)
        assert np.mean([np.isin(a, b).mean() for a, b in zip(wanted, hits.ids, strict=True)]) >= 0.8


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("flat", {"type": "x"}),
        ("faiss", {"type": "lsh"}),
        ("faiss", {"recall": 2}),
        ("flat-cuda", {"precision": "int4", "device": "cpu"}),
        ("flat-cuda", {"colour": 1}),
    ],
)
def test_options_are_refused(kind: str, options: dict[str, object]) -> None:
    if kind == "faiss" and importlib.util.find_spec("faiss") is None:
        skip_without("faiss", "faiss is not installed")
    with pytest.raises(ConfigError):
        LayeredIndex(DIMENSION, segment_type(kind), options)


def test_unknown_kind() -> None:
    with pytest.raises(ConfigError, match="flat"):
        segment_type("annoy")


assert IDENTITY.dimension == DIMENSION
