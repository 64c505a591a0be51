"""REST, spoken to over the wire: every way in and every way out."""

from __future__ import annotations

import base64
import io
import json
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgpack
import numpy as np
import pyarrow as pa
import pytest
from PIL import Image as PILImage

from facefleet import Engine
from facefleet.server.listen import Listen
from facefleet.types import EncodedImage
from tests.server.conftest import Running, Start

RAW = {"content-type": "application/octet-stream"}


@pytest.fixture(scope="module")
def http(server: Running) -> httpx.Client:
    with httpx.Client(base_url=server.url, timeout=30) as client:
        yield client


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_the_answer_is_the_engines(http: httpx.Client, engine: Engine, astronaut_jpeg: bytes) -> None:
    expected = engine.analyze(EncodedImage(astronaut_jpeg, "image"))
    tree = http.post("/v1/faces", content=astronaut_jpeg, headers=RAW).json()
    assert (tree["status"], tree["width"], tree["height"]) == ("ok", 512, 512)
    (face,) = tree["faces"]
    np.testing.assert_array_equal(np.array(face["embedding"], np.float32), expected.embeddings[0])
    np.testing.assert_array_equal(np.array(face["box"], np.float32), expected.boxes[0])


def test_every_kind_of_body_gives_the_same(http: httpx.Client, astronaut_jpeg: bytes) -> None:
    raw = http.post("/v1/faces", content=astronaut_jpeg, headers={"content-type": "image/jpeg"}).json()
    assert http.post("/v1/faces", json={"image": b64(astronaut_jpeg)}).json() == raw
    assert http.post("/v1/faces", files={"image": ("x.jpg", astronaut_jpeg)}).json() == raw

    def pieces() -> object:
        yield astronaut_jpeg[:1000]
        yield astronaut_jpeg[1000:]

    assert http.post("/v1/faces", content=pieces(), headers=RAW).json() == raw, "chunked, without a length"


def test_every_kind_of_answer_holds_the_same(http: httpx.Client, astronaut_jpeg: bytes) -> None:
    def post(query: str = "", accept: str = "*/*") -> httpx.Response:
        return http.post(f"/v1/faces{query}", content=astronaut_jpeg, headers={**RAW, "accept": accept})

    tree = post().json()
    vector = np.array(tree["faces"][0]["embedding"], np.float32)
    assert msgpack.unpackb(post(accept="application/msgpack").content) == tree
    coded = post("?embeddings=base64").json()["faces"][0]["embedding"]
    np.testing.assert_array_equal(np.frombuffer(base64.b64decode(coded), "<f4"), vector)
    assert post("?embeddings=none").json()["faces"][0]["embedding"] is None
    table = pa.ipc.open_stream(post(accept="application/vnd.apache.arrow.stream").content).read_all()
    np.testing.assert_array_equal(np.array(table["embedding"][0].as_py(), np.float32), vector)
    assert table.schema.metadata[b"facefleet.metric"] == b"cosine"
    drawn = post("?draw=true")
    assert drawn.headers["content-type"] == "image/jpeg"
    assert PILImage.open(io.BytesIO(drawn.content)).size == (512, 512)


def test_a_batch_is_answered_item_by_item(http: httpx.Client, astronaut_jpeg: bytes, no_face_jpeg: bytes) -> None:
    pictures = {"face": astronaut_jpeg, "none": no_face_jpeg, "broken": b"no picture", "empty": b""}
    lines = "\n".join(json.dumps({"id": name, "image": b64(data)}) for name, data in pictures.items())
    by_lines = http.post("/v1/faces:batch", content=lines, headers={"content-type": "application/x-ndjson"})
    by_form = http.post("/v1/faces:batch", files=[("image", (name, data)) for name, data in pictures.items()])
    for response in (by_lines, by_form):
        assert response.headers["content-type"] == "application/x-ndjson"
        *items, last = map(json.loads, response.text.splitlines())
        assert last == {"totals": {"ok": 1, "no_face": 1, "failed_retryable": 0, "failed_permanent": 2, "items": 4}}
        assert {item["id"]: item["status"] for item in items} == {
            "face": "ok",
            "none": "no_face",
            "broken": "failed_permanent",
            "empty": "failed_permanent",
        }
        assert sorted(item["index"] for item in items) == [0, 1, 2, 3]


def test_a_batch_that_breaks_off_answers_what_came(http: httpx.Client, astronaut_jpeg: bytes) -> None:
    lines = json.dumps({"id": "a", "image": b64(astronaut_jpeg)}) + "\nthis is no JSON\n"
    response = http.post("/v1/faces:batch", content=lines, headers={"content-type": "application/x-ndjson"})
    item, last = map(json.loads, response.text.splitlines())
    assert item["status"] == "ok"
    assert last["totals"]["items"] == 1
    assert last["error"]["code"] == "bad_request"


