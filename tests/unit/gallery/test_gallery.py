"""A gallery as its callers see it: people, answers, refusals, history."""

from __future__ import annotations

import json
import random
import sqlite3
import threading
from pathlib import Path

import numpy as np
import pytest

from facefleet.errors import (
    ClosedError,
    ConfigError,
    GalleryCorruptError,
    GalleryError,
    GalleryExistsError,
    GalleryNotFoundError,
    InvalidEmbeddingError,
    PersonNotFoundError,
    PipelineMismatchError,
)
from facefleet.gallery import Gallery, NewSample, calibrate, galleries
from facefleet.gallery.check import check_gallery, statistics
from facefleet.gallery.database import FILE
from tests.unit.gallery.fake import DIMENSION, IDENTITY, OTHER, filled, unit_vectors

F = IDENTITY.fingerprint


class TestOpening:
    def test_contract(self, tmp_path: Path) -> None:
        with Gallery.create(tmp_path / "g", IDENTITY, keep_chips=True) as gallery:
            assert gallery.header.pipeline == IDENTITY
            assert gallery.header.metric == "cosine"
        with Gallery.open(tmp_path / "g") as again:
            assert again.header == gallery.header
            with pytest.raises(PipelineMismatchError, match="reembed"):
                again.identify(unit_vectors(1), fingerprint=OTHER.fingerprint)
            with pytest.raises(PipelineMismatchError):
                again.enrol("x", [NewSample(unit_vectors(1)[0])], fingerprint="")
            with pytest.raises(PipelineMismatchError):
                again.verify(unit_vectors(1), "x", fingerprint="")

    def test_what_is_there_is_kept(self, tmp_path: Path) -> None:
        filled(tmp_path / "g")[0].close()
        with pytest.raises(GalleryExistsError):
            Gallery.create(tmp_path / "g", IDENTITY)
        with pytest.raises(GalleryNotFoundError):
            Gallery.open(tmp_path)
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "notes.txt").write_text("mine")
        with pytest.raises(GalleryExistsError):
            Gallery.create(tmp_path / "other", IDENTITY)

    def test_options(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="flat"):
            Gallery.create(tmp_path / "g", IDENTITY, index="annoy")
        with pytest.raises(ConfigError, match="unknown option"):
            Gallery.create(tmp_path / "g", IDENTITY, options={"nlist": 3})
        Gallery.create(tmp_path / "g", IDENTITY).close()

    def test_several_in_a_tree(self, tmp_path: Path) -> None:
        for name in ("a", "b/c"):
            Gallery.create(tmp_path / name, IDENTITY).close()
        assert galleries(tmp_path) == [tmp_path / "a", tmp_path / "b" / "c"]

    def test_closed(self, tmp_path: Path) -> None:
        gallery, vectors, _ = filled(tmp_path / "g")
        gallery.close()
        with pytest.raises(ClosedError):
            gallery.identify(vectors[0], fingerprint=F)


