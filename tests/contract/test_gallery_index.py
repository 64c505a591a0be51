"""One suite over galleries with every kind of index: bad input is refused with a type and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from facefleet.errors import ConfigError, InvalidEmbeddingError, PersonNotFoundError, PipelineMismatchError
from facefleet.gallery import Gallery, NewSample
from facefleet.gallery.check import check_gallery
from tests.contract.test_index import KINDS, usable
from tests.unit.gallery.fake import DIMENSION, IDENTITY, OTHER, filled, unit_vectors

F = IDENTITY.fingerprint


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> dict[str, Any]:
    index, options = usable(request.param)
    return {"index": index, "options": options}


@pytest.fixture
def people(tmp_path: Path, kind: dict[str, Any]) -> Iterator[tuple[Gallery, np.ndarray, list[int]]]:
    gallery, vectors, ids = filled(tmp_path / "g", **kind)
    with gallery:
        yield gallery, vectors, ids


def named(gallery: Gallery, vectors: np.ndarray, **options: Any) -> list[list[int]]:
    answers = gallery.identify(vectors, fingerprint=F, **options)
    return [[match.person for match in answer] for answer in answers]


def test_bad_input_is_refused_and_changes_nothing(people: tuple[Gallery, np.ndarray, list[int]]) -> None:
    gallery, vectors, ids = people
    good = vectors[0, 0]
    broken = good.copy()
    broken[3] = np.nan
    for bad in (broken, np.where(np.isnan(broken), np.inf, broken), np.zeros(DIMENSION), good[:-1], np.ones((2, 2, 2))):
        with pytest.raises(InvalidEmbeddingError):
            gallery.identify(bad, fingerprint=F)
        with pytest.raises(InvalidEmbeddingError):
            gallery.verify(bad, ids[0], fingerprint=F)
        with pytest.raises(InvalidEmbeddingError):
            gallery.enrol("bad", [NewSample(good), NewSample(bad)], fingerprint=F)
    for refused in (
        lambda: gallery.identify(good, fingerprint=OTHER.fingerprint),
        lambda: gallery.verify(good, ids[0], fingerprint=OTHER.fingerprint),
        lambda: gallery.enrol("bad", [NewSample(good)], fingerprint=OTHER.fingerprint),
    ):
        with pytest.raises(PipelineMismatchError, match=r"reembed|model"):
            refused()
    for k in (0, -1, 10_001):
        with pytest.raises(ConfigError):
            gallery.identify(good, fingerprint=F, k=k)
    assert gallery.counts() == (10, 20)
    assert named(gallery, vectors[:, 0]) == [[person] for person in ids]
    assert check_gallery(gallery).problems == ()


def test_an_empty_gallery(tmp_path: Path, kind: dict[str, Any]) -> None:
    with Gallery.create(tmp_path / "g", IDENTITY, **kind) as gallery:
        for scoring in ("best", "mean"):
            assert named(gallery, unit_vectors(3), k=4, threshold=-1, scoring=scoring) == [[], [], []]
        with pytest.raises(PersonNotFoundError):
            gallery.verify(unit_vectors(1)[0], "anna", fingerprint=F)
        person, _ = gallery.enrol("anna", [NewSample(unit_vectors(1)[0])], fingerprint=F)
        assert named(gallery, unit_vectors(1)) == [[person]]
        gallery.erase(person)
        assert named(gallery, unit_vectors(1), threshold=-1) == [[]]


def test_k_larger_than_the_gallery(people: tuple[Gallery, np.ndarray, list[int]]) -> None:
    gallery, vectors, ids = people
    for scoring in ("best", "mean"):
        (answer,) = gallery.identify(vectors[4, 0], fingerprint=F, k=10_000, threshold=-1, scoring=scoring)
        assert sorted(match.person for match in answer) == sorted(ids)
        assert answer[0].person == ids[4]
        assert [match.score for match in answer] == sorted((match.score for match in answer), reverse=True)


def test_an_erased_person_is_nobody(people: tuple[Gallery, np.ndarray, list[int]], tmp_path: Path) -> None:
    gallery, vectors, ids = people
    assert named(gallery, vectors[2, 0]) == [[ids[2]]]
    assert gallery.erase(ids[2]).samples == 2
    left = [person for person in ids if person != ids[2]]
    for scoring in ("best", "mean"):
        assert sorted(named(gallery, vectors[2, 0], k=50, threshold=-1, scoring=scoring)[0]) == left
    for refused in (
        lambda: gallery.verify(vectors[2, 0], ids[2], fingerprint=F),
        lambda: gallery.erase(ids[2]),
        lambda: gallery.person("person 2"),
        lambda: gallery.enrol(ids[2], [NewSample(vectors[2, 0])], fingerprint=F),
    ):
        with pytest.raises(PersonNotFoundError):
            refused()
    again, _ = gallery.enrol("person 2", [NewSample(vectors[2, 0])], fingerprint=F)
    assert again not in ids, "an id is never given again"
    assert named(gallery, vectors[2, 0]) == [[again]]
    gallery.close()
    with Gallery.open(tmp_path / "g") as opened:
        assert named(opened, vectors[:, 0]) == [[again if person == ids[2] else person] for person in ids]


@pytest.mark.slow  # the contract of the index itself does the same without a record
def test_ten_thousand_deletes(tmp_path: Path, kind: dict[str, Any]) -> None:
    vectors = unit_vectors(10_500, seed=3)
    probes = vectors[100::500]
    with Gallery.create(tmp_path / "g", IDENTITY, **kind) as gallery:
        many, _ = gallery.enrol("many", [NewSample(vector) for vector in vectors[:10_000]], fingerprint=F)
        few, _ = gallery.enrol("few", [NewSample(vector) for vector in vectors[10_000:]], fingerprint=F)
        assert named(gallery, probes) == [[many]] * 20 + [[few]]
        assert gallery.erase(many).samples == 10_000
        assert gallery.counts() == (1, 500)
        answers = gallery.identify(probes, fingerprint=F, k=20, threshold=-1)
        assert [[match.person for match in answer] for answer in answers] == [[few]] * 21
        wanted = (probes.astype(np.float64) @ vectors[10_000:].astype(np.float64).T).max(axis=1)
        np.testing.assert_allclose([answer[0].score for answer in answers], np.minimum(wanted, 1), atol=2e-7)