def test_a_batch_that_comes_in_pieces_loses_none_once_answers_began(http: httpx.Client, no_face_jpeg: bytes) -> None:
    """The watch for a client's going away took pieces of the body that came after the first answer."""
    size = 7

    def pieces() -> Iterator[bytes]:
        for number in range(size):
            text = json.dumps({"id": str(number), "image": b64(no_face_jpeg if number % 2 else b"no picture")}) + "\n"
            for start in range(0, len(text), len(text) // 3 + 1):
                yield text[start : start + len(text) // 3 + 1].encode()
                time.sleep(0.05)

    response = http.post("/v1/faces:batch", content=pieces(), headers={"content-type": "application/x-ndjson"})
    *items, last = map(json.loads, response.text.splitlines())
    assert last["totals"]["items"] == size
    assert "error" not in last
    assert sorted(item["id"] for item in items) == [str(number) for number in range(size)]


def test_verify(http: httpx.Client, astronaut_jpeg: bytes, half_jpeg: bytes, no_face_jpeg: bytes) -> None:
    same = http.post("/v1/verify", files=[("first", astronaut_jpeg), ("second", half_jpeg)]).json()
    assert same["same"]
    assert same["cosine"] > 0.8
    assert same["metric"] == "cosine"
    strict = http.post("/v1/verify?threshold=0.9999", json={"first": b64(astronaut_jpeg), "second": b64(half_jpeg)})
    assert strict.json()["same"] is False
    none = http.post("/v1/verify", files=[("first", astronaut_jpeg), ("second", no_face_jpeg)])
    assert (none.status_code, none.json()["code"]) == (422, "no_face")


def test_problem_details(http: httpx.Client) -> None:
    response = http.post("/v1/faces", content=b"no picture", headers={**RAW, "x-request-id": "abc-1"})
    assert response.status_code == 415
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["x-request-id"] == "abc-1"
    problem = response.json()
    assert problem["type"] == "urn:facefleet:error:unsupported_format"
    assert problem["request_id"] == "abc-1"
    assert problem["status"] == 415
    assert not problem["retryable"]
    assert problem["hint"]


def test_headers_of_priority_and_deadline(http: httpx.Client, astronaut_jpeg: bytes) -> None:
    for headers in (
        {"x-priority": "urgent"},
        {"x-timeout-ms": "soon"},
        {"x-timeout-ms": "-1"},
        {"x-timeout-ms": "nan"},
    ):
        assert http.post("/v1/faces", content=astronaut_jpeg, headers=RAW | headers).status_code == 400
    good = RAW | {"x-priority": "bulk", "x-timeout-ms": "20000"}
    assert http.post("/v1/faces", content=astronaut_jpeg, headers=good).status_code == 200
    late = http.post("/v1/faces", content=astronaut_jpeg, headers=RAW | {"x-timeout-ms": "0.001"})
    assert (late.status_code, late.json()["code"]) == (503, "deadline")
    assert int(late.headers["retry-after"]) >= 1


def test_info_and_openapi(http: httpx.Client) -> None:
    info = http.get("/v1/info").json()
    assert info["license"] == "MIT AND Apache-2.0"
    assert info["limits"]["max_image_bytes"] > 0
    assert info["devices"][0]["state"] == "ready"
    tree = http.get("/openapi.json").json()
    assert "Problem" in tree["components"]["schemas"]
    assert {"/v1/faces", "/v1/faces:batch", "/v1/verify", "/v1/search", "/v1/galleries", "/v1/info", "/extract"} <= set(
        tree["paths"]
    )
    for path, operations in tree["paths"].items():
        if path.startswith("/v1") and "health" not in path:
            for operation in operations.values():
                problem = operation["responses"]["413"]["content"]["application/problem+json"]
                assert problem["schema"]["$ref"].endswith("Problem")


def test_extract_as_insightface_rest_has_it(http: httpx.Client, astronaut_jpeg: bytes) -> None:
    body = {"images": {"data": [b64(astronaut_jpeg), b64(b"no picture")]}, "return_landmarks": True}
    tree = http.post("/extract", json=body).json()
    good, bad = tree["data"]
    assert good["status"] == "ok"
    assert bad["status"] == "failed"
    assert bad["faces"] == []
    assert set(good["faces"][0]) == {"num", "det", "prob", "bbox", "size", "landmarks", "norm", "vec"}
    assert all(isinstance(value, int) for value in good["faces"][0]["bbox"])
    assert http.post("/extract", json={"images": {"urls": ["http://127.0.0.1/x"]}}).status_code == 400


def test_the_operators_lane(server: Running, http: httpx.Client) -> None:
    assert http.get("/v1/health/live").json() == {"live": True, "ready": None, "reason": None} or http.get(
        "/v1/health/live"
    ).json() == {"live": True}
    assert http.get("/metrics").status_code == 404, "metrics are not on the front"
    assert http.post("/admin/reload").status_code == 404, "nor is anything administrative"
    text = httpx.get(f"{server.ops_url}/metrics").text
    assert 'facefleet_requests_total{protocol="http",route="/v1/faces",status="200"}' in text
    assert httpx.get(f"{server.ops_url}/v1/health/ready").json()["ready"] is True


def test_reload_under_requests(start: Start, astronaut_jpeg: bytes) -> None:
    server = start()
    with httpx.Client(base_url=server.url) as http:
        before = http.post("/v1/faces", content=astronaut_jpeg, headers=RAW).json()
        assert httpx.post(f"{server.ops_url}/admin/reload", timeout=60).json()["reloaded"] is True
        assert http.post("/v1/faces", content=astronaut_jpeg, headers=RAW).json() == before


def test_unix_socket(start: Start, astronaut_jpeg: bytes, tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    start(listen=Listen(uds=path, ops_port=None), grpc=False)
    with httpx.Client(transport=httpx.HTTPTransport(uds=path), base_url="http://facefleet") as http:
        assert http.post("/v1/faces", content=astronaut_jpeg, headers=RAW).status_code == 200


def test_tls(start: Start, tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, *subject]
    try:
        subprocess.run(made, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    listen = Listen(port=0, ops_port=None, certfile=str(certificate), keyfile=str(key))
    server = start(listen=listen, grpc=False)
    context = ssl.create_default_context(cafile=certificate)
    assert httpx.get(f"https://127.0.0.1:{server.port}/v1/health/live", verify=context).status_code == 200