class TestSearching:
    def test_identify(self, tmp_path: Path) -> None:
        gallery, vectors, ids = filled(tmp_path / "g", people=20, samples=3)
        with gallery:
            answers = gallery.identify(vectors[:, 1], fingerprint=F, k=3, threshold=-1)
            assert [answer[0].person for answer in answers] == ids
            assert all(answer[0].score == pytest.approx(1, abs=1e-6) for answer in answers)
            assert all(len({match.person for match in answer}) == 3 for answer in answers), "people, not samples"
            assert answers[4][0].name == "person 4"
            assert answers[4][0].metadata == {"team": "red"}
            assert gallery.identify(unit_vectors(1, seed=77), fingerprint=F, threshold=0.9) == [[]]

    def test_many_samples_of_one_person_hide_nobody(self, tmp_path: Path) -> None:
        with Gallery.create(tmp_path / "g", IDENTITY) as gallery:
            near = unit_vectors(1)[0]
            crowd = [NewSample(near + 0.01 * other) for other in unit_vectors(300, seed=1)]
            first, _ = gallery.enrol("often", crowd, fingerprint=F)
            second, _ = gallery.enrol("once", [NewSample(near + 0.6 * unit_vectors(1, seed=2)[0])], fingerprint=F)
            third, _ = gallery.enrol("far", [NewSample(-near)], fingerprint=F)
            answer = gallery.identify(near, fingerprint=F, k=3, threshold=-1)[0]
            assert [match.person for match in answer] == [first, second, third]

    def test_mean_scoring(self, tmp_path: Path) -> None:
        gallery, vectors, ids = filled(tmp_path / "g", samples=3)
        with gallery:
            mean = vectors.sum(axis=1)
            mean /= np.linalg.norm(mean, axis=1, keepdims=True)
            answers = gallery.identify(vectors[:, 0], fingerprint=F, k=2, threshold=-1, scoring="mean")
            for number, answer in enumerate(answers):
                assert answer[0].person == ids[number]
                assert answer[0].score == pytest.approx(float(mean[number] @ vectors[number, 0]), abs=1e-6)
                assert answer[0].sample is None
            gallery.erase(ids[3])
            left = gallery.identify(vectors[3, 0], fingerprint=F, k=20, threshold=-1, scoring="mean")[0]
            assert ids[3] not in [match.person for match in left]
            assert len(left) == 9
            with pytest.raises(ConfigError, match="best, mean"):
                gallery.identify(vectors[0, 0], fingerprint=F, scoring="median")  # type: ignore[arg-type]

    @pytest.mark.parametrize("scoring", ["best", "mean"])
    def test_filter(self, tmp_path: Path, scoring: str) -> None:
        gallery, vectors, ids = filled(tmp_path / "g")
        with gallery:
            gallery.update(ids[0], {"team": "red", "office": {"floor": 3, "open": True}})

            def found(where: dict[str, object]) -> list[int]:
                answer = gallery.identify(
                    vectors[0, 0],
                    fingerprint=F,
                    k=50,
                    threshold=-1,
                    where=where,
                    scoring=scoring,  # type: ignore[arg-type]
                )
                return sorted(match.person for match in answer[0])

            assert found({"team": "blue"}) == ids[1::2]
            assert found({"team": ["blue", "red"]}) == ids
            assert found({"office.floor": 3}) == ids[:1]
            assert found({"office.open": True}) == ids[:1]
            assert found({"office.floor": None}) == ids[1:]
            assert found({"team": "red", "office.floor": 4}) == []
            assert found({"team": []}) == []
            assert found({'"; DROP TABLE people; --': "x"}) == []
            with pytest.raises(ConfigError):
                found({"team": {"a": 1}})

    def test_verify(self, tmp_path: Path) -> None:
        gallery, vectors, ids = filled(tmp_path / "g")
        with gallery:
            good = gallery.verify(vectors[2, 0], ids[2], fingerprint=F)
            assert good.same
            assert good.score == pytest.approx(1, abs=1e-6)
            assert (good.threshold, good.metric) == (0.5, "cosine")
            assert not gallery.verify(vectors[2, 0], "person 3", fingerprint=F, threshold=0.9).same
            mean = vectors[2].sum(axis=0)
            score = gallery.verify(vectors[2, 0], ids[2], fingerprint=F, scoring="mean").score
            assert score == pytest.approx(float(mean @ vectors[2, 0] / np.linalg.norm(mean)), abs=1e-6)
            with pytest.raises(PersonNotFoundError):
                gallery.verify(vectors[0, 0], 4711, fingerprint=F)
            empty, _ = gallery.enrol("nobody yet", [], fingerprint=F)
            with pytest.raises(PersonNotFoundError, match="no samples"):
                gallery.verify(vectors[0, 0], empty, fingerprint=F)

    @pytest.mark.parametrize(
        "query",
        [
            np.full(DIMENSION, np.nan),
            np.full(DIMENSION, np.inf),
            np.zeros(DIMENSION),
            np.ones(DIMENSION - 1),
            np.ones((1, 2, DIMENSION)),
            ["a"] * DIMENSION,
        ],
        ids=["nan", "inf", "zero", "dimension", "shape", "text"],
    )
    def test_bad_vectors(self, tmp_path: Path, query: object) -> None:
        gallery, vectors, _ = filled(tmp_path / "g", people=3)
        with gallery:
            before = gallery.counts()
            with pytest.raises(InvalidEmbeddingError):
                gallery.identify(query, fingerprint=F)  # type: ignore[arg-type]
            with pytest.raises(InvalidEmbeddingError):
                gallery.verify(query, 1, fingerprint=F)  # type: ignore[arg-type]
            with pytest.raises(InvalidEmbeddingError):
                gallery.enrol("x", [NewSample(vectors[0, 0]), NewSample(query)], fingerprint=F)  # type: ignore[arg-type]
            assert gallery.counts() == before, "all or none"
            assert gallery.identify(vectors[0, 0] * 1000, fingerprint=F)[0][0].score <= 1

    def test_limits(self, tmp_path: Path) -> None:
        with Gallery.create(tmp_path / "g", IDENTITY) as gallery:
            query = unit_vectors(2)
            assert gallery.identify(query, fingerprint=F, k=100) == [[], []], "an empty gallery knows nobody"
            for k in (0, -1, 10**9):
                with pytest.raises(ConfigError):
                    gallery.identify(query, fingerprint=F, k=k)
            with pytest.raises(ConfigError):
                gallery.identify(query, fingerprint=F, threshold=float("nan"))
            assert gallery.identify(np.empty((0, DIMENSION)), fingerprint=F) == []


