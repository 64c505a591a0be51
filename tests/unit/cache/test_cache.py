"""The feature cache: same answers, one computation, bounded, shared, and harmless when it fails."""

from __future__ import annotations

import multiprocessing
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from facefleet.cache import CachedEngine, FeatureCache, open_cache
from facefleet.cache.codec import pack_faces, unpack_faces
from facefleet.cache.perceptual import difference_hash
from facefleet.cache.store import SqliteCache
from facefleet.config import CacheSettings
from facefleet.decode import Decoder
from facefleet.errors import CacheError, CorruptImageError, FacefleetError
from facefleet.jobs import run_job
from facefleet.sources import Inputs
from facefleet.types import EncodedImage, Faces, Image, ImageSource, Outcome
from tests.conftest import encode, smooth_picture
from tests.unit.jobs.fake import DIMENSION, faces_of


class Slow:
    """An engine with futures: answers follow from the bytes, each in a thread of its own."""

    dimension = DIMENSION

    def __init__(self, *, delay_s: float = 0.0, fingerprint: str = "f" * 64) -> None:
        self.fingerprint = fingerprint
        self.delay_s = delay_s
        self.seen: list[str] = []

    def describe(self) -> dict[str, str]:
        return {"pack": "fake", "backend": "none"}

    def submit(self, image: ImageSource, *, chips: bool = False) -> Future[Outcome[Faces]]:
        future: Future[Outcome[Faces]] = Future()
        picture = Decoder().read(image)
        self.seen.append(picture.name)

        def work() -> None:
            time.sleep(self.delay_s)
            data = picture.data if isinstance(picture, EncodedImage) else picture.pixels.tobytes()
            if data.startswith(b"bad"):
                future.set_result(Outcome(error=CorruptImageError(picture.name)))
            else:
                future.set_result(Outcome(faces_of(picture.name, data, chips=chips)))

        threading.Thread(target=work).start()
        return future


def same(a: Faces, b: Faces) -> bool:
    return pack_faces(a) == pack_faces(b) and a.name == b.name


@pytest.fixture(params=["sqlite", "redis"])
def cache(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FeatureCache]:
    made: FeatureCache
    if request.param == "sqlite":
        made = SqliteCache(tmp_path / "cache.sqlite", 1 << 20)
    else:
        fakeredis = pytest.importorskip("fakeredis", reason="fakeredis is not installed")
        from facefleet.cache.redis import RedisCache

        made = RedisCache("redis://fake", fakeredis.FakeRedis())
    yield made
    made.close()


class TestCodec:
    @pytest.mark.parametrize("chips", [False, True])
    @pytest.mark.parametrize("count", [0, 1, 5])
    def test_round_trip(self, chips: bool, count: int) -> None:
        faces = faces_of("a", b"seed", chips=chips, count=count)
        again = unpack_faces(pack_faces(faces), "b")
        assert again.name == "b"
        for name in ("boxes", "landmarks", "scores", "embeddings", "norms", "status"):
            np.testing.assert_array_equal(getattr(again, name), getattr(faces, name))
        np.testing.assert_array_equal(again.quality.blur, faces.quality.blur)
        assert (again.chips is None) == (not chips)
        assert again.best_rejected == faces.best_rejected

    def test_damage(self) -> None:
        data = pack_faces(faces_of("a", b"x", count=2))
        for place in (0, 5, 40, len(data) - 1):
            broken = bytearray(data)
            broken[place] ^= 4
            with pytest.raises(CacheError):
                unpack_faces(bytes(broken), "a")
        with pytest.raises(CacheError):
            unpack_faces(b"", "a")


