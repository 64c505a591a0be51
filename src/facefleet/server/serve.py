"""The whole server: service, fronts, signals. Owns the order of start and end; runs in the main thread's event loop.

SIGTERM and SIGINT: not ready, no new connections or requests, what is inside is finished, exit. SIGHUP: reload.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from facefleet.errors import ConfigError, FacefleetError
from facefleet.server.auth import Keys
from facefleet.server.grpc.run import GrpcFront
from facefleet.server.http.app import make_app, make_ops_app
from facefleet.server.http.run import OpsThread, make_front
from facefleet.server.listen import Listen
from facefleet.server.service import Service

_log = logging.getLogger(__name__)


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


async def serve(
    service: Service,
    keys: Keys,
    listen: Listen,
    *,
    grpc_port: int | None = None,
    drain_s: float = 30.0,
    started: Callable[[Serving], None] = lambda _: None,
) -> None:
    """Serve until a signal says to stop; every request that was taken in has its answer then.

    The operator's lane and the front listen before the models are loaded, so that health says ``starting``.

    Raises:
        ConfigError: It cannot listen there.
        FacefleetError: The engine cannot be used.
    """
    listen.check(keyed=keys.required)
    loop = asyncio.get_running_loop()
    front = make_front(make_app(service, keys), listen, service.limits, drain_s=drain_s)
    lane = None
    grpc = None
    serving: asyncio.Task[None] | None = None
    with _signals(loop, service, front_stop := asyncio.Event()):
        try:
            if listen.ops_port is not None:
                lane = OpsThread(make_ops_app(service, keys, loop), listen, service.limits)
                await lane.start()
            serving = asyncio.create_task(_http(front))
            await _listening(front, serving)
            if grpc_port is not None:
                grpc = GrpcFront(service, keys, listen, grpc_port)
                await grpc.start()
            await service.start()
            started(
                Serving(
                    http=front.bound,
                    ops=None if lane is None else lane.front.bound,
                    grpc_port=None if grpc is None else grpc.port,
                )
            )
            stopped = asyncio.create_task(front_stop.wait())
            await asyncio.wait({stopped, serving}, return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
        finally:
            service.begin_drain()
            front.should_exit = True
            ends = [serving] if serving is not None else []
            if grpc is not None:
                ends.append(asyncio.create_task(grpc.stop(drain_s)))
            await asyncio.gather(*ends, return_exceptions=True)
            await service.stop(deadline_s=drain_s)
            if lane is not None:
                await asyncio.to_thread(lane.stop)


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