class TestChanging:
    def test_names_are_data(self, tmp_path: Path) -> None:
        """Fault 48: a name is never a path, and two people may share one."""
        with Gallery.create(tmp_path / "g", IDENTITY) as gallery:
            before = sorted(path.name for path in tmp_path.rglob("*"))
            for name in ("..", "/etc/passwd", "a\u0301'; DROP TABLE people; --", "\u6c34"):
                person, _ = gallery.enrol(name, [NewSample(unit_vectors(1)[0])], fingerprint=F)
                assert gallery.person(person).name == name
                gallery.erase(person)
            assert {path.name for path in tmp_path.rglob("*")} - set(before) <= {".snapshots.lock"}
            for name in ("", "  ", "a\nb", "\x00", "x" * 2000, "\ud800"):
                with pytest.raises(GalleryError):
                    gallery.enrol(name, [], fingerprint=F)
            one, _ = gallery.enrol("Anna", [], fingerprint=F)
            two, _ = gallery.enrol("Anna", [], fingerprint=F, new=True)
            assert one != two
            with pytest.raises(PersonNotFoundError, match=f"{one}, {two}"):
                gallery.enrol("Anna", [], fingerprint=F)

    def test_metadata(self, tmp_path: Path) -> None:
        with Gallery.create(tmp_path / "g", IDENTITY) as gallery:
            person, _ = gallery.enrol("a", [], fingerprint=F, metadata={"k": [1, {"x": None}]})
            assert gallery.person(person).metadata == {"k": [1, {"x": None}]}
            for bad in ({"x": float("nan")}, {"x": object()}):
                with pytest.raises(GalleryError, match="JSON"):
                    gallery.update(person, bad)

    def test_ids_are_never_given_again(self, tmp_path: Path) -> None:
        """Fault 42."""
        gallery, vectors, ids = filled(tmp_path / "g", people=3)
        with gallery:
            last = max(sample.id for sample in gallery.samples(ids[-1]))
            gallery.erase(ids[-1])
        with Gallery.open(tmp_path / "g") as gallery:
            person, samples = gallery.enrol("new", [NewSample(vectors[0, 0])], fingerprint=F)
            assert person > ids[-1]
            assert samples[0] > last

    def test_merge_split_rename_remove(self, tmp_path: Path) -> None:
        gallery, vectors, ids = filled(tmp_path / "g")
        with gallery:
            assert gallery.merge(ids[0], ids[1]) == 2
            assert gallery.identify(vectors[1, 0], fingerprint=F)[0][0].person == ids[0]
            with pytest.raises(PersonNotFoundError):
                gallery.person(ids[1])
            with pytest.raises(GalleryError):
                gallery.merge(ids[0], ids[0])
            moved = [sample.id for sample in gallery.samples(ids[0])][2:]
            fresh = gallery.split(ids[0], moved, "again")
            assert gallery.identify(vectors[1, 0], fingerprint=F)[0][0].person == fresh
            assert gallery.person(ids[0]).samples == gallery.person(fresh).samples == 2
            gallery.rename(fresh, "other")
            assert gallery.identify(vectors[1, 0], fingerprint=F)[0][0].name == "other"
            gallery.remove_samples(fresh, moved[:1])
            assert gallery.person(fresh).samples == 1
            for bad in ([], [4711], moved[:1]):
                with pytest.raises(PersonNotFoundError):
                    gallery.remove_samples(fresh, bad)
            assert check_gallery(gallery).problems == ()

    def test_history(self, tmp_path: Path) -> None:
        gallery, _, ids = filled(tmp_path / "g", people=2, actor="anna")
        with gallery:
            gallery.rename(ids[0], "secret name")
            gallery.erase(ids[0])
            changes = gallery.history(ids[0])
            assert [change.action for change in changes] == ["erase", "rename", "enrol"]
            assert {change.who for change in changes} == {"anna"}
            assert changes[0].samples == 2
            assert "secret" not in json.dumps([dict(change.detail) for change in gallery.history()])
            assert len(gallery.history(limit=2)) == 2
            assert gallery.history()[-1].action == "create"

    def test_another_process_and_thread_see_it_at_once(self, tmp_path: Path) -> None:
        gallery, vectors, ids = filled(tmp_path / "g")
        with gallery, Gallery.open(tmp_path / "g") as other:
            assert other.identify(vectors[0, 0], fingerprint=F)[0][0].person == ids[0]
            fresh = unit_vectors(1, seed=99)
            person, _ = gallery.enrol("new", [NewSample(fresh[0])], fingerprint=F)
            assert other.identify(fresh, fingerprint=F)[0][0].person == person
            found: list[object] = []
            thread = threading.Thread(target=lambda: found.extend(other.identify(fresh, fingerprint=F)[0]))
            thread.start()
            thread.join()
            assert len(found) == 1
            other.erase(person)
            assert gallery.identify(fresh, fingerprint=F, threshold=0.9) == [[]]

    def test_threads_that_ended_leave_no_connection(self, tmp_path: Path) -> None:
        gallery, vectors, ids = filled(tmp_path / "g", people=3)
        with gallery:
            for _ in range(20):
                thread = threading.Thread(target=gallery.identify, args=(vectors[0],), kwargs={"fingerprint": F})
                thread.start()
                thread.join()
            assert len(gallery.database._connections) <= 3
            assert gallery.identify(vectors[0, 0], fingerprint=F)[0][0].person == ids[0]

    def test_statistics(self, tmp_path: Path) -> None:
        gallery, _, _ = filled(tmp_path / "g", people=4)
        with gallery:
            facts = statistics(gallery)
            assert (facts["people"], facts["samples"], facts["dimension"]) == (4, 8, DIMENSION)
            assert facts["metric"] == "cosine"


