"""The engine end to end on real pictures with the default pack."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from facefleet import AsyncEngine, Engine, Settings
from facefleet.config import BatchSettings, DecodeSettings, DetectSettings, EmbedSettings, RuntimeSettings
from facefleet.errors import (
    BackendUnavailableError,
    BadOutputError,
    ClosedError,
    ConfigError,
    CorruptImageError,
    InferenceError,
    InternalError,
    SourceError,
)
from facefleet.models.embedders import Embedder
from facefleet.types import DeferredImage, EncodedImage, FaceStatus, Outcome
from tests.conftest import encode, smooth_picture


def test_finds_and_embeds(engine: Engine, astronaut: np.ndarray) -> None:
    faces = engine.analyze(astronaut, chips=True)
    assert len(faces) == 1
    face = faces[0]
    assert face.score > 0.8
    x1, y1, x2, y2 = face.box
    # The face in the picture, as anybody sees it.
    assert 160 < x1 < 195
    assert 45 < y1 < 85
    assert 250 < x2 < 290
    assert 160 < y2 < 200
    assert face.status is FaceStatus.OK
    assert np.linalg.norm(face.embedding) == pytest.approx(1, abs=1e-5)
    assert face.norm > 1
    assert face.chip is not None
    assert face.chip.shape == (112, 112, 3)
    assert faces.quality.blur[0] > 0
    assert (faces.width, faces.height) == (512, 512)


def test_no_face_is_a_result(engine: Engine) -> None:
    """Faults 8 and 51: an empty answer, with the best score that was rejected."""
    faces = engine.analyze(smooth_picture(200, 200))
    assert len(faces) == 0
    assert faces.embeddings.shape == (0, engine.dimension)
    assert 0 <= faces.best_rejected < 0.6


def test_every_way_in_gives_the_same(engine: Engine, astronaut: np.ndarray, tmp_path: Path) -> None:
    """Fault 1: path, bytes, array, PIL image."""
    from PIL import Image

    data = encode(astronaut, "PNG")
    path = tmp_path / "a.png"
    path.write_bytes(data)
    ways = [astronaut, data, path, str(path), EncodedImage(data), DeferredImage("x", lambda: data), Image.open(path)]
    first = engine.analyze(ways[0])
    for way in ways[1:]:
        faces = engine.analyze(way)  # type: ignore[arg-type]
        assert np.array_equal(faces.boxes, first.boxes)
        assert np.array_equal(faces.embeddings, first.embeddings)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_gives_the_same_face(engine: Engine, astronaut: np.ndarray, orientation: int) -> None:
    """Fault 1: eight tags, the same face in the upright frame."""
    from PIL import Image

    from tests.unit.decode.test_orientation import stored

    exif = Image.Exif()
    exif[0x0112] = orientation
    faces = engine.analyze(encode(stored(astronaut, orientation), "PNG", exif=exif))
    plain = engine.analyze(astronaut)
    assert np.array_equal(faces.boxes, plain.boxes)
    assert np.array_equal(faces.embeddings, plain.embeddings)


def test_swapped_channels_change_the_answer(engine: Engine, astronaut: np.ndarray) -> None:
    """Fault 14: color order matters, and the right one is used."""
    right = engine.analyze(astronaut)
    swapped = engine.analyze(np.ascontiguousarray(astronaut[..., ::-1]))
    assert float(right.embeddings[0] @ swapped.embeddings[0]) < 0.97


def test_map_keeps_order_and_errors_apart(engine: Engine, astronaut: np.ndarray, tmp_path: Path) -> None:
    """Faults 3 and 21: a bad item fails alone, with its reason."""
    items = [astronaut, b"\xff\xd8broken", smooth_picture(100, 100), tmp_path / "missing.jpg", astronaut]
    outcomes = list(engine.map(items))
    assert [outcome.ok for outcome in outcomes] == [True, False, True, False, True]
    assert isinstance(outcomes[1].error, CorruptImageError)
    assert isinstance(outcomes[3].error, SourceError)
    assert len(outcomes[0].unwrap()) == len(outcomes[4].unwrap()) == 1


def test_as_ready_answers_each_position_once(engine: Engine, astronaut: np.ndarray) -> None:
    items = [astronaut if i % 3 else smooth_picture(64, 64, seed=i) for i in range(40)]
    answers = dict(engine.as_ready(items))
    assert sorted(answers) == list(range(40))
    assert all(len(answers[i].unwrap()) == (1 if i % 3 else 0) for i in range(40))


def test_streams_are_read_only_as_far_as_there_is_room(home: Path) -> None:
    taken = 0

    def source() -> Iterator[np.ndarray]:
        nonlocal taken
        for _ in range(100):
            taken += 1
            yield smooth_picture(32, 32)

    with Engine(Settings(home=str(home), batch=BatchSettings(max_images=4))) as small:
        results = small.map(source())
        next(results)
        assert taken <= 8
        results.close()
        assert len(small.analyze(smooth_picture(32, 32))) == 0  # what was dropped left its place


def test_threads_never_mix_answers(engine: Engine, astronaut: np.ndarray) -> None:
    """Fault 22: 64 threads, each with a picture whose answer is known."""
    shifts = [(i % 8) * 16 for i in range(64)]
    expected = {s: engine.analyze(np.roll(astronaut, s, axis=1)).boxes for s in set(shifts)}
    wrong: list[int] = []

    def work(shift: int) -> None:
        picture = np.roll(astronaut, shift, axis=1)
        for _ in range(2):
            if not np.array_equal(engine.analyze(picture).boxes, expected[shift]):
                wrong.append(shift)

    threads = [threading.Thread(target=work, args=(shift,)) for shift in shifts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({boxes.tobytes() for boxes in expected.values()}) == 8
    assert wrong == []


@pytest.fixture(scope="module")
def three(astronaut: np.ndarray) -> np.ndarray:
    """The same face large, small and smaller, on one canvas."""
    import cv2

    canvas = np.full((700, 1200, 3), 90, np.uint8)
    canvas[:512, :512] = astronaut
    canvas[100:400, 560:860] = cv2.resize(astronaut, (300, 300), interpolation=cv2.INTER_AREA)
    canvas[450:650, 900:1100] = cv2.resize(astronaut, (200, 200), interpolation=cv2.INTER_AREA)
    return canvas


class TestOptions:
    def make(self, home: Path, **detect: object) -> Engine:
        return Engine(Settings(home=str(home), detect=DetectSettings(**detect)))  # type: ignore[arg-type]

    def test_order_and_max_faces(self, home: Path, three: np.ndarray) -> None:
        """Fault 10: the largest is the largest."""
        with self.make(home, order="area") as opened:
            faces = opened.analyze(three)
            sizes = (faces.boxes[:, 2:] - faces.boxes[:, :2]).prod(axis=1)
            assert len(faces) == 3
            assert (np.diff(sizes) < 0).all()
        with self.make(home, order="area", max_faces=1) as opened:
            assert np.array_equal(opened.analyze(three).boxes, faces.boxes[:1])
        with self.make(home, order="center", max_faces=1) as opened:
            middle = opened.analyze(three).boxes[0, [0, 2]].mean()
            assert 560 < middle < 860
        with self.make(home, order="score") as opened:
            assert (np.diff(opened.analyze(three).scores) <= 0).all()

    def test_min_face_px(self, home: Path, three: np.ndarray) -> None:
        with self.make(home, min_face_px=60) as opened:
            assert len(opened.analyze(three)) == 1

    def test_several_sizes_find_faces_that_fill_the_frame(self, home: Path, astronaut: np.ndarray) -> None:
        close = np.ascontiguousarray(astronaut[70:185, 175:275])
        import cv2

        close = cv2.resize(close, (1000, 1150), interpolation=cv2.INTER_CUBIC)
        with self.make(home, sizes=(640, 128), score=0.5) as both, self.make(home, sizes=(128,), score=0.5) as small:
            found = both.analyze(close)
            assert len(found) == len(small.analyze(close)) == 1

    def test_size_is_rounded_up_and_said(self, home: Path, astronaut: np.ndarray) -> None:
        """Fault 7."""
        with self.make(home, sizes=(500,)) as opened:
            assert "500 (rounded up to 512)" in opened.describe()["detector"]
            assert len(opened.analyze(astronaut)) == 1

    def test_flip(self, home: Path, engine: Engine, astronaut: np.ndarray) -> None:
        with Engine(Settings(home=str(home), embed=EmbedSettings(flip=True))) as flipping:
            plain, summed = engine.analyze(astronaut), flipping.analyze(astronaut)
            mirrored = flipping.analyze(np.ascontiguousarray(astronaut[:, ::-1]))
            assert float(plain.embeddings[0] @ summed.embeddings[0]) > 0.8
            assert flipping.fingerprint != engine.fingerprint
            # The face and its mirror image give nearly the same sum; the rest is the detector's.
            assert float(summed.embeddings[0] @ mirrored.embeddings[0]) > 0.9

    def test_reduced_decoding_gives_the_same_face(self, home: Path, astronaut: np.ndarray) -> None:
        """Big JPEGs: reduced where the face is large, in full where it is not; the same answer within tolerance."""
        import cv2

        large = encode(cv2.resize(astronaut, (2048, 2048), interpolation=cv2.INTER_CUBIC), "JPEG", quality=95)
        small = np.full((2048, 2048, 3), 100, np.uint8)
        small[500:1012, 700:1212] = astronaut
        for data in (large, encode(small, "JPEG", quality=95)):
            answers = []
            for scaled in ("auto", "off"):
                settings = Settings(home=str(home), decode=DecodeSettings(scaled=scaled))
                with Engine(settings) as opened:
                    answers.append(opened.analyze(data))
            auto, full = answers
            assert len(auto) == len(full) == 1
            size = float(full.quality.size_px[0])
            # A reduced picture is filtered where a resized one is sampled: within 3 % of the face's size.
            assert np.abs(auto.boxes - full.boxes).max() < 0.03 * size
            assert float(auto.embeddings[0] @ full.embeddings[0]) > 0.95
            assert (auto.width, auto.height) == (2048, 2048)


class TestLife:
    def test_nothing_is_loaded_before_the_first_use(self, home: Path) -> None:
        lazy = Engine(Settings(home=str(home)))
        assert not [t for t in threading.enumerate() if t.name.startswith("facefleet") and lazy._running]
        lazy.close()

    def test_threads_end_with_the_engine(self, home: Path) -> None:
        before = {t.ident for t in threading.enumerate()}
        with Engine(Settings(home=str(home))) as opened:
            opened.analyze(smooth_picture(40, 40))
        assert not [t for t in threading.enumerate() if t.name.startswith("facefleet") and t.ident not in before]

    def test_closing_answers_what_is_inside(self, home: Path, astronaut: np.ndarray) -> None:
        opened = Engine(Settings(home=str(home)))
        futures = [opened.submit(astronaut) for _ in range(30)]
        opened.close()
        outcomes = [future.result(timeout=30) for future in futures]
        assert all(outcome.ok or isinstance(outcome.error, ClosedError) for outcome in outcomes)
        assert any(not outcome.ok for outcome in outcomes)

    def test_a_cancelled_item_is_dropped(self, engine: Engine, astronaut: np.ndarray) -> None:
        """Fault 20: and the next call is answered."""
        futures = [engine.submit(astronaut) for _ in range(20)]
        dropped = [future.cancel() for future in futures]
        done = [future.result() for future, gone in zip(futures, dropped, strict=True) if not gone]
        assert any(dropped)
        assert all(isinstance(outcome, Outcome) and outcome.ok for outcome in done)
        assert len(engine.analyze(astronaut)) == 1

    def test_missing_device_and_backend(self, home: Path) -> None:
        """Fault 36: strict, and says what to use."""
        for runtime, error, words in (
            (RuntimeSettings(devices="cuda"), BackendUnavailableError, r"facefleet\[torch\]|sees no CUDA device"),
            (RuntimeSettings(backend="onnxruntime", devices="cuda:0"), ConfigError, "use backend=torch"),
            (RuntimeSettings(devices="cpu:0,0"), ConfigError, "named twice"),
            (RuntimeSettings(devices="cpu:9999"), ConfigError, "may not use processor 9999"),
        ):
            with pytest.raises(error, match=words):
                Engine(Settings(home=str(home), runtime=runtime)).open()

    def test_backends_agree(self, home: Path, engine: Engine, astronaut: np.ndarray) -> None:
        answers = {}
        for backend in ("openvino", "onnxruntime"):
            runtime = RuntimeSettings(backend=backend, precision="fp32")
            with Engine(Settings(home=str(home), runtime=runtime)) as opened:
                assert opened.describe()["backend"] == backend
                assert opened.fingerprint == engine.fingerprint
                answers[backend] = opened.analyze(astronaut)
        a, b = answers["openvino"], answers["onnxruntime"]
        # Two runtimes sum in another order.
        assert np.abs(a.boxes - b.boxes).max() < 0.05
        assert float(a.embeddings[0] @ b.embeddings[0]) > 0.9999

    def test_async(self, home: Path, astronaut: np.ndarray) -> None:
        async def work() -> tuple[list[int], list[int]]:
            async with AsyncEngine(Settings(home=str(home))) as opened:
                many = await asyncio.gather(*(opened.analyze(astronaut) for _ in range(6)))
                mapped = [len(o.unwrap()) async for o in opened.map([astronaut, smooth_picture(50, 50)])]
                return [len(faces) for faces in many], mapped

        assert asyncio.run(work()) == ([1] * 6, [1, 0])


class TestFailures:
    """What goes wrong in a batch concerns only what is at fault."""

    @pytest.fixture
    def opened(self, home: Path) -> Iterator[Engine]:
        with Engine(Settings(home=str(home), batch=BatchSettings(embed=8))) as own:
            yield own

    def test_a_failing_batch_is_run_item_by_item(
        self, opened: Engine, astronaut: np.ndarray, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Fault 21: batches fail, singles do not: everything is answered."""
        real = Embedder.embed

        def flaky(self: Embedder, chips: np.ndarray) -> object:
            if len(chips) > 1:
                raise InferenceError("batches do not work today")
            return real(self, chips)

        monkeypatch.setattr(Embedder, "embed", flaky)
        double = np.concatenate([astronaut, astronaut], axis=1)
        assert [len(o.unwrap()) for o in opened.map([double] * 4)] == [2] * 4

    def test_retryable_error_reaches_the_item(
        self, opened: Engine, astronaut: np.ndarray, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Fault 11: a vector of zeros is no success."""
        monkeypatch.setattr(Embedder, "raw", lambda self, chips: np.zeros((len(chips), self.dimension), np.float32))
        outcome = next(opened.map([astronaut]))
        assert isinstance(outcome.error, BadOutputError)
        assert outcome.error.retryable

    def test_a_bug_is_that_items_answer(
        self, opened: Engine, astronaut: np.ndarray, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        from facefleet.pipeline import stages

        def broken(*_: object) -> None:
            raise KeyError("oops")

        monkeypatch.setattr(stages, "settle", broken)
        outcome = next(opened.map([astronaut]))
        assert isinstance(outcome.error, InternalError)
        assert "oops" in str(outcome.error)

    def test_unalignable_face_keeps_its_box(
        self, opened: Engine, astronaut: np.ndarray, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Fault 12: alignment fails for that face only."""
        from facefleet.pipeline import stages

        real = stages.settle

        def collapsed(*args: object) -> object:
            found = real(*args)  # type: ignore[arg-type]
            assert found.landmarks is not None
            landmarks = found.landmarks.copy()
            landmarks[0] = 5
            return replace(found, landmarks=landmarks)

        monkeypatch.setattr(stages, "settle", collapsed)
        double = np.concatenate([astronaut, astronaut], axis=1)
        faces = opened.analyze(double)
        assert faces.status.tolist() == [FaceStatus.ALIGNMENT_FAILED, FaceStatus.OK]
        assert np.isnan(faces.embeddings[0]).all()
        assert np.isfinite(faces.embeddings[1]).all()
        assert np.isfinite(faces.boxes).all()
