"""Clients that mean no good, or do not know better: cut off, refused by type, with memory bounded."""

from __future__ import annotations

import io
import socket
import struct
import time
import zlib
from pathlib import Path

import httpx
import psutil
import pytest

from facefleet import Settings
from facefleet.config import BatchSettings
from facefleet.server.auth import add_key, load_keys
from tests.server.conftest import Running, Start, exchange

RAW = {"content-type": "application/octet-stream"}


def test_slow_headers_and_slow_bodies_are_cut_off(small: Running) -> None:
    assert exchange(small.port, b"POST /v1/faces HTTP/1.1\r\nhost: x\r\nx-a:") == b"", "closed without an answer"
    head = b"POST /v1/faces HTTP/1.1\r\nhost: x\r\ncontent-type: image/jpeg\r\ncontent-length: 1000\r\n\r\n"
    assert b" 408 " in exchange(small.port, head + b"some").splitlines()[0]


def test_giant_headers(small: Running) -> None:
    found = exchange(small.port, b"GET /v1/info HTTP/1.1\r\nhost: x\r\nx-a: " + b"a" * 200_000 + b"\r\n\r\n")
    assert found == b"" or b" 400 " in found.splitlines()[0] or b" 431 " in found.splitlines()[0]
    assert httpx.get(f"{small.url}/v1/info").status_code == 200


def test_chunked_nonsense(small: Running) -> None:
    head = b"POST /v1/faces HTTP/1.1\r\nhost: x\r\ncontent-type: image/jpeg\r\ntransfer-encoding: chunked\r\n\r\n"
    for rest in (b"zz\r\n", b"ffffffffffffffffffff\r\nx", b"-1\r\n", b"5\r\nab"):
        found = exchange(small.port, head + rest, wait_s=3.0)
        assert found == b"" or found.split(b" ", 2)[1].startswith(b"4"), rest
    assert httpx.get(f"{small.url}/v1/health/live").status_code == 200


def bomb(side: int) -> bytes:
    """A PNG of side x side pixels in few bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    packer = zlib.compressobj(9)
    rows = io.BytesIO()
    row = bytes(side // 8 + 1)
    for _ in range(side):
        rows.write(packer.compress(row))
    rows.write(packer.flush())
    head = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows.getvalue()) + chunk(b"IEND", b"")


def test_decompression_bombs(small: Running) -> None:
    picture = bomb(20_000)
    assert len(picture) < 1 << 20
    process = psutil.Process()
    before = process.memory_info().rss
    for _ in range(10):
        response = httpx.post(f"{small.url}/v1/faces", content=picture, headers=RAW)
        assert (response.status_code, response.json()["code"]) == (413, "image_too_large")
    assert process.memory_info().rss - before < 100 << 20
    packed = zlib.compress(bytes(50 << 20))
    coded = httpx.post(f"{small.url}/v1/faces", content=packed, headers=RAW | {"content-encoding": "deflate"})
    assert coded.status_code == 415, "bodies are never inflated"


@pytest.mark.parametrize(
    "kind",
    ["text/html", "application/xml", "multipart/form-data", "multipart/form-data; boundary=", "\u00e9", "a/b;" * 99],
)
def test_wrong_content_types(small: Running, kind: str, astronaut_jpeg: bytes) -> None:
    for path in ("/v1/faces", "/v1/faces:batch", "/v1/verify"):
        response = httpx.post(small.url + path, content=astronaut_jpeg, headers=[(b"content-type", kind.encode())])
        assert response.status_code in (400, 415), path
        assert response.headers["content-type"] == "application/problem+json"


def test_rates_and_quotas(start: Start, tmp_path: Path, no_face_jpeg: bytes) -> None:
    path = tmp_path / "keys.toml"
    slow = add_key(path, "slow", ("read",), images_per_s=0.1)
    daily = add_key(path, "daily", ("read",), images_per_day=2)
    server = start(keys=load_keys(path), grpc=False)

    def post(key: str) -> httpx.Response:
        return httpx.post(f"{server.url}/v1/faces", content=no_face_jpeg, headers=RAW | {"x-api-key": key})

    assert post(slow).status_code == 200
    limited = post(slow)
    assert (limited.status_code, limited.json()["code"]) == (429, "rate_limited")
    assert 1 <= int(limited.headers["retry-after"]) <= 10
    assert [post(daily).status_code for _ in range(3)] == [200, 200, 429]


def test_a_client_that_goes_away_leaves_the_queue(start: Start, home: Path, astronaut_jpeg: bytes) -> None:
    server = start(Settings(home=str(home), batch=BatchSettings(max_images=64)), grpc=False)
    body = astronaut_jpeg
    head = b"POST /v1/faces HTTP/1.1\r\nhost: x\r\ncontent-type: image/jpeg\r\n"
    head += f"content-length: {len(body)}\r\n\r\n".encode()
    for _ in range(30):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(head + body)
    deadline = time.monotonic() + 20
    while (server.service.room.requests or server.service._inside) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert server.service.room.requests == 0
    assert not server.service._inside
    assert server.service.room.held_bytes == 0
    assert httpx.post(f"{server.url}/v1/faces", content=body, headers=RAW).status_code == 200