class TestCalibration:
    def test_thresholds_and_probabilities(self, tmp_path: Path) -> None:
        gallery, vectors, _ = filled(tmp_path / "g", people=120, samples=3)
        with gallery:
            people = np.repeat(np.arange(120), 3)
            found = calibrate(vectors.reshape(-1, DIMENSION), people)
            scores = vectors.reshape(-1, DIMENSION) @ vectors.reshape(-1, DIMENSION).T
            upper = np.triu(np.ones(scores.shape, bool), 1)
            different = scores[upper & (people[:, None] != people)]
            assert found.impostors == len(different)
            assert found.genuine == 120 * 3
            for row in found.rows:
                if row.far * len(different) < 1:
                    assert row.threshold is None
                else:
                    assert row.threshold is not None
                    share = (different.astype(np.float32) >= row.threshold).mean()
                    assert row.far * 0.5 <= share <= row.far + 1.5 / len(different), "but for the last bits of one pair"
            low, high = found.probability(0.0), found.probability(0.95)
            assert low is not None
            assert high is not None
            assert low < 0.05 < 0.95 < high
            gallery.remember_calibration(found)
            match = gallery.identify(vectors[0, 0], fingerprint=F)[0][0]
            assert match.probability == pytest.approx(found.probability(match.score))
            assert gallery.verify(vectors[0, 0], match.person, fingerprint=F).probability is not None

    def test_one_person_is_not_enough(self) -> None:
        with pytest.raises(GalleryError, match="two people"):
            calibrate(unit_vectors(5), np.zeros(5, np.int64))


