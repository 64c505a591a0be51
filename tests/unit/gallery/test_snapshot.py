"""Snapshots: every damaged byte is noticed, and only the record says what is true."""

from __future__ import annotations

import importlib.util
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest

from facefleet.errors import GalleryCorruptError
from facefleet.gallery import Gallery, NewSample, view
from facefleet.gallery.index.layered import Base
from facefleet.gallery.index.registry import segment_type
from facefleet.gallery.index.snapshot import Stamp, read_snapshot, write_snapshot
from tests.conftest import skip_without
from tests.unit.gallery.fake import DIMENSION, IDENTITY, filled, unit_vectors

F = IDENTITY.fingerprint
STAMP = Stamp("0" * 32, 5, 77, F)


@pytest.fixture(params=["flat", "faiss"])
def written(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str, Base]:
    kind = request.param
    if kind == "faiss" and importlib.util.find_spec("faiss") is None:
        skip_without("faiss", "faiss is not installed")
    vectors = unit_vectors(9)
    base = Base(np.arange(9) * 2, vectors, segment_type(kind).build(vectors, {}))
    path = tmp_path / "x.snapshot"
    write_snapshot(path, STAMP, base, np.arange(9) + 100, {})
    return path, kind, base


def test_round_trip(written: tuple[Path, str, Base]) -> None:
    path, kind, base = written
    stamp, again, people = read_snapshot(path, segment_type(kind), {})
    assert stamp == STAMP
    np.testing.assert_array_equal(again.ids, base.ids)
    np.testing.assert_array_equal(again.vectors, base.vectors)
    np.testing.assert_array_equal(people, np.arange(9) + 100)
    assert again.segment is not None
    _, rows = again.segment.search(base.vectors, 1, None)
    assert rows[:, 0].tolist() == list(range(9))
    assert list(path.parent.iterdir()) == [path], "no temporary file is left"


def test_every_damaged_byte_is_noticed(written: tuple[Path, str, Base]) -> None:
    path, kind, _ = written
    data = path.read_bytes()
    for place in range(len(data)):
        broken = bytearray(data)
        broken[place] ^= 1 << (place % 8)
        path.write_bytes(broken)
        with pytest.raises(GalleryCorruptError):
            read_snapshot(path, segment_type(kind), {})
    for length in (0, 1, 47, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(GalleryCorruptError):
            read_snapshot(path, segment_type(kind), {})
    path.write_bytes(data + b"x")
    with pytest.raises(GalleryCorruptError):
        read_snapshot(path, segment_type(kind), {})


def test_another_kind_is_refused(written: tuple[Path, str, Base]) -> None:
    path, kind, _ = written
    with pytest.raises(GalleryCorruptError, match="of index"):
        read_snapshot(path, segment_type("flat"), {} if kind == "faiss" else {"type": "flat"})


class TestOfAGallery:
    @pytest.fixture(autouse=True)
    def _small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(view, "_SNAPSHOT_ROWS", 1)

    def snapshots(self, folder: Path) -> list[Path]:
        return sorted(folder.glob("*.snapshot"))

    def test_what_came_after_it_counts(self, tmp_path: Path) -> None:
        gallery, vectors, ids = filled(tmp_path / "g")
        with gallery:
            gallery.view.rebuild()
            assert len(self.snapshots(gallery.folder)) == 1
            fresh = unit_vectors(1, seed=50)
            person, _ = gallery.enrol("later", [NewSample(fresh[0])], fingerprint=F)
            gallery.merge(ids[0], ids[1])
        with Gallery.open(tmp_path / "g") as again:
            assert again.identify(fresh, fingerprint=F)[0][0].person == person
            assert again.identify(vectors[1, 0], fingerprint=F)[0][0].person == ids[0]
            assert [answer[0].person for answer in again.identify(vectors[2:, 0], fingerprint=F)] == ids[2:]
            assert again.view.index is not None
            assert again.view.index.base.vectors.flags.writeable is False  # type: ignore[attr-defined]

    def test_a_damaged_one_is_made_anew(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        gallery, vectors, ids = filled(tmp_path / "g")
        with gallery:
            gallery.view.rebuild()
        path = self.snapshots(tmp_path / "g")[0]
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        with Gallery.open(tmp_path / "g") as again, caplog.at_level(logging.WARNING):
            assert [a[0].person for a in again.identify(vectors[:, 0], fingerprint=F)] == ids
            assert "digest differs" in caplog.text
            read_snapshot(self.snapshots(again.folder)[0], segment_type("flat"), {})

    def test_one_of_another_life_is_not_used(self, tmp_path: Path) -> None:
        """A backup is put back and goes another way: equal revision numbers, other rows."""
        gallery, vectors, ids = filled(tmp_path / "g", people=5)
        gallery.close()
        shutil.copytree(tmp_path / "g", tmp_path / "backup")
        with Gallery.open(tmp_path / "g") as first:
            first.enrol("first life", [NewSample(unit_vectors(1, seed=60)[0])], fingerprint=F)
            first.view.rebuild()
        for path in (tmp_path / "backup").iterdir():
            shutil.copy(path, tmp_path / "g" / path.name)
        with Gallery.open(tmp_path / "g") as second:
            other = unit_vectors(1, seed=61)
            person, _ = second.enrol("second life", [NewSample(other[0])], fingerprint=F)
            assert second.identify(other, fingerprint=F)[0][0].person == person
            assert second.identify(unit_vectors(1, seed=60), fingerprint=F, threshold=0.9) == [[]]
            assert [a[0].person for a in second.identify(vectors[:, 0], fingerprint=F)] == ids

    def test_one_that_counts_wrong_is_not_used(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        gallery, vectors, ids = filled(tmp_path / "g")
        with gallery:
            gallery.view.rebuild()
            path = self.snapshots(gallery.folder)[0]
            stamp, base, people = read_snapshot(path, segment_type("flat"), {})
            wrong = Base(base.ids[1:], base.vectors[1:], segment_type("flat").build(base.vectors[1:], {}))
            write_snapshot(path, stamp, wrong, people[1:], {})
        with Gallery.open(tmp_path / "g") as again, caplog.at_level(logging.WARNING):
            assert again.identify(vectors[0, 0], fingerprint=F)[0][0].person == ids[0]
            assert "made anew" in caplog.text

    def test_old_ones_are_removed(self, tmp_path: Path) -> None:
        gallery, vectors, _ = filled(tmp_path / "g")
        with gallery:
            for number in range(3):
                gallery.enrol(f"more {number}", [NewSample(vectors[0, 0])], fingerprint=F)
                gallery.view.rebuild()
            assert len(self.snapshots(gallery.folder)) == 1

    def test_a_rebuild_in_the_background(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from facefleet.gallery.index import layered

        monkeypatch.setattr(layered, "_LEAST_REBUILD", 5)
        gallery, _, _ = filled(tmp_path / "g")
        with gallery:
            fresh = unit_vectors(40, seed=70)
            for number, vector in enumerate(fresh):
                person, _ = gallery.enrol(f"n{number}", [NewSample(vector)], fingerprint=F)
                assert gallery.identify(vector, fingerprint=F)[0][0].person == person
            gallery.view.wait()
            assert len(gallery.view.index.base.ids) > 20  # type: ignore[union-attr]
            answers = gallery.identify(fresh, fingerprint=F)
            assert [answer[0].name for answer in answers] == [f"n{number}" for number in range(40)]


assert DIMENSION == 32
