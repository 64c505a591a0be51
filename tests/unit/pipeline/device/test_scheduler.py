"""The device's way against the host's: the same photos, networks and answers; without a GPU."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason='needs the extra: pip install "facefleet[torch]"')

import simplejpeg
import torch

from facefleet.config import BatchSettings
from facefleet.errors import ClosedError, DeviceLostError, FacefleetError, InputError, OutOfMemoryError
from facefleet.models.detectors import Selection
from facefleet.pipeline.device import resident as resident_module
from facefleet.pipeline.device.resident import Resident, open_resident, upright
from facefleet.pipeline.photo import Photo
from facefleet.types import Faces, FaceStatus, Outcome
from tests.conftest import encode
from tests.unit.pipeline.device.parts import device_scheduler, host_scheduler, loaded


def squares(height: int, width: int, places: Sequence[tuple[int, int, int]], seed: int = 0) -> np.ndarray:
    """A dark picture with bright squares at (x, y, side), no two of one color."""
    draw = np.random.default_rng(seed)
    picture = draw.integers(0, 60, (height, width, 3)).astype(np.uint8)
    for x, y, side in places:
        picture[y : y + side, x : x + side] = draw.integers(215, 256, 3)
    return picture


def sources() -> list[Any]:
    many = squares(300, 400, [(20, 30, 50), (200, 60, 40), (300, 200, 60), (60, 200, 30)], 1)
    return [
        many,
        squares(200, 100, [(10, 10, 40)], 2),
        squares(90, 130, [], 3),
        encode(squares(400, 300, [(100, 100, 80), (20, 300, 60)], 4), "JPEG", quality=95),
        encode(squares(64, 64, [(8, 8, 40)], 5), "PNG"),
        b"\xff\xd8\xff nothing of a picture",
        squares(128, 128, [(0, 0, 60), (64, 64, 64)], 6),
        many[:, ::-1].copy(),
    ]


def answers(scheduler: Any, photos: Sequence[Photo]) -> list[Outcome[Faces]]:
    with_answers = [scheduler.submit(photo) for photo in photos]
    try:
        return [future.result(timeout=120) for future in with_answers]
    finally:
        scheduler.close()


def agree(expected: Outcome[Faces], got: Outcome[Faces]) -> None:
    assert type(expected.error) is type(got.error), got.error
    if expected.value is None or got.value is None:
        return
    one, other = expected.value, got.value
    assert (one.name, one.width, one.height, len(one)) == (other.name, other.width, other.height, len(other))
    np.testing.assert_allclose(other.boxes, one.boxes, atol=0.02)
    np.testing.assert_allclose(other.landmarks, one.landmarks, atol=0.02)
    np.testing.assert_allclose(other.scores, one.scores, atol=1e-4)
    np.testing.assert_array_equal(other.status, one.status)
    assert other.best_rejected == pytest.approx(one.best_rejected, abs=1e-4)
    assert np.array_equal(np.isnan(other.embeddings), np.isnan(one.embeddings))
    for vector, reference in zip(other.embeddings, one.embeddings, strict=True):
        assert np.isnan(vector).all() or float(vector @ reference) > 0.999
    np.testing.assert_allclose(other.quality.size_px, one.quality.size_px, atol=0.03)
    np.testing.assert_allclose(other.quality.yaw_deg, one.quality.yaw_deg, atol=0.3)
    np.testing.assert_allclose(other.quality.blur, one.quality.blur, rtol=0.05, atol=2)
    assert (one.chips is None) == (other.chips is None)
    if len(one) and one.chips is not None and other.chips is not None:
        assert np.abs(one.chips.astype(int) - other.chips).mean() < 1.0


@pytest.mark.parametrize("flip", [False, True])
def test_photos_of_all_kinds_get_the_answers_of_the_host_s_way(flip: bool) -> None:
    def photos() -> list[Photo]:
        made = [Photo(source, keep_chips=number % 2 == 0) for number, source in enumerate(sources())]
        made[1].embed = made[6].embed = False
        return made

    expected = answers(host_scheduler(loaded(flip=flip)), photos())
    got = answers(device_scheduler(loaded(flip=flip)), photos())
    for one, other in zip(expected, got, strict=True):
        agree(one, other)
    assert sum(len(each.value) for each in got if each.value is not None) > 8
    assert isinstance(got[5].error, InputError)


def test_aligned_faces_are_embedded_as_they_are() -> None:
    (first,) = answers(host_scheduler(loaded()), [Photo(sources()[0], keep_chips=True)])
    faces = first.unwrap()
    from facefleet.types import FaceChips

    assert faces.chips is not None
    chips = FaceChips(faces.chips, np.full((len(faces), 2, 3), np.nan, np.float32), faces.status == FaceStatus.OK)
    (again,) = answers(device_scheduler(loaded()), [Photo(chips, keep_chips=False)])
    np.testing.assert_allclose(again.unwrap().embeddings, faces.embeddings, atol=1e-5)


@pytest.mark.parametrize(
    "select", [Selection(0.5, 0.4, max_faces=2, order="area"), Selection(0.5, 0.4, order="center", min_face_px=20)]
)
def test_which_faces_are_kept(select: Selection) -> None:
    pictures = [source for source in sources() if isinstance(source, np.ndarray)]
    expected = answers(host_scheduler(loaded(select=select)), [Photo(each, False) for each in pictures])
    got = answers(device_scheduler(loaded(select=select)), [Photo(each, False) for each in pictures])
    for one, other in zip(expected, got, strict=True):
        agree(one, other)


def test_several_sizes_are_settled_together() -> None:
    models = [loaded(sizes=(64, 128, 100)) for _ in range(2)]
    expected = answers(host_scheduler(models[0]), [Photo(each, False) for each in sources()[:4]])
    got = answers(device_scheduler(models[1]), [Photo(each, False) for each in sources()[:4]])
    for one, other in zip(expected, got, strict=True):
        agree(one, other)


def test_a_picture_with_more_candidates_than_are_looked_at_is_done_by_the_host() -> None:
    full = np.full((128, 128, 3), 235, np.uint8)
    (expected,) = answers(host_scheduler(loaded()), [Photo(full, False)])
    photo = Photo(full, False)
    others = [Photo(source, False) for source in sources()[:3]]
    got = answers(device_scheduler(loaded()), [photo, *others])
    agree(expected, got[0])
    assert photo.by_host
    assert not any(other.by_host for other in others)


def test_a_reduced_photo_with_small_faces_is_done_by_the_host() -> None:
    big = encode(squares(900, 1200, [(300, 300, 90), (800, 100, 96)]), "JPEG", quality=95)
    photo = Photo(big, False)
    (expected,) = answers(host_scheduler(loaded()), [Photo(big, False)])
    (got,) = answers(device_scheduler(loaded()), [photo])
    agree(expected, got)
    assert len(got.unwrap())
    assert photo.by_host


class FakeCard:
    """Decodes like the processors; fails on some, and does not take others."""

    def __init__(self, refused: Sequence[bytes] = (), foreign: Sequence[bytes] = ()) -> None:
        self.files, self.closed = 0, False
        self._refused, self._foreign = refused, foreign

    def takes(self, file: bytes) -> bool:
        return file not in self._foreign

    def close(self) -> None:
        self.closed = True

    def decode(self, files: Sequence[bytes], into: Sequence[Any], stream: int) -> tuple[list[int], object]:
        del stream
        self.files += len(files)
        for data, target in zip(files, into, strict=True):
            if data not in self._refused:
                target.copy_(torch.from_numpy(np.array(simplejpeg.decode_jpeg(data, "RGB"))))
        return [number for number, data in enumerate(files) if data in self._refused], None


def test_files_are_decoded_by_the_card_and_turned_upright_there() -> None:
    from PIL import Image as PILImage

    made = []
    for orientation in range(1, 9):
        exif = PILImage.Exif()
        exif[0x0112] = orientation
        made.append(encode(squares(200, 300, [(40, 50, 70)], orientation), "JPEG", quality=95, exif=exif))
    refused = made[2]
    broken = made[4][:3000] + made[4][-2:]
    data = [*made, broken]
    expected = answers(host_scheduler(loaded()), [Photo(each, False) for each in data])
    models, card = loaded(), FakeCard([refused, broken], made[5:6])
    got = answers(
        device_scheduler(models, Resident(models, BatchSettings(detect=4, embed=8), card)),
        [Photo(each, False) for each in data],
    )
    for one, other in zip(expected, got, strict=True):
        agree(one, other)
    assert card.files >= len(data) - 1
    assert card.closed


@pytest.mark.parametrize("orientation", range(1, 9))
def test_turning(orientation: int) -> None:
    from facefleet.decode import exif

    picture = squares(3, 5, [])
    got = upright(torch.from_numpy(picture), orientation)
    assert got.is_contiguous()
    assert np.array_equal(got.numpy(), exif.upright(picture, orientation))


def test_out_of_memory_halves_the_batch_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    models = loaded()
    made = Resident(models, BatchSettings(detect=4, embed=8))
    find, sizes = made.find, []

    def short(slot: Any, count: int, filled: Any) -> Any:
        sizes.append(count)
        if count > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return find(slot, count, filled)

    monkeypatch.setattr(made, "find", short)
    scheduler = device_scheduler(models, made)
    got = answers(scheduler, [Photo(source, False) for source in sources()])
    assert sum(outcome.error is None for outcome in got) == len(got) - 1
    assert sizes[-1] == 1


def test_a_lost_device_is_told_to_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    models = loaded()
    made = Resident(models, BatchSettings(detect=4, embed=8))

    def lost(*_: Any) -> Any:
        raise DeviceLostError("gone")

    monkeypatch.setattr(made, "find", lost)
    scheduler = device_scheduler(models, made)
    first = scheduler.submit(Photo(sources()[0], False)).result(timeout=60)
    assert isinstance(first.error, DeviceLostError)
    with pytest.raises(DeviceLostError):
        scheduler.submit(Photo(sources()[0], False))
    scheduler.close()


@pytest.mark.parametrize("step", ["cut", "finish", "read"])
def test_a_failure_after_finding_is_that_of_its_photos(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    models = loaded()
    made = Resident(models, BatchSettings(detect=2, embed=8))
    scheduler = device_scheduler(models, made)
    real = getattr(made, step)

    def failing(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no such luck")

    monkeypatch.setattr(made, step, failing)
    bad = scheduler.submit(Photo(sources()[0], False)).result(timeout=60)
    assert isinstance(bad.error, FacefleetError)
    monkeypatch.setattr(made, step, real)
    assert len(scheduler.submit(Photo(sources()[0], False)).result(timeout=60).unwrap())
    scheduler.close()


def test_closing_answers_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    models = loaded()
    made = Resident(models, BatchSettings(detect=1, embed=8))
    entered, go_on = threading.Event(), threading.Event()
    find = made.find

    def waiting(*arguments: Any) -> Any:
        entered.set()
        go_on.wait(60)
        return find(*arguments)

    monkeypatch.setattr(made, "find", waiting)
    scheduler = device_scheduler(models, made)
    futures = [scheduler.submit(Photo(source, False)) for source in sources() * 2]
    assert entered.wait(60)
    closing = threading.Thread(target=scheduler.close)
    closing.start()
    go_on.set()
    closing.join(60)
    assert not closing.is_alive()
    outcomes = [future.result(timeout=10) for future in futures]
    assert any(isinstance(each.error, ClosedError) for each in outcomes)


def test_what_does_not_fit_is_opened_in_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    class Small(Resident):
        def __init__(self, models: Any, batch: BatchSettings, card: Any) -> None:
            tried.append((batch.detect, batch.embed))
            if batch.detect > 2:
                raise torch.OutOfMemoryError("CUDA out of memory")
            super().__init__(models, batch, card)

    monkeypatch.setattr(resident_module, "Resident", Small)
    made = open_resident(loaded(), BatchSettings(detect=8, embed=16), None)
    assert tried == [(8, 16), (4, 8), (2, 4)]
    assert "2 pictures" in made.plan()
    monkeypatch.setattr(Small, "__init__", lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError("no")))
    with pytest.raises(OutOfMemoryError, match="no room"):
        open_resident(loaded(), BatchSettings(detect=8, embed=16), None)


@pytest.mark.slow
@pytest.mark.parametrize("detector", ["scrfd_500m", "retinaface_mobile0.25"])
def test_real_networks_agree_on_real_photos(detector: str, data_dir: Path, tmp_path: Path, home: Path) -> None:
    import contextlib

    from data_packs import write_pack
    from facefleet.config import RuntimeSettings, Settings
    from facefleet.models.load import load_models
    from tests.unit.pipeline.device.parts import device_scheduler as on_device
    from tests.unit.pipeline.device.parts import host_scheduler as on_host

    pack = write_pack(tmp_path, data_dir, detector, "mobilefacenet")
    found = [p for name in ("identity", "detection") for p in (data_dir / name).rglob("*.jp*g")]
    paths = sorted(found)[::12]
    runtime = RuntimeSettings(backend="torch", devices="cpu", precision="fp32")
    with contextlib.ExitStack() as stack:
        models = load_models(str(pack), Settings(home=str(home), pack=str(pack), runtime=runtime), stack)
        expected = answers(on_host(models, dimension=128), [Photo(str(path), False) for path in paths])
        got = answers(on_device(models, dimension=128), [Photo(str(path), False) for path in paths])
    for path, one, other in zip(paths, expected, got, strict=True):
        faces, reference = other.unwrap(), one.unwrap()
        assert len(faces) == len(reference), path
        for box, vector in zip(reference.boxes, reference.embeddings, strict=True):
            nearest = int(np.abs(faces.boxes - box).max(axis=1).argmin())
            assert np.abs(faces.boxes[nearest] - box).max() <= 0.5, path
            assert float(faces.embeddings[nearest] @ vector) >= 0.999, path