class TestDamage:
    def flip(self, gallery: Gallery, sql: str, *parameters: object) -> None:
        with sqlite3.connect(gallery.database.path) as db:
            db.execute(sql, parameters)
        db.close()

    @pytest.mark.parametrize(
        "sql",
        [
            "UPDATE samples SET embedding = CAST(substr(embedding, 1, 127) || x'00' AS BLOB) WHERE id = 3",
            "UPDATE samples SET person = 1 WHERE id = 3",
        ],
    )
    def test_a_changed_row_never_becomes_an_answer(self, tmp_path: Path, sql: str) -> None:
        """Fault 41: not another person's record with score 1.0."""
        gallery, vectors, _ = filled(tmp_path / "g")
        self.flip(gallery, sql)
        with gallery:
            with pytest.raises(GalleryCorruptError, match="sample 3"):
                gallery.identify(vectors[1, 0], fingerprint=F)
            assert any("sample 3" in problem for problem in check_gallery(gallery).problems)

    def test_a_changed_name(self, tmp_path: Path) -> None:
        gallery, vectors, ids = filled(tmp_path / "g")
        self.flip(gallery, "UPDATE people SET name = 'somebody else' WHERE id = ?", ids[2])
        with gallery, pytest.raises(GalleryCorruptError, match=f"person {ids[2]}"):
            gallery.identify(vectors[2, 0], fingerprint=F)

    def test_lost_rows(self, tmp_path: Path) -> None:
        gallery, _, ids = filled(tmp_path / "g")
        self.flip(gallery, "DELETE FROM people WHERE id = ?", ids[2])
        with gallery:
            assert any("nobody" in problem for problem in check_gallery(gallery).problems)

    def test_any_flipped_bit(self, tmp_path: Path) -> None:
        """Right answers or a typed error, wherever the file of the record is damaged."""
        gallery, vectors, ids = filled(tmp_path / "g", people=40)
        gallery.close()
        data = (tmp_path / "g" / FILE).read_bytes()
        generator = random.Random(3)
        refused = 0
        for turn in range(250):
            broken = bytearray(data)
            broken[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
            folder = tmp_path / f"{turn}"
            folder.mkdir()
            (folder / FILE).write_bytes(broken)
            try:
                with Gallery.open(folder) as damaged:
                    answers = damaged.identify(vectors[:, 0], fingerprint=F)
            except (GalleryCorruptError, PipelineMismatchError):
                refused += 1
                continue
            assert [(answer[0].person, answer[0].name) for answer in answers] == [
                (person, f"person {number}") for number, person in enumerate(ids)
            ]
        assert refused > 20

    def test_not_a_database(self, tmp_path: Path) -> None:
        (tmp_path / "g").mkdir()
        (tmp_path / "g" / "gallery.sqlite").write_bytes(b"nonsense " * 1000)
        with pytest.raises(GalleryCorruptError):
            Gallery.open(tmp_path / "g")

    @pytest.mark.parametrize("change", ["format", "metric", "uuid", "pipeline"])
    def test_header(self, tmp_path: Path, change: str) -> None:
        gallery, _, _ = filled(tmp_path / "g")
        self.flip(gallery, "UPDATE meta SET value = 'x' WHERE key = ?", change)
        gallery.close()
        with pytest.raises(GalleryCorruptError):
            Gallery.open(tmp_path / "g")
