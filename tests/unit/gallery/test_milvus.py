"""A gallery whose index is Milvus: the same answers, and what happens when it is away, behind, or somebody else's."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from facefleet.errors import SearchUnavailableError
from facefleet.gallery import Gallery, NewSample
from facefleet.gallery.check import check_gallery
from facefleet.gallery.index.milvus import MilvusIndex
from facefleet.gallery.reembed import reembed
from tests.conftest import skip_without
from tests.unit.gallery.fake import IDENTITY, OTHER, PictureEngine, filled, unit_vectors, vector_of

F = IDENTITY.fingerprint


@pytest.fixture(autouse=True)
def _installed() -> None:
    for library in ("pymilvus", "milvus_lite"):
        if importlib.util.find_spec(library) is None:
            skip_without("milvus", f"{library} is not installed")


def test_the_same_answers_as_others(tmp_path: Path) -> None:
    kinds = ["flat", "milvus"] + (["faiss"] if importlib.util.find_spec("faiss") else [])
    queries = unit_vectors(40, seed=20)
    answers = []
    for kind in kinds:
        gallery, vectors, ids = filled(tmp_path / kind, people=60, samples=3, index=kind)
        with gallery:
            gallery.erase(ids[7])
            gallery.merge(ids[8], ids[9])
            both = np.concatenate([queries, vectors[:, 0]])
            answers.append(
                [
                    gallery.identify(both, fingerprint=F, k=5, threshold=-1),
                    gallery.identify(both, fingerprint=F, k=3, threshold=0.3, where={"team": "red"}),
                    gallery.identify(both, fingerprint=F, k=3, threshold=-1, scoring="mean"),
                ]
            )
            assert check_gallery(gallery).problems == ()
    for other in answers[1:]:
        assert other == answers[0]


def test_opened_again(tmp_path: Path) -> None:
    gallery, vectors, ids = filled(tmp_path / "g", index="milvus")
    with gallery:
        gallery.identify(vectors[0, 0], fingerprint=F)
    assert json.loads((tmp_path / "g" / "milvus.json").read_text())["revision"] > 0
    with Gallery.open(tmp_path / "g") as again:
        person, _ = again.enrol("later", [NewSample(unit_vectors(1, seed=30)[0])], fingerprint=F)
        assert again.identify(unit_vectors(1, seed=30), fingerprint=F)[0][0].person == person
        assert [answer[0].person for answer in again.identify(vectors[:, 0], fingerprint=F)] == ids


def test_what_it_lost_is_filled_in(tmp_path: Path) -> None:
    gallery, vectors, ids = filled(tmp_path / "g", index="milvus")
    with gallery:
        gallery.identify(vectors[0, 0], fingerprint=F)
        index = gallery.view.index
        assert index is not None
        index.apply(np.empty(0, np.int64), vectors[0, :0], np.arange(1, 9))  # behind the record's back
    with Gallery.open(tmp_path / "g") as again:
        assert [answer[0].person for answer in again.identify(vectors[:, 0], fingerprint=F)] == ids


def test_a_server_that_is_away(tmp_path: Path) -> None:
    options = {"uri": "http://127.0.0.1:9", "timeout_s": 0.3}
    with Gallery.create(tmp_path / "g", IDENTITY, index="milvus", options=options) as gallery:
        person, samples = gallery.enrol("anna", [NewSample(unit_vectors(1)[0])], fingerprint=F)
        for _ in range(2):
            with pytest.raises(SearchUnavailableError, match=r"127\.0\.0\.1:9") as caught:
                gallery.identify(unit_vectors(1), fingerprint=F)
            assert caught.value.retryable
            assert "nothing is lost" in caught.value.hint
        assert gallery.person("anna").id == person
        assert [sample.id for sample in gallery.samples(person)] == samples
        assert gallery.verify(unit_vectors(1)[0], person, fingerprint=F).same, "1:1 needs no index"


def test_erased_there_too(tmp_path: Path) -> None:
    gallery, vectors, ids = filled(tmp_path / "g", index="milvus")
    with gallery:
        gallery.identify(vectors[0, 0], fingerprint=F)
        assert gallery.erase(ids[0]).samples == 2
        answer = gallery.identify(vectors[0, 0], fingerprint=F, k=50, threshold=-1)[0]
        assert ids[0] not in [match.person for match in answer]
        assert len(answer) == 9
        index = gallery.view.index
        assert index is not None
        assert len(index) == 18


def test_another_process_has_it_open(tmp_path: Path) -> None:
    gallery, vectors, _ = filled(tmp_path / "g", index="milvus")
    with gallery:
        gallery.identify(vectors[0, 0], fingerprint=F)
        code = (
            "import sys, numpy as np\n"
            "from facefleet.gallery import Gallery\n"
            "from facefleet.errors import SearchUnavailableError\n"
            "gallery = Gallery.open(sys.argv[1])\n"
            "print(len(gallery))\n"
            f"try: gallery.identify(np.ones({IDENTITY.dimension}), fingerprint='{F}')\n"
            "except SearchUnavailableError as error: print(error)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "g")], capture_output=True, text=True, check=False
        )
    assert done.stdout.splitlines()[0] == "10", done.stderr
    assert "another process has it open" in done.stdout


def test_moved_to_another_pack(tmp_path: Path) -> None:
    """What the former pack made goes from the server, too."""
    from pymilvus import MilvusClient

    (tmp_path / "anna.txt").write_text("anna")
    engine = PictureEngine(OTHER)
    with Gallery.create(tmp_path / "g", IDENTITY, index="milvus") as gallery:
        anna, _ = gallery.enrol(
            "anna", [NewSample(unit_vectors(1)[0], source=str(tmp_path / "anna.txt"))], fingerprint=F
        )
        assert gallery.identify(unit_vectors(1), fingerprint=F)[0][0].person == anna
        assert reembed(gallery, OTHER, None, engine).finished
    with Gallery.open(tmp_path / "g") as moved:
        vector = vector_of(b"anna", OTHER.dimension)
        assert moved.identify(vector, fingerprint=OTHER.fingerprint)[0][0].person == anna
    client = MilvusClient(str(tmp_path / "g" / "milvus.db"))
    assert [name[-12:] for name in client.list_collections()] == [OTHER.fingerprint[:12]]
    client.close()


def test_erased_while_the_server_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The person is nobody at once; the server is cleaned when the gallery is next opened."""
    gallery, vectors, ids = filled(tmp_path / "g", index="milvus")
    with gallery:
        gallery.identify(vectors[0, 0], fingerprint=F)
        index = gallery.view.index
        assert isinstance(index, MilvusIndex)

        def away(*_: object, **__: object) -> None:
            raise ConnectionError("gone")

        monkeypatch.setattr(index._client, "delete", away)
        with pytest.raises(SearchUnavailableError):
            gallery.erase(ids[0])
        assert gallery.counts() == (9, 18)
    with Gallery.open(tmp_path / "g") as again:
        index = again.view.index
        assert index is not None
        assert len(index) == 18
        assert ids[0] not in [m.person for m in again.identify(vectors[0, 0], fingerprint=F, k=20, threshold=-1)[0]]
