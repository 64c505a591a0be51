"""Erasing, exporting, importing, enrolling pictures, and moving to another model."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import numpy as np
import pytest

from facefleet.errors import EraseIncompleteError, ExchangeError, GalleryError, PipelineMismatchError
from facefleet.gallery import Gallery, NewSample, view
from facefleet.gallery.check import check_gallery
from facefleet.gallery.enrol import EnrolItem, EnrolResult, QualityGate, enrol_pictures
from facefleet.gallery.erase import PENDING, scan
from facefleet.gallery.exchange import export_gallery, import_gallery, read_identity
from facefleet.gallery.reembed import reembed
from tests.unit.gallery.fake import IDENTITY, OTHER, PictureEngine, filled, unit_vectors, vector_of

F = IDENTITY.fingerprint


def contents(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


class TestErase:
    def test_nothing_is_left(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Fault 45: database, log, snapshots, and answers."""
        monkeypatch.setattr(view, "_SNAPSHOT_ROWS", 1)
        gallery, vectors, ids = filled(tmp_path / "g", people=30)
        with gallery:
            gallery.enrol("Johanna Findemich", [NewSample(vectors[5, 0], source="geheim.jpg")], fingerprint=F)
            person = gallery.person("Johanna Findemich").id
            gallery.erase(ids[5])
            gallery.view.rebuild()
            needle = gallery.samples(person)[0].embedding.tobytes()
            assert needle[:24] in contents(tmp_path / "g")
            result = gallery.erase(person)
            assert (result.person, result.samples, result.snapshots) == (person, 1, 1)
            assert result.files_scanned >= 1
            left = contents(tmp_path / "g")
            assert needle[:24] not in left
            assert b"Findemich" not in left
            assert b"geheim" not in left
            answer = gallery.identify(vectors[5, 0], fingerprint=F, k=40, threshold=-1)[0]
            assert {person, ids[5]}.isdisjoint(match.person for match in answer)
            assert len(answer) == 29
            assert check_gallery(gallery).problems == ()

    def test_the_same_picture_of_somebody_else_stays(self, tmp_path: Path) -> None:
        gallery, vectors, ids = filled(tmp_path / "g", people=3)
        with gallery:
            twin, _ = gallery.enrol("twin", [NewSample(vectors[0, 0])], fingerprint=F)
            gallery.erase(ids[0])
            assert gallery.identify(vectors[0, 0], fingerprint=F)[0][0].person == twin

    def test_the_scan_finds_what_is_left(self, tmp_path: Path) -> None:
        vector = unit_vectors(1)[0].tobytes()
        (tmp_path / "f").write_bytes(b"x" * 1000 + vector)
        with pytest.raises(EraseIncompleteError, match="still holds"):
            scan(tmp_path, [vector[:32]])
        assert scan(tmp_path, [b"\x01\x02" * 16]) == 1

    def test_a_reader_in_the_way(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from facefleet.gallery import erase

        gallery, vectors, ids = filled(tmp_path / "g", people=3)
        with gallery:
            needle = gallery.samples(ids[0])[0].embedding.tobytes()[:24]
            assert needle in contents(tmp_path / "g")
            reader = sqlite3.connect(gallery.database.path, isolation_level=None)
            reader.execute("BEGIN")
            reader.execute("SELECT COUNT(*) FROM samples").fetchone()
            with pytest.raises(EraseIncompleteError):
                erase.erase_person(gallery.database, gallery.view, ids[0], "me", wait_s=0.1)
            answer = gallery.identify(vectors[0, 0], fingerprint=F, k=9, threshold=-1)[0]
            assert ids[0] not in [match.person for match in answer], "erased for every answer nonetheless"
        with Gallery.open(tmp_path / "g") as beside:  # the reader is in the way of the files only
            assert ids[0] not in [person.id for person in beside.people()]
        reader.close()
        with Gallery.open(tmp_path / "g") as again:
            with again.database.reading() as db:
                assert db.execute("SELECT COUNT(*) FROM meta WHERE key = ?", (PENDING,)).fetchone()[0] == 0
            assert needle not in contents(tmp_path / "g")


class TestExchange:
    def test_there_and_back(self, tmp_path: Path) -> None:
        gallery, vectors, ids = filled(tmp_path / "g")
        with gallery:
            gallery.enrol("no face yet", [], fingerprint=F, metadata={"a": [1]})
            assert export_gallery(gallery, tmp_path / "out" / "g.parquet") == (11, 20)
            before, samples = gallery.people(), gallery.samples(ids[3])
        uuid, identity = read_identity(tmp_path / "out" / "g.parquet")
        assert (uuid, identity) == (gallery.header.uuid, IDENTITY)
        with Gallery.create(tmp_path / "h", identity) as copy:
            result = import_gallery(copy, tmp_path / "out" / "g.parquet")
            assert (result.people, result.samples, result.kept_ids) == (11, 20, True)
            after = copy.people()
            assert [(p.id, p.name, p.metadata, p.samples) for p in after] == [
                (p.id, p.name, p.metadata, p.samples) for p in before
            ]
            np.testing.assert_array_equal(copy.samples(ids[3])[1].embedding, samples[1].embedding)
            assert copy.samples(ids[3])[1].source == samples[1].source
            assert [a[0].person for a in copy.identify(vectors[:, 1], fingerprint=F)] == ids
            assert check_gallery(copy).problems == ()

    def test_twice_is_once(self, tmp_path: Path) -> None:
        gallery, _, _ = filled(tmp_path / "g")
        other, _, _ = filled(tmp_path / "other", people=2)
        with gallery, other:
            export_gallery(gallery, tmp_path / "g.parquet")
            assert import_gallery(gallery, tmp_path / "g.parquet").known == 20
            first = import_gallery(other, tmp_path / "g.parquet")
            assert not first.kept_ids
            counts = other.counts()
            again = import_gallery(other, tmp_path / "g.parquet")
            assert (again.people, again.samples) == (0, 0)
            assert other.counts() == counts

    def test_the_erased_stay_erased(self, tmp_path: Path) -> None:
        gallery, vectors, ids = filled(tmp_path / "g")
        with gallery:
            export_gallery(gallery, tmp_path / "g.parquet")
            gallery.erase(ids[0])
            result = import_gallery(gallery, tmp_path / "g.parquet")
            assert (result.people, result.samples, result.erased) == (0, 0, 1)
            assert import_gallery(gallery, tmp_path / "g.parquet", restore_erased=True).samples == 2
            assert gallery.identify(vectors[0, 0], fingerprint=F)[0][0].person == ids[0]

    def test_refused(self, tmp_path: Path) -> None:
        gallery, _, _ = filled(tmp_path / "g")
        with gallery, Gallery.create(tmp_path / "o", OTHER) as other:
            export_gallery(gallery, tmp_path / "g.parquet")
            with pytest.raises(PipelineMismatchError):
                import_gallery(other, tmp_path / "g.parquet")
            (tmp_path / "x.parquet").write_bytes(b"PAR1 nonsense")
            for path in (tmp_path / "x.parquet", tmp_path / "nothing.parquet"):
                with pytest.raises(ExchangeError):
                    import_gallery(gallery, path)
            data = bytearray((tmp_path / "g.parquet").read_bytes())
            data[200:600] = bytes(400)
            (tmp_path / "broken.parquet").write_bytes(data)
            with Gallery.create(tmp_path / "fresh", IDENTITY) as fresh:
                with pytest.raises(ExchangeError):
                    import_gallery(fresh, tmp_path / "broken.parquet")
                assert fresh.counts() == (0, 0), "all or none"


class TestEnrol:
    def enrol(self, gallery: Gallery, pictures: dict[str, str], **options: object) -> dict[str, EnrolResult]:
        items = [EnrolItem(key.split("-")[0], key, text.encode()) for key, text in pictures.items()]
        results = enrol_pictures(gallery, PictureEngine(), items, **options)  # type: ignore[arg-type]
        return {result.key: result for result in results}

    def test_every_picture_has_its_answer(self, tmp_path: Path) -> None:
        with Gallery.create(tmp_path / "g", IDENTITY) as gallery:
            found = self.enrol(
                gallery,
                {
                    "anna-1": "anna",
                    "anna-2": "anna:n=2",
                    "anna-3": "anna",
                    "bert-1": "bert:size=20:blur=1",
                    "bert-2": "nobody",
                    "bert-3": "two",
                    "bert-4": "bad",
                    "bert-5": "bert:yaw=80",
                },
            )
            assert found["anna-1"].person == found["anna-2"].person is not None
            assert "the same picture" in found["anna-3"].reasons[0]
            assert [reason.split()[0] for reason in found["bert-1"].reasons] == ["size_px", "blur"]
            assert "no face" in found["bert-2"].reasons[0]
            assert "2 faces" in found["bert-3"].reasons[0]
            assert found["bert-4"].error is not None
            assert "yaw_deg" in found["bert-5"].reasons[0]
            assert [person.name for person in gallery.people()] == ["anna"]
            sample = gallery.samples("anna")[0]
            assert sample.source == "anna-1"
            assert sample.quality["size_px"] == 100
            assert sample.box == (10, 10, 110, 110)
            assert sample.chip_png is None
            relaxed = self.enrol(gallery, {"bert-3": "two"}, face="largest", gate=QualityGate(min_size_px=1))
            assert relaxed["bert-3"].sample is not None

    def test_warnings(self, tmp_path: Path) -> None:
        with Gallery.create(tmp_path / "g", IDENTITY) as gallery:
            self.enrol(gallery, {"anna-1": "anna"})
            person = gallery.person("anna").id
            found = self.enrol(gallery, {"bert-1": "anna", "anna-2": "carl", "dora-1": "dora", "emil-1": "dora:n=2"})
            assert any(f"enrolled as person {person}" in text for text in found["bert-1"].warnings)
            assert any("like person" in text and "anna" in text for text in found["bert-1"].warnings)
            assert any("unlike every other" in text for text in found["anna-2"].warnings)
            assert found["dora-1"].warnings == ()
            assert any("dora-1" in text for text in found["emil-1"].warnings)

    def test_another_pipeline(self, tmp_path: Path) -> None:
        with Gallery.create(tmp_path / "g", IDENTITY) as gallery, pytest.raises(PipelineMismatchError):
            list(enrol_pictures(gallery, PictureEngine(OTHER), [EnrolItem("a", "a", b"a")]))

    def test_a_folder_of_many(self, tmp_path: Path) -> None:
        with Gallery.create(tmp_path / "g", IDENTITY, keep_chips=True) as gallery:
            found = self.enrol(gallery, {f"p{i}-{j}": f"p{i}:j={j}" for i in range(50) for j in range(3)})
            assert all(result.sample for result in found.values())
            assert gallery.counts() == (50, 150)
            assert gallery.samples("p7")[0].chip_png is not None


class TestReembed:
    def gallery(self, tmp_path: Path, *, chips: bool) -> Gallery:
        gallery = Gallery.create(tmp_path / "g", IDENTITY, keep_chips=chips)
        items = []
        for number in range(90):
            path = tmp_path / f"{number}.txt"
            path.write_text(f"p{number}")
            items.append(EnrolItem(f"p{number}", str(path), str(path)))
        assert all(result.sample for result in enrol_pictures(gallery, PictureEngine(), items))
        return gallery

    @pytest.mark.parametrize("chips", [True, False])
    def test_moves(self, tmp_path: Path, chips: bool) -> None:
        engine = PictureEngine(OTHER)
        with self.gallery(tmp_path, chips=chips) as gallery, Gallery.open(tmp_path / "g") as second:
            ids = [person.id for person in gallery.people()]
            second.identify(unit_vectors(1), fingerprint=F)
            seen: list[tuple[int, int]] = []
            report = reembed(
                gallery, OTHER, engine if chips else None, engine, progress=lambda *state: seen.append(state)
            )
            assert report.finished
            assert report.done == 90
            assert seen[-1] == (90, 90)
            assert engine.pictures == (0 if chips else 90)
            for stale in (gallery, second):
                with pytest.raises(PipelineMismatchError, match="open it again"):
                    stale.identify(unit_vectors(1), fingerprint=F)
                with pytest.raises(PipelineMismatchError):
                    stale.enrol("x", [NewSample(unit_vectors(1)[0])], fingerprint=F)
        with Gallery.open(tmp_path / "g") as moved:
            assert moved.header.pipeline == OTHER
            queries = np.stack([vector_of(f"p{number}".encode(), 16) for number in range(90)])
            if chips:
                import hashlib

                queries = np.stack([vector_of(hashlib.sha256(f"p{n}".encode()).digest()[:8], 16) for n in range(90)])
            assert [a[0].person for a in moved.identify(queries, fingerprint=OTHER.fingerprint)] == ids
            assert check_gallery(moved).problems == ()

    def test_stopped_and_gone_on(self, tmp_path: Path) -> None:
        engine = PictureEngine(OTHER)
        with self.gallery(tmp_path, chips=False) as gallery:
            stop = threading.Event()
            report = reembed(gallery, OTHER, None, engine, progress=lambda *_: stop.set(), stop=stop)
            assert not report.finished
            assert 0 < report.done < 90
            assert gallery.identify(unit_vectors(1), fingerprint=F) is not None, "searches go on with the old model"
            assert reembed(gallery, OTHER, None, engine).finished
            assert engine.pictures == 90

    def test_what_is_gone(self, tmp_path: Path) -> None:
        engine = PictureEngine(OTHER)
        with self.gallery(tmp_path, chips=False) as gallery:
            (tmp_path / "3.txt").unlink()
            (tmp_path / "4.txt").write_text("somebody else")
            report = reembed(gallery, OTHER, None, engine)
            assert not report.finished
            assert len(report.failed) == 2
            assert any("not the picture" in reason for _, reason in report.failed)
            assert reembed(gallery, OTHER, None, engine, drop_failed=True).dropped == 2
        with Gallery.open(tmp_path / "g") as moved:
            assert moved.counts() == (90, 88)

    def test_refused(self, tmp_path: Path) -> None:
        with self.gallery(tmp_path, chips=False) as gallery:
            with pytest.raises(GalleryError, match="already"):
                reembed(gallery, IDENTITY, None, PictureEngine())
            with pytest.raises(GalleryError, match="not the pipeline"):
                reembed(gallery, OTHER, None, PictureEngine())