class TestEngine:
    def test_the_second_time_nothing_is_computed(self, cache: FeatureCache) -> None:
        engine = Slow()
        cached = CachedEngine(engine, cache)
        first = cached.analyze(EncodedImage(b"photo", "a.jpg"))
        again = cached.analyze(EncodedImage(b"photo", "b.jpg"))
        assert engine.seen == ["a.jpg"]
        assert same(first, faces_of("a.jpg", b"photo"))
        assert same(again, faces_of("b.jpg", b"photo"))
        stats = cached.stats()
        assert (stats.hits, stats.misses, stats.shared) == (1, 1, 0)

    def test_what_is_asked_for_is_part_of_the_key(self, cache: FeatureCache) -> None:
        engine, other = Slow(), Slow(fingerprint="e" * 64)
        cached = CachedEngine(engine, cache)
        cached.analyze(b"photo")
        assert cached.analyze(b"photo", chips=True).chips is not None
        assert len(engine.seen) == 2
        CachedEngine(other, cache).analyze(b"photo")
        assert len(other.seen) == 1, "another pipeline"

    def test_equal_ones_at_once_are_computed_once(self, cache: FeatureCache) -> None:
        engine = Slow(delay_s=0.05)
        cached = CachedEngine(engine, cache)
        futures = [cached.submit(EncodedImage(b"same", f"{i}")) for i in range(20)]
        for i, future in enumerate(futures):
            assert same(future.result(timeout=10).unwrap(), faces_of(f"{i}", b"same"))
        assert len(engine.seen) == 1
        assert cached.stats().shared == 19

    def test_errors_are_told_to_all_and_not_kept(self, cache: FeatureCache) -> None:
        engine = Slow(delay_s=0.02)
        cached = CachedEngine(engine, cache)
        futures = [cached.submit(b"bad one") for _ in range(3)]
        assert all(isinstance(future.result().error, CorruptImageError) for future in futures)
        assert isinstance(cached.submit(b"bad one").result().error, CorruptImageError)
        assert len(engine.seen) == 2
        assert isinstance(cached.submit("/nowhere.jpg").result().error, FacefleetError)

    def test_a_stream(self, cache: FeatureCache) -> None:
        engine = Slow(delay_s=0.002)
        cached = CachedEngine(engine, cache, window=8)
        pictures = [EncodedImage(f"p{i % 30}".encode(), f"{i}") for i in range(200)]
        results = dict(cached.as_ready(pictures))
        assert sorted(results) == list(range(200))
        for i, outcome in results.items():
            assert same(outcome.unwrap(), faces_of(f"{i}", f"p{i % 30}".encode()))
        assert len(engine.seen) == 30
        taken = 0

        def counted() -> Iterator[EncodedImage]:
            nonlocal taken
            for i in range(1000):
                taken += 1
                yield EncodedImage(f"q{i}".encode(), f"{i}")

        stream = cached.as_ready(counted())
        next(stream)
        stream.close()
        assert taken <= 10, "read only so far ahead as the window"

    def test_pixels_as_key(self, cache: FeatureCache) -> None:
        pixels = smooth_picture(60, 50)
        engine = Slow()
        cached = CachedEngine(engine, cache, CacheSettings(key="pixels"))
        for data in (encode(pixels, "PNG"), encode(pixels, "BMP"), encode(pixels, "PNG", compress_level=1)):
            cached.analyze(data)
        assert len(engine.seen) == 1, "the same pixels, encoded otherwise"
        cached.analyze(encode(pixels[:, ::-1].copy(), "PNG"))
        assert len(engine.seen) == 2

    def test_near_duplicates(self, cache: FeatureCache) -> None:
        pixels = smooth_picture(90, 120, seed=3)
        noisy = np.clip(pixels.astype(int) + np.random.default_rng(0).integers(-2, 3, pixels.shape), 0, 255)
        frames = [pixels, noisy.astype(np.uint8), smooth_picture(90, 120, seed=4)]
        assert (difference_hash(frames[0]) ^ difference_hash(frames[1])).bit_count() < 12
        assert (difference_hash(frames[0]) ^ difference_hash(frames[2])).bit_count() > 60
        for bits, computed in ((0, 3), (12, 2)):
            engine = Slow(fingerprint=f"{bits:064d}")
            cached = CachedEngine(engine, cache, CacheSettings(near_duplicate_bits=bits))
            for frame in frames:
                cached.analyze(frame)
            assert len(engine.seen) == computed


