"""Our clients against a real server, blocking and not, and one that fails in between."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from facefleet import Engine
from facefleet.client import AsyncClient, Client, Item, Progress
from facefleet.errors import InputError, NoFaceError, QueueFullError, ServerError, SourceError
from facefleet.server.auth import add_key, load_keys
from facefleet.types import EncodedImage
from tests.server.conftest import Running, Start


@pytest.fixture(params=["blocking", "async"])
def call(request: pytest.FixtureRequest) -> Callable[..., object]:
    """Calls a method of either client."""

    def blocking(url: str, method: str, *arguments: object, options: dict[str, object] | None = None) -> object:
        with Client(url, **options or {}) as client:
            found = getattr(client, method)(*arguments)
            return list(found) if method == "folder" else found

    def awaited(url: str, method: str, *arguments: object, options: dict[str, object] | None = None) -> object:
        async def main() -> object:
            async with AsyncClient(url, **options or {}) as client:
                found = getattr(client, method)(*arguments)
                return [item async for item in found] if method == "folder" else await found

        return asyncio.run(main())

    return blocking if request.param == "blocking" else awaited


def test_faces(call: Callable[..., object], server: Running, engine: Engine, astronaut_jpeg: bytes) -> None:
    found = call(server.url, "faces", astronaut_jpeg)
    expected = engine.analyze(EncodedImage(astronaut_jpeg, "x"))
    np.testing.assert_array_equal(found.faces[0].embedding, expected.embeddings[0])
    np.testing.assert_array_equal(found.faces[0].box, expected.boxes[0])


def test_verify_and_errors(
    call: Callable[..., object], server: Running, astronaut_jpeg: bytes, half_jpeg: bytes, no_face_jpeg: bytes
) -> None:
    assert call(server.url, "verify", astronaut_jpeg, half_jpeg).same
    with pytest.raises(NoFaceError):
        call(server.url, "verify", astronaut_jpeg, no_face_jpeg)
    with pytest.raises(InputError):
        call(server.url, "faces", astronaut_jpeg[:3000])
    with pytest.raises(SourceError):
        call(server.url, "faces", "/nowhere.jpg")
    with pytest.raises(ServerError):
        call("http://127.0.0.1:9", "info", options={"retries": 0})


def test_galleries(call: Callable[..., object], server: Running, astronaut_jpeg: bytes, half_jpeg: bytes) -> None:
    made = call(server.url, "create_gallery", "people")
    assert made in call(server.url, "galleries")
    person = call(server.url, "enrol", made.id, "Eileen", [astronaut_jpeg])
    ((match,),) = call(server.url, "search", half_jpeg, made.id)
    assert (match.person, match.name) == (person, "Eileen")
    call(server.url, "erase", made.id, person)
    assert call(server.url, "search", half_jpeg, made.id) == [[]]


def test_folder(
    call: Callable[..., object], server: Running, tmp_path: Path, astronaut_jpeg: bytes, no_face_jpeg: bytes
) -> None:
    (tmp_path / "sub").mkdir()
    for number in range(5):
        (tmp_path / "sub" / f"{number}.jpg").write_bytes(astronaut_jpeg)
    (tmp_path / "none.jpg").write_bytes(no_face_jpeg)
    (tmp_path / "broken.jpg").write_bytes(astronaut_jpeg[:100])
    items: list[Item] = call(server.url, "folder", tmp_path)  # type: ignore[assignment]
    found = {Path(item.id).name: item for item in items}
    assert len(items) == len(found) == 7
    assert all(len(found[f"{number}.jpg"].picture.faces) == 1 for number in range(5))  # type: ignore[union-attr]
    assert found["none.jpg"].picture.faces == ()  # type: ignore[union-attr]
    assert isinstance(found["broken.jpg"].error, InputError)


def test_progress(server: Running, tmp_path: Path, astronaut_jpeg: bytes) -> None:
    for number in range(3):
        (tmp_path / f"{number}.jpg").write_bytes(astronaut_jpeg)
    told: list[Progress] = []
    with Client(server.url) as client:
        assert len(list(client.folder(tmp_path, size=2, progress=told.append))) == 3
    assert told[-1] == Progress(3, 3, 3 * len(astronaut_jpeg))
    assert [each.sent_bytes for each in told] == sorted(each.sent_bytes for each in told)


def test_keys(call: Callable[..., object], start: Start, tmp_path: Path) -> None:
    key = add_key(tmp_path / "keys.toml", "a", ("read",))
    server = start(keys=load_keys(tmp_path / "keys.toml"), grpc=False)
    assert call(server.url, "info", options={"key": key})["pack"] == "opencv"


@pytest.fixture
def moody() -> Iterator[tuple[str, list[float]]]:
    """A server that answers 503 with Retry-After twice, then well; with the times of its requests."""
    asked: list[float] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked.append(time.monotonic())
            full = len(asked) < 3
            problem = b'{"code": "queue_full", "detail": "full", "hint": "", "retry_after_s": 1}'
            data = problem if full else b'{"pack": "x"}'
            self.send_response(503 if full else 200)
            self.send_header("content-length", str(len(data)))
            if full:
                self.send_header("retry-after", "1")
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None: ...

    host = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=host.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{host.server_port}", asked
    host.shutdown()
    host.server_close()
    thread.join()


def test_retry_after_is_waited_for(call: Callable[..., object], moody: tuple[str, list[float]]) -> None:
    url, asked = moody
    assert call(url, "info") == {"pack": "x"}
    assert all(later - earlier >= 1.0 for earlier, later in itertools.pairwise(asked))
    asked.clear()
    with pytest.raises(QueueFullError):
        call(url, "info", options={"retries": 1})
