"""The faults of public servers, one test each: server-side request forgery to swallowed failures.

Numbers are those of the list of faults that this project holds itself to: 47 to 55.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest

from facefleet import Settings
from facefleet.config import BatchSettings
from facefleet.errors import ConfigError, FetchError, PayloadTooLargeError, RequestError
from facefleet.server.auth import add_key, load_keys
from facefleet.server.fetch import Fetcher, public
from facefleet.server.limits import Limits
from facefleet.server.listen import Listen
from tests.server.conftest import SMALL, Running, Start, exchange

RAW = {"content-type": "application/octet-stream"}
# 47


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.0.0.8", "192.168.1.1", "169.254.169.254", "0.0.0.0", "::1", "fe80::1", "fd00::1", "100.64.0.1",
     "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "224.0.0.1", "255.255.255.255"],
)  # fmt: skip
def test_47_private_addresses_are_not_public(address: str) -> None:
    assert not public(address)


def test_47_urls_are_not_fetched_by_default(small: Running) -> None:
    for url in ("file:///etc/passwd", "http://127.0.0.1/", "https://example.com/a.jpg"):
        response = httpx.post(f"{small.url}/v1/faces", json={"url": url})
        assert (response.status_code, response.json()["code"]) == (400, "bad_request")


def test_47_urls_where_allowed(astronaut_jpeg: bytes) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/inside":
                self.send_response(302)
                self.send_header("location", "http://inside.example/secret")
                self.end_headers()
                return
            data = astronaut_jpeg if self.path == "/a.jpg" else bytes(200_000)
            self.send_response(200)
            if self.path != "/endless":
                self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None: ...

    host = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=host.serve_forever, daemon=True)
    thread.start()
    asked: list[str] = []

    def resolve(name: str, port: int) -> list[str]:
        del port
        asked.append(name)
        return {"pictures.example": ["127.0.0.1"], "mixed.example": ["127.0.0.1", "10.0.0.1"]}.get(name, ["10.0.0.1"])

    fetcher = Fetcher(["http"], max_bytes=100_000, resolve=resolve, permitted=lambda address: address == "127.0.0.1")
    base = f"http://pictures.example:{host.server_port}"
    try:
        assert fetcher.fetch_blocking(f"{base}/a.jpg") == astronaut_jpeg
        assert asked == ["pictures.example"], "resolved once, and that address is connected to"
        with pytest.raises(RequestError, match="not fetched from"):
            fetcher.fetch_blocking(f"{base}/inside")
        for path in ("/large", "/endless"):
            with pytest.raises(PayloadTooLargeError):
                fetcher.fetch_blocking(base + path)
        with pytest.raises(RequestError, match="not fetched from"):
            fetcher.fetch_blocking("http://mixed.example/a.jpg")
        for url in ("file:///etc/passwd", "https://pictures.example/", "gopher://x/", "http://", "http://u:p@pictures.example/",
                    "http://pictures.example/a b", "http://pictures.example:99999/"):  # fmt: skip
            with pytest.raises(RequestError):
                fetcher.fetch_blocking(url)
        with pytest.raises(ConfigError, match="file"):
            Fetcher(["file"], max_bytes=1)
    finally:
        host.shutdown()
        host.server_close()
        thread.join()
        fetcher.close()


def test_47_a_slow_host_ends_at_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        fetcher = Fetcher(
            ["http"], max_bytes=100, timeout_s=0.3, resolve=lambda *_: ["127.0.0.1"], permitted=lambda _: True
        )
        with pytest.raises(FetchError):
            fetcher.fetch_blocking(f"http://x.example:{port}/")
        fetcher.close()


# 48


def test_48_a_person_called_dot_dot(start: Start, tmp_path: Path, astronaut_jpeg: bytes) -> None:
    folder = tmp_path / "galleries"
    folder.mkdir()
    precious = tmp_path / "precious"
    precious.mkdir()
    url = start(galleries=folder, grpc=False).url
    gallery = httpx.post(f"{url}/v1/galleries", json={"name": "../precious"}).json()
    assert gallery["name"] == "../precious", "a name is data"
    for name in ("..", "../../precious", "/etc", "a/b", "\u202e"):
        made = httpx.post(
            f"{url}/v1/galleries/{gallery['id']}/people", params={"name": name}, files={"image": (name, astronaut_jpeg)}
        )
        assert made.status_code in (200, 201)
        assert httpx.delete(f"{url}/v1/galleries/{gallery['id']}/people/{made.json()['person']}").status_code == 200
    for name in ("..", "%2e%2e", "..%2fprecious", ".names"):
        assert httpx.delete(f"{url}/v1/galleries/{name}").status_code in (404, 405)
    assert httpx.delete(f"{url}/v1/galleries/{gallery['id']}").status_code == 204
    assert precious.is_dir()
    assert folder.is_dir()


# 49


def test_49_bodies_are_limited_while_they_stream(small: Running) -> None:
    head = b"POST /v1/faces HTTP/1.1\r\nhost: x\r\ncontent-type: image/jpeg\r\n"
    announced = exchange(small.port, head + b"content-length: 99999999999\r\n\r\n")
    assert b" 413 " in announced.splitlines()[0], "refused by its announcement, before anything is read"

    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        while sent < 64 << 20:
            sent += 65536
            time.sleep(0.005)
            yield bytes(65536)

    with httpx.Client(base_url=small.url) as http:
        response = http.post("/v1/faces", content=endless(), headers=RAW)
        assert (response.status_code, response.json()["code"]) == (413, "payload_too_large")
        assert sent < 60 << 20, "refused while it streamed, and cut off when it went on"
        parts = [("image", (str(n), b"x")) for n in range(5)]
        assert "413" in http.post("/v1/faces:batch", files=parts).text
        huge_part = http.post("/v1/faces", files={"image": bytes(SMALL.max_image_bytes + 1)})
        assert huge_part.status_code == 413
        coded = json.dumps({"image": "A" * (SMALL.max_image_bytes * 4 // 3 + 100)})
        large = http.post("/v1/faces", content=coded, headers={"content-type": "application/json"})
        assert large.status_code == 413
        assert http.get("/v1/info").json()["limits"]["max_image_bytes"] == SMALL.max_image_bytes


# 50


def test_50_open_to_this_machine_only_without_a_key(start: Start, tmp_path: Path) -> None:
    for host in ("0.0.0.0", "192.168.0.4", "::"):
        with pytest.raises(ConfigError, match="without an API key"):
            Listen(host=host).check(keyed=False)
    key = add_key(tmp_path / "keys.toml", "a", ("read",))
    assert key not in (tmp_path / "keys.toml").read_text(), "only its digest is written down"
    assert (tmp_path / "keys.toml").stat().st_mode & 0o077 == 0
    server = start(keys=load_keys(tmp_path / "keys.toml"))
    for headers in ({}, {"x-api-key": "ff_wrong"}, {"authorization": "Basic eDp5"}):
        refused = httpx.get(f"{server.url}/v1/info", headers=headers)
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"] == "Bearer"
    allowed = httpx.get(f"{server.url}/v1/info", headers={"x-api-key": key, "origin": "https://evil.example"})
    assert allowed.status_code == 200
    assert not [name for name in allowed.headers if name.startswith("access-control")], "no CORS"
    assert httpx.post(f"{server.ops_url}/admin/reload", headers={"x-api-key": key}).status_code == 403
    assert httpx.post(f"{server.ops_url}/admin/reload").status_code == 401


# 51


def test_51_no_face_is_an_answer(small: Running, no_face_jpeg: bytes) -> None:
    plain = httpx.post(f"{small.url}/v1/faces", content=no_face_jpeg, headers=RAW)
    assert (plain.status_code, plain.json()["status"], plain.json()["faces"]) == (200, "no_face", [])
    required = httpx.post(f"{small.url}/v1/faces?require_face=true", content=no_face_jpeg, headers=RAW)
    assert (required.status_code, required.json()["code"]) == (422, "no_face")


# 52


def test_52_health_answers_while_everything_is_taken(start: Start, home: Path, astronaut_jpeg: bytes) -> None:
    server = start(Settings(home=str(home), batch=BatchSettings(max_images=2)), limits=Limits(max_requests=2))
    stop = threading.Event()

    def load() -> None:
        with httpx.Client(base_url=server.url, timeout=30) as http:
            while not stop.is_set():
                assert http.post("/v1/faces", content=astronaut_jpeg, headers=RAW).status_code in (200, 503)

    threads = [threading.Thread(target=load) for _ in range(8)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            assert httpx.get(f"{server.url}/v1/health/live").status_code == 200
            assert httpx.get(f"{server.ops_url}/v1/health/ready").status_code == 200
    finally:
        stop.set()
        for thread in threads:
            thread.join()


# 53


def test_53_ready_means_that_it_works(start: Start, astronaut_jpeg: bytes) -> None:
    server = start(grpc=False)
    ready = f"{server.url}/v1/health/ready"
    assert httpx.get(ready).json()["ready"] is True
    server.service._failures = 3  # as after three answers that the engine failed on
    assert httpx.get(ready).status_code == 503
    assert "failed in the engine" in httpx.get(ready).json()["reason"]
    deadline = time.monotonic() + 20
    while httpx.get(ready).status_code != 200 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert httpx.get(ready).status_code == 200, "its own probe found that it works again"
    assert server.service._prober is not None
    server.loop.call_soon_threadsafe(server.service._prober.cancel)  # it would find that the engine is well
    server.service._inside[-1] = time.monotonic() - 60  # a request that nobody answers
    server.service._last_good = time.monotonic() - 60
    assert "no answer for 60 s" in httpx.get(ready).json()["reason"]
    assert httpx.get(f"{server.url}/v1/health/live").status_code == 200, "alive is something else"
    del server.service._inside[-1]


# 54: SIGTERM under load, in test_process.py


def test_54_a_server_that_drains_says_so(start: Start, astronaut_jpeg: bytes) -> None:
    server = start(grpc=False)
    with httpx.Client(base_url=server.url) as http:
        assert http.get("/v1/health/ready").status_code == 200
        server.loop.call_soon_threadsafe(server.service.begin_drain)
        deadline = time.monotonic() + 5
        while http.get("/v1/health/ready").status_code == 200 and time.monotonic() < deadline:
            time.sleep(0.01)
        refused = http.post("/v1/faces", content=astronaut_jpeg, headers=RAW)
        assert (refused.status_code, refused.json()["code"]) == (503, "not_ready")
        assert refused.headers["connection"] == "close"
        assert "retry-after" in refused.headers


# 55


def test_55_no_picture_and_no_vector_is_logged(
    small: Running, astronaut_jpeg: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "facefleet"):
        good = httpx.post(f"{small.url}/v1/faces", content=astronaut_jpeg, headers=RAW | {"x-request-id": "seen-1"})
        httpx.post(f"{small.url}/v1/faces", json={"image": "QUJDRA=="}, headers={"x-request-id": "seen-2"})
    vector = good.json()["faces"][0]["embedding"]
    text = "\n".join(f"{record.getMessage()} {record.__dict__}" for record in caplog.records)
    assert "/v1/faces" in text
    for secret in (f"{vector[0]:.5f}"[:7], "QUJDRA", repr(astronaut_jpeg[:8])[2:-1]):
        assert secret not in text