class TestSqlite:
    def test_bounded_and_least_recently_used_first(self, tmp_path: Path) -> None:
        cache = SqliteCache(tmp_path / "c", 100_000)
        for i in range(50):
            cache.put(b"%d" % i, bytes(4000))
            assert cache.get(b"0") is not None, "used all the time"
            assert cache.held()[1] <= 100_000
        entries, _, evicted = cache.held()
        assert 0 < entries < 25
        assert evicted == 50 - entries
        assert cache.get(b"49") is not None
        assert cache.get(b"3") is None
        cache.put(b"huge", bytes(200_000))
        assert cache.get(b"huge") is None
        with sqlite3.connect(tmp_path / "c") as db:
            assert db.execute("SELECT SUM(size) FROM entries").fetchone()[0] == cache.held()[1]
        db.close()
        cache.close()

    def test_a_damaged_file(self, tmp_path: Path) -> None:
        (tmp_path / "c").write_bytes(b"nonsense" * 5000)
        with pytest.raises(CacheError, match="delete it"):
            SqliteCache(tmp_path / "c", 1 << 20)

    def test_a_damaged_entry_is_computed_again(self, tmp_path: Path) -> None:
        cache = SqliteCache(tmp_path / "c", 1 << 20)
        engine = Slow()
        cached = CachedEngine(engine, cache)
        first = cached.analyze(EncodedImage(b"photo", "a"))
        with sqlite3.connect(tmp_path / "c") as db:
            db.execute("UPDATE entries SET data = zeroblob(100)")
        db.close()
        assert same(cached.analyze(EncodedImage(b"photo", "a")), first)
        assert same(cached.analyze(EncodedImage(b"photo", "a")), first)
        assert len(engine.seen) == 2
        cache.close()

    def test_a_cache_that_fails_is_gone_on_without(self, tmp_path: Path) -> None:
        cache = SqliteCache(tmp_path / "c", 1 << 20)
        engine = Slow()
        cached = CachedEngine(engine, cache)
        cache.close()
        for _ in range(2):
            assert same(cached.analyze(EncodedImage(b"photo", "a")), faces_of("a", b"photo"))
        assert len(engine.seen) == 2

    def test_another_version(self, tmp_path: Path) -> None:
        SqliteCache(tmp_path / "c", 1 << 20).close()
        with sqlite3.connect(tmp_path / "c") as db:
            db.execute("PRAGMA user_version=77")
        db.close()
        with pytest.raises(CacheError, match="version 77"):
            SqliteCache(tmp_path / "c", 1 << 20)

    def test_claims(self, tmp_path: Path) -> None:
        one, two = SqliteCache(tmp_path / "c", 1 << 20), SqliteCache(tmp_path / "c", 1 << 20)
        assert one.claim(b"k")
        assert one.claim(b"k")
        assert not two.claim(b"k")
        one.release(b"k")
        assert two.claim(b"k")
        two.put(b"k", b"data")
        assert one.claim(b"k")
        one.close()
        assert two.claim(b"k"), "a closed cache claims nothing"
        with sqlite3.connect(tmp_path / "c") as db:
            db.execute("INSERT OR REPLACE INTO claims VALUES (?, '4194303-1-1', 1e12)", (b"dead",))
        db.close()
        assert two.claim(b"dead"), "its process is gone"
        two.close()

    def test_processes_compute_once(self, tmp_path: Path) -> None:
        context = multiprocessing.get_context("spawn")
        results: Any = context.Queue()
        barrier = context.Barrier(3)
        arguments = (tmp_path / "c", results, barrier)
        processes = [context.Process(target=_process, args=arguments) for _ in range(3)]
        for process in processes:
            process.start()
        answers = [results.get(timeout=120) for _ in processes]
        for process in processes:
            process.join()
        assert sum(computed for computed, _ in answers) == 20
        assert len({digest for _, digest in answers}) == 1


def _process(path: Path, results: Any, barrier: Any) -> None:
    cache = SqliteCache(path, 1 << 24)
    engine = Slow(delay_s=0.05)
    cached = CachedEngine(engine, cache)
    barrier.wait(timeout=60)
    pictures = [EncodedImage(f"p{i}".encode(), f"{i}") for i in range(20)]
    found = dict(cached.as_ready(pictures))
    cached.close()
    cache.close()
    results.put((len(engine.seen), b"".join(pack_faces(found[i].unwrap()) for i in range(20))))


class TestJob:
    def test_the_same_output(self, tmp_path: Path) -> None:
        folder = tmp_path / "photos"
        folder.mkdir()
        for i in range(60):
            (folder / f"{i:03d}.jpg").write_bytes(b"bad" if i == 7 else f"photo {i % 18}".encode())
        outputs = []
        for name in ("with", "again"):
            cache = open_cache(CacheSettings(path=str(tmp_path / "c.sqlite")))
            assert cache is not None
            engine = Slow()
            cached = CachedEngine(engine, cache)
            summary = run_job(Inputs([str(folder)]), tmp_path / f"{name}.parquet", cached)
            assert summary.failed == 1
            outputs.append((tmp_path / f"{name}.parquet").read_bytes())
            assert len(engine.seen) == (19 if name == "with" else 1)
            cached.close()
            cache.close()

        class Plain(Slow):
            def as_ready(self, images: Any, *, chips: bool = False) -> Iterator[tuple[int, Outcome[Faces]]]:
                for index, image in enumerate(images):
                    yield index, self.submit(image, chips=chips).result()

        run_job(Inputs([str(folder)]), tmp_path / "without.parquet", Plain())
        assert {*outputs, (tmp_path / "without.parquet").read_bytes()} == {outputs[0]}

    def test_no_cache(self) -> None:
        assert open_cache(CacheSettings()) is None


assert Image
