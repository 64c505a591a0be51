"""A real server on ports of its own, in a thread of the test's process, and photos to send."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason='needs the extra: pip install "facefleet[server]"')
pytest.importorskip("tritonclient.grpc", reason='needs the extra: pip install "facefleet[server]"')

from facefleet import Engine, Settings
from facefleet.server.auth import Keys
from facefleet.server.galleries import Galleries
from facefleet.server.limits import Limits
from facefleet.server.listen import Listen
from facefleet.server.serve import Server, Serving
from facefleet.server.service import Service
from tests.conftest import encode


class Running:
    """A server in a thread with an event loop of its own, as `facefleet serve` has it, but for the signals."""

    def __init__(
        self,
        settings: Settings,
        *,
        limits: Limits | None = None,
        keys: Keys | None = None,
        galleries: Path | None = None,
        listen: Listen | None = None,
        grpc: bool = True,
        **options: Any,
    ) -> None:
        self.service = Service(Engine(settings), limits)
        self._server = Server(
            self.service,
            keys or Keys({}),
            listen or Listen(port=0, ops_port=0),
            grpc_port=0 if grpc else None,
            galleries=Galleries(galleries),
            drain_s=10.0,
            **options,
        )
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)

    def __enter__(self) -> Running:
        self._thread.start()
        try:
            self.serving: Serving = self.run(self._server.start())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self._server.stop())
        self.run(self.loop.shutdown_default_executor())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    @property
    def port(self) -> int:
        return int(self.serving.http[1])  # type: ignore[index]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def ops_url(self) -> str:
        return f"http://127.0.0.1:{self.serving.ops[1]}"  # type: ignore[index]


Start = Callable[..., Running]


@pytest.fixture
def start(home: Path) -> Iterator[Start]:
    """Starts servers, which end with the test."""
    running: list[Running] = []

    def begin(settings: Settings | None = None, **options: Any) -> Running:
        server = Running(settings or Settings(home=str(home)), **options)
        server.__enter__()
        running.append(server)
        return server

    yield begin
    for server in running:
        server.__exit__()


@pytest.fixture(scope="module")
def server(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One server for the tests of a module that only ask."""
    with Running(Settings(home=str(home)), galleries=tmp_path_factory.mktemp("galleries")) as running:
        yield running


@pytest.fixture(scope="session")
def no_face_jpeg() -> bytes:
    """A picture without a face."""
    return encode(np.full((120, 160, 3), 90, np.uint8), "JPEG")


@pytest.fixture(scope="session")
def half_jpeg(astronaut: np.ndarray) -> bytes:
    """The same person as `astronaut_jpeg`, at half the size: another right answer."""
    return encode(np.ascontiguousarray(astronaut[::2, ::2]), "JPEG", quality=95)
