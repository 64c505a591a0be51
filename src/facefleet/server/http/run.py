"""Listening: the front in this thread's event loop, the operator's lane in a thread of its own.

Owns sockets, TLS, slow clients and the order of an end: not ready, no new connections, what is inside is finished.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from facefleet.errors import ConfigError
from facefleet.server.limits import Limits
from facefleet.server.listen import Listen

_log = logging.getLogger(__name__)
_MAX_HEADER_BYTES = 32 << 10
_KEEP_ALIVE_S = 15


def patient_protocol(limits: Limits) -> type[H11Protocol]:
    """HTTP/1.1 that closes connections whose headers do not come in time, as those of slow-loris clients."""

    class Patient(H11Protocol):
        """See `patient_protocol`."""

        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:  # noqa: ANN401  # as uvicorn has it
            super().connection_made(transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            if self._timer is not None:
                self._timer.cancel()
            super().connection_lost(exc)

        def _watch(self) -> None:
            waiting = self.cycle is None or self.cycle.response_complete
            if not waiting and self._timer is not None:
                self._timer.cancel()
                self._timer = None
            elif waiting and self._timer is None:
                self._timer = self.loop.call_later(limits.header_timeout_s, self._late)

        def _late(self) -> None:
            self._timer = None
            if (self.cycle is None or self.cycle.response_complete) and not self.transport.is_closing():
                self.transport.close()

    return Patient


class Front(uvicorn.Server):
    """uvicorn, whose signals are the caller's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:  # noqa: ANN401  # as uvicorn has it
        """Leave signals alone."""
        yield

    @property
    def bound(self) -> Any:  # noqa: ANN401  # (host, port), or a path
        """Where it listens; after it started."""
        return self.servers[0].sockets[0].getsockname()


def make_front(app: Any, listen: Listen, limits: Limits, *, drain_s: float) -> Front:  # noqa: ANN401  # ASGI
    """The front, not started.

    Args:
        app: From `make_app`.
        listen: Where.
        limits: Of headers and connections.
        drain_s: What is inside at the end has so long.
    """
    address: dict[str, Any] = {"uds": listen.uds} if listen.uds else {"host": listen.host, "port": listen.port}
    return Front(
        uvicorn.Config(
            app,
            **address,
            http=patient_protocol(limits),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            h11_max_incomplete_event_size=_MAX_HEADER_BYTES,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=int(drain_s) + 1,
            ssl_certfile=listen.certfile,
            ssl_keyfile=listen.keyfile,
            backlog=2048,
        )
    )


class OpsThread:
    """The operator's lane in a thread with its own event loop.

    Args:
        app: From `make_ops_app`.
        listen: Where.
        limits: Of headers.
    """

    def __init__(self, app: Any, listen: Listen, limits: Limits) -> None:  # noqa: ANN401  # ASGI
        listen = Listen(host=listen.ops_host, port=listen.ops_port or 0)
        self.front = make_front(app, listen, limits, drain_s=1.0)
        self._thread = threading.Thread(target=self._run, name="facefleet-ops", daemon=True)
        self._failed: BaseException | None = None

    async def start(self) -> None:
        """Start it and wait until it listens.

        Raises:
            ConfigError: It cannot listen there.
        """
        self._thread.start()
        while not self.front.started:
            if not self._thread.is_alive():
                raise ConfigError("the operator's lane cannot listen", hint="is --ops-port in use?")
            await asyncio.sleep(0.01)

    def stop(self) -> None:
        """End it."""
        self.front.should_exit = True
        self._thread.join(5.0)

    def _run(self) -> None:
        with contextlib.suppress(SystemExit):  # uvicorn's way to say that it cannot bind
            asyncio.run(self.front.serve())
