"""The whole server: service, fronts, signals. Owns the order of start and end; runs in the main thread's event loop.

SIGTERM and SIGINT: not ready, no new connections or requests, what is inside is finished, exit. SIGHUP: reload.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from facefleet.errors import ConfigError, FacefleetError
from facefleet.server.auth import Keys
from facefleet.server.fetch import Fetcher
from facefleet.server.galleries import Galleries
from facefleet.server.grpc.run import GrpcFront
from facefleet.server.http.app import make_app, make_ops_app
from facefleet.server.http.run import OpsThread, make_front
from facefleet.server.listen import Listen
from facefleet.server.service import Service

_log = logging.getLogger(__name__)
_LINGER_S = 0.5
_SWITCH_S = (
    0.001  # how long the operator's lane may wait for the interpreter lock while the front is busy; Python: 0.005
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """What is being served, for who wants to say so.

    Attributes:
        http: Where the front listens: (host, port), or a path.
        ops: Where the operator's lane does.
        grpc_port: Where gRPC does.
    """

    http: object
    ops: object | None
    grpc_port: int | None


class Server:
    """The service with its fronts; starts and stops in the order that loses nothing.

    Args:
        service: Not started.
        keys: Who may ask.
        listen: Where.
        grpc_port: Port of gRPC; 0: any, None: no gRPC.
        galleries: Known people; closed here at the end.
        fetcher: Fetches pictures by URL; None: nothing is fetched.
        drain_s: What is inside at the end has so long.
    """

    def __init__(
        self,
        service: Service,
        keys: Keys,
        listen: Listen,
        *,
        grpc_port: int | None = None,
        galleries: Galleries | None = None,
        fetcher: Fetcher | None = None,
        drain_s: float = 30.0,
    ) -> None:
        listen.check(keyed=keys.required)
        self.service = service
        self._keys, self._listen, self._grpc_port, self._drain_s = keys, listen, grpc_port, drain_s
        self._fetcher = fetcher
        self._galleries = galleries or Galleries(None)
        self._front = make_front(
            make_app(service, keys, self._galleries, fetcher), listen, service.limits, drain_s=drain_s
        )
        self._lane: OpsThread | None = None
        self._grpc: GrpcFront | None = None
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> Serving:
        """Listen, then load the models, so that health says ``starting`` meanwhile; ready when it returns.

        Raises:
            ConfigError: It cannot listen there.
            FacefleetError: The engine cannot be used.
        """
        if self._listen.ops_port is not None:
            app = make_ops_app(self.service, self._keys, asyncio.get_running_loop())
            self._lane = OpsThread(app, self._listen, self.service.limits)
            await self._lane.start()
        self._serving = asyncio.create_task(_http(self._front))
        await _listening(self._front, self._serving)
        if self._grpc_port is not None:
            self._grpc = GrpcFront(self.service, self._keys, self._listen, self._grpc_port)
            await self._grpc.start()
        await self.service.start()
        return Serving(
            http=self._front.bound,
            ops=None if self._lane is None else self._lane.front.bound,
            grpc_port=None if self._grpc is None else self._grpc.port,
        )

    async def ended(self) -> None:
        """Wait until the front ends by itself."""
        assert self._serving is not None
        await asyncio.wait({self._serving})

    async def stop(self) -> None:
        """Not ready, no new connections, answer what is inside, give everything back.

        New requests are refused with ``connection: close`` for a moment first: a client with a kept connection learns
        that way that it has to go elsewhere, and not by a connection that ends under its next request.
        """
        listening = self.service.state == "ready"
        self.service.begin_drain()
        if listening:
            await asyncio.sleep(min(_LINGER_S, self._drain_s))
        self._front.should_exit = True
        ends: list[asyncio.Task[None]] = [] if self._serving is None else [self._serving]
        if self._grpc is not None:
            ends.append(asyncio.create_task(self._grpc.stop(self._drain_s)))
        await asyncio.gather(*ends, return_exceptions=True)
        await self.service.stop(deadline_s=self._drain_s)
        await asyncio.to_thread(self._galleries.close)
        if self._fetcher is not None:
            self._fetcher.close()
        if self._lane is not None:
            await asyncio.to_thread(self._lane.stop)


async def serve(server: Server, *, started: Callable[[Serving], None] = lambda _: None) -> None:
    """Serve until a signal says to stop; every request that was taken in has its answer then.

    Raises:
        ConfigError: It cannot listen there.
        FacefleetError: The engine cannot be used.
    """
    stop = asyncio.Event()
    sys.setswitchinterval(_SWITCH_S)
    with _signals(asyncio.get_running_loop(), server.service, stop):
        try:
            stopped = asyncio.create_task(stop.wait())
            starting = asyncio.create_task(server.start())
            await asyncio.wait({stopped, starting}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                serving = starting.result()
                # Modules, routes and models stay: without them a full collection takes 1 ms here, else 100.
                gc.collect()
                gc.freeze()
                started(serving)
                ended = asyncio.create_task(server.ended())
                await asyncio.wait({stopped, ended}, return_when=asyncio.FIRST_COMPLETED)
                ended.cancel()
            else:
                await asyncio.wait({starting})  # models that are being loaded cannot be interrupted
            stopped.cancel()
        finally:
            await server.stop()
            gc.unfreeze()


async def _http(front: object) -> None:
    try:
        await front.serve()  # type: ignore[attr-defined]
    except SystemExit:  # uvicorn's way to say that it cannot bind
        raise ConfigError(
            "cannot listen there", hint="is --port in use, or the unix socket's folder missing?"
        ) from None


async def _listening(front: object, serving: asyncio.Task[None]) -> None:
    while not front.started:  # type: ignore[attr-defined]
        if serving.done():
            serving.result()
            raise ConfigError("cannot listen there", hint="is --port in use?")
        await asyncio.sleep(0.01)


@contextlib.contextmanager
def _signals(loop: asyncio.AbstractEventLoop, service: Service, stop: asyncio.Event) -> Iterator[None]:
    tasks: set[asyncio.Task[None]] = set()

    async def reload() -> None:
        try:
            await service.reload()
            _log.warning("reloaded: %s", service.info().get("pack"))
        except FacefleetError as error:
            _log.error("not reloaded, the old pack stays: %s", error)  # a message for operators

    def on_hangup() -> None:
        task = asyncio.ensure_future(reload())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def on_stop() -> None:
        service.begin_drain()
        stop.set()

    handlers = {signal.SIGTERM: on_stop, signal.SIGINT: on_stop, signal.SIGHUP: on_hangup}
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)
