"""Requests that nobody wrote: from the OpenAPI description, and real bodies with bytes changed. Never a 5xx."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from facefleet import Settings
from facefleet.config import DecodeSettings, RuntimeSettings
from facefleet.server.limits import Limits
from tests.server.conftest import Running

FAST = {"status": False, "precision": "fp32"}


@pytest.fixture(scope="module")
def fuzzed(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with small limits, so that size is found, too."""
    chosen = Settings(
        home=str(home),
        decode=DecodeSettings(max_pixels=4_000_000),
        runtime=RuntimeSettings(**FAST),  # type: ignore[arg-type]
    )
    limits = Limits(max_image_bytes=1 << 20, max_body_bytes=4 << 20, max_images=16, idle_timeout_s=2.0)
    with Running(chosen, limits=limits, galleries=tmp_path_factory.mktemp("galleries")) as running:
        yield running


def check(response: httpx.Response, what: object) -> None:
    """An answer, or a typed problem; a deadline that nobody can keep is a 503."""
    if response.status_code >= 400:
        problem = response.json()
        assert problem["code"] != "internal", what
        assert response.status_code < 500 or problem["code"] == "deadline", (what, problem)
    assert response.headers["x-request-id"]


def explore(url: str, examples: int) -> int:
    schemathesis = pytest.importorskip("schemathesis", reason='needs the extra: pip install "facefleet[test]"')
    schema = schemathesis.openapi.from_dict(httpx.get(f"{url}/openapi.json").json())
    count = 0
    for found in schema.get_all_operations():
        operation = found.ok()

        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def every(case: object) -> None:
            nonlocal count
            count += 1
            response = case.call(base_url=url, timeout=60)  # type: ignore[attr-defined]
            if response.status_code >= 400:
                code = response.json()["code"]
                assert response.status_code < 500 or code == "deadline", response.text

        every()
    return count


def test_openapi_is_explored(fuzzed: Running) -> None:
    assert explore(fuzzed.url, 4) > 50


@pytest.mark.slow
def test_openapi_is_explored_at_length(fuzzed: Running) -> None:
    assert explore(fuzzed.url, 100) > 1000


def mutate(random_: random.Random, data: bytes) -> bytes:
    """Some bytes flipped, cut out, doubled, or a boundary value put in."""
    found = bytearray(data)
    for _ in range(random_.choice((1, 1, 2, 4, 16))):
        at = random_.randrange(len(found) + 1)
        kind = random_.randrange(5)
        if kind == 0 and found:
            found[at % len(found)] ^= 1 << random_.randrange(8)
        elif kind == 1:
            del found[at : at + random_.choice((1, 4, 64, 4096))]
        elif kind == 2:
            found[at:at] = found[at : at + random_.choice((1, 16, 512))]
        elif kind == 3:
            found[at : at + 4] = random_.choice((b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff", b"\r\n--"))
        else:
            found[at:at] = random_.randbytes(random_.choice((1, 8, 64)))
    return bytes(found)


def seeds(jpeg: bytes) -> list[tuple[str, str, bytes, dict[str, str]]]:
    """Name of the route, content type, a right body, more headers."""
    import base64

    coded = base64.b64encode(jpeg).decode()
    form = b'--b\r\ncontent-disposition: form-data; name="image"; filename="a.jpg"\r\n\r\n' + jpeg + b"\r\n--b--\r\n"
    line = json.dumps({"id": "a", "image": coded}).encode() + b"\n"
    raw = {"binary_data_size": len(jpeg) + 4}
    entry = {"name": "image", "shape": [1, 1], "datatype": "BYTES", "parameters": raw}
    kserve = json.dumps({"inputs": [entry]}).encode()
    tail = len(jpeg).to_bytes(4, "little") + jpeg
    typed = "application/json"
    return [
        ("/v1/faces", "image/jpeg", jpeg, {}),
        ("/v1/faces", typed, json.dumps({"image": coded}).encode(), {}),
        ("/v1/faces", "multipart/form-data; boundary=b", form, {}),
        ("/v1/faces:batch", "multipart/form-data; boundary=b", form + form, {}),
        ("/v1/faces:batch", "application/x-ndjson", line + line, {}),
        ("/v1/verify", typed, json.dumps({"first": coded, "second": coded}).encode(), {}),
        ("/extract", typed, json.dumps({"images": {"data": [coded]}, "return_landmarks": True}).encode(), {}),
        ("/v1/galleries", typed, b'{"name": "people", "index": "flat", "keep_chips": false}', {}),
        (
            "/v2/models/face_pipeline/infer",
            "application/octet-stream",
            kserve + tail,
            {"inference-header-content-length": str(len(kserve))},
        ),
    ]


def fuzz(server: Running, jpeg: bytes, count: int) -> dict[int, int]:
    chosen, found = random.Random(1), {}
    bodies = seeds(jpeg)
    with httpx.Client(base_url=server.url, timeout=60) as http:
        for _ in range(count):
            path, kind, body, headers = chosen.choice(bodies)
            content = mutate(chosen, body)
            response = http.post(path, content=content, headers={"content-type": kind, **headers})
            check(response, (path, kind, content[:200]))
            found[response.status_code] = found.get(response.status_code, 0) + 1
    until = time.monotonic() + 20  # a request leaves the room after its answer was sent
    while server.service.room.requests and time.monotonic() < until:
        time.sleep(0.01)
    assert server.service.room.requests == 0
    assert server.service.room.held_bytes == 0
    return found


@pytest.fixture(scope="session")
def small_jpeg(astronaut: object) -> bytes:
    from tests.conftest import encode

    return encode(astronaut[40:200:2, 160:290:2].copy(), "JPEG")  # type: ignore[index]


def test_bodies_with_bytes_changed(fuzzed: Running, small_jpeg: bytes) -> None:
    found = fuzz(fuzzed, small_jpeg, 300)
    assert found.get(200, 0) > 10
    assert sum(found.values()) - found.get(200, 0) > 100


@pytest.mark.slow
def test_ten_thousand_bodies_with_bytes_changed(fuzzed: Running, small_jpeg: bytes) -> None:
    fuzz(fuzzed, small_jpeg, 500)
    before = psutil.Process().memory_info().rss
    fuzz(fuzzed, small_jpeg, 10_000)
    assert psutil.Process().memory_info().rss - before < 200 << 20
