"""Galleries, enrolment and search over REST; what is data stays data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from facefleet.errors import GalleryNotFoundError
from facefleet.gallery import Gallery, PipelineIdentity
from facefleet.server.auth import add_key, load_keys
from facefleet.server.galleries import Galleries
from tests.server.conftest import Running, Start

RAW = {"content-type": "application/octet-stream"}


@pytest.fixture(scope="module")
def http(server: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=30) as client:
        yield client


@pytest.fixture
def gallery(http: httpx.Client) -> Iterator[str]:
    made = http.post("/v1/galleries", json={"name": "people", "keep_chips": True})
    assert made.status_code == 201
    yield made.json()["id"]
    assert http.delete(f"/v1/galleries/{made.json()['id']}").status_code in (204, 404)


def test_the_life_of_a_person(
    http: httpx.Client, gallery: str, astronaut_jpeg: bytes, half_jpeg: bytes, no_face_jpeg: bytes
) -> None:
    people = f"/v1/galleries/{gallery}/people"
    pictures = [("image", ("a.jpg", astronaut_jpeg)), ("image", ("none.jpg", no_face_jpeg))]
    enrolled = http.post(f"{people}?name=Eileen", files=pictures)
    assert enrolled.status_code == 201
    stored, refused = sorted(enrolled.json()["results"], key=lambda each: each["id"])
    assert stored["sample"] is not None
    assert refused["sample"] is None
    assert "no face" in refused["reasons"][0]
    person = enrolled.json()["person"]
    again = http.post(f"{people}?person={person}", files=pictures[:1])
    assert (again.status_code, again.json()["person"]) == (200, person), "stored once"

    renamed = http.patch(f"{people}/{person}", json={"name": "Eileen Collins", "metadata": {"team": "red"}})
    assert renamed.json()["name"] == "Eileen Collins"
    found = http.post(f"/v1/search?gallery={gallery}&k=3", content=half_jpeg, headers=RAW).json()
    (match,) = found["faces"][0]["matches"]
    assert (match["person"], match["name"], found["metric"]) == (person, "Eileen Collins", "cosine")
    other = {"gallery": gallery, "where": '{"team": "blue"}'}
    assert http.post("/v1/search", params=other, content=half_jpeg, headers=RAW).json()["faces"][0]["matches"] == []
    decision = http.post(f"{people}/{person}/verify", content=half_jpeg, headers=RAW).json()
    assert decision["same"] is True
    assert http.get(people, params={"where": '{"team": "red"}'}).json()["total"] == 1

    shown = http.get(f"{people}/{person}").json()
    assert [face["source"] for face in shown["faces"]] == ["upload:a.jpg"], "never a path to be read later"
    assert "embedding" not in str(shown)
    erased = http.delete(f"{people}/{person}")
    assert erased.json()["samples"] == 1
    assert erased.json()["files_scanned"] > 0
    assert http.get(f"{people}/{person}").status_code == 404


def test_somebody_without_a_face_and_json(http: httpx.Client, gallery: str) -> None:
    people = f"/v1/galleries/{gallery}/people"
    made = http.post(people, json={"name": "Nobody yet", "metadata": {"n": 1}})
    assert made.status_code == 201
    assert http.get(people).json()["people"][0]["metadata"] == {"n": 1}
    assert http.post(people, json={"metadata": {}}).status_code == 400
    assert http.post(people, json={"name": "x", "images": "abc"}).status_code == 400


def test_what_is_not_there(http: httpx.Client, gallery: str, astronaut_jpeg: bytes) -> None:
    for path in ("/v1/galleries/nobody", f"/v1/galleries/{gallery}/people/77", "/v1/galleries/..%2f..%2fetc"):
        response = http.get(path)
        assert response.status_code == 404, path
        assert response.headers["content-type"] == "application/problem+json"
    lost = http.post("/v1/search?gallery=nobody", content=astronaut_jpeg, headers=RAW)
    assert (lost.status_code, lost.json()["code"]) == (404, "gallery_not_found")
    assert http.post("/v1/galleries", json={"name": "x", "index": "magic"}).status_code == 400
    assert http.get(f"/v1/galleries/{gallery}/people", params={"where": "[1"}).status_code == 400


def test_another_pipelines_gallery_is_refused(
    start: Start, tmp_path: Path, astronaut_jpeg: bytes, server: Running
) -> None:
    facts = server.service.info()
    identity = PipelineIdentity("made by something else", facts["dimension"])
    Gallery.create(tmp_path / "old", identity).close()
    other = start(galleries=tmp_path, grpc=False)
    response = httpx.post(f"{other.url}/v1/search?gallery=old", content=astronaut_jpeg, headers=RAW)
    assert (response.status_code, response.json()["code"]) == (409, "pipeline_mismatch")


def test_a_server_without_galleries(start: Start) -> None:
    response = httpx.get(f"{start(grpc=False).url}/v1/galleries")
    assert response.status_code == 404
    assert "--galleries" in response.json()["hint"]


def test_scopes(start: Start, tmp_path: Path, astronaut_jpeg: bytes) -> None:
    keys = {name: add_key(tmp_path / "keys.toml", name, (name,) if name == "read" else ("read", name)) for name in
            ("read", "enrol", "admin")}  # fmt: skip
    (tmp_path / "galleries").mkdir()
    server = start(galleries=tmp_path / "galleries", keys=load_keys(tmp_path / "keys.toml"), grpc=False)

    def call(who: str, method: str, path: str, **options: object) -> int:
        headers = {"authorization": f"Bearer {keys[who]}"}
        return httpx.request(method, server.url + path, headers=headers, **options).status_code  # type: ignore[arg-type]

    new = {"json": {"name": "people"}}
    assert call("read", "POST", "/v1/galleries", **new) == 403
    assert call("enrol", "POST", "/v1/galleries", **new) == 201
    (gallery,) = Galleries(tmp_path / "galleries").ids()
    picture = {"files": {"image": astronaut_jpeg}}
    assert call("read", "POST", f"/v1/galleries/{gallery}/people?name=a", **picture) == 403
    assert call("enrol", "POST", f"/v1/galleries/{gallery}/people?name=a", **picture) == 201
    assert call("read", "POST", f"/v1/search?gallery={gallery}", **picture) == 200
    assert call("read", "DELETE", f"/v1/galleries/{gallery}/people/1") == 403
    assert call("enrol", "DELETE", f"/v1/galleries/{gallery}") == 403
    assert call("admin", "DELETE", f"/v1/galleries/{gallery}") == 204


def test_a_link_out_of_the_folder_is_no_gallery(tmp_path: Path, server: Running) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    Gallery.create(outside, PipelineIdentity("f", 4)).close()
    (inside / "link").symlink_to(outside)
    found = Galleries(inside)
    with pytest.raises(GalleryNotFoundError):
        found.facts("link")
    for name in ("..", ".", "", "a/../../out", "link/", "\x00"):
        with pytest.raises(GalleryNotFoundError):
            found.delete(name)
    assert outside.is_dir()
    found.close()
