"""What surrounds every request: its id, its place in the house, its line in the log, its metrics.

A plain ASGI middleware, in the event loop. Health has no place to take, so that it answers under any load. Logs name
the route, the status and the time, never what was sent or found.
"""

from __future__ import annotations

import logging
import re
import time
import uuid

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from facefleet.errors import OverloadError
from facefleet.server.http.answers import problem
from facefleet.server.service import Service
from facefleet.telemetry import request as named
from facefleet.telemetry.record import REQUESTS

_log = logging.getLogger(__name__)
# Refused here, before anything is read, when the engine is full: in an overload most requests go no further.
_ONE_PICTURE = ("/v1/faces", "/v1/verify", "/v2/models/")
_ENDS = ("/faces", "/verify", "/infer")
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Lane:
    """The middleware.

    Args:
        app: What answers.
        service: Its room is where requests take a place.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._room = service.room
        self._engine = service.engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        scope.setdefault("state", {})["request_id"] = request_id
        started = time.perf_counter()
        status = 500
        coming: int | None = None

        async def tell(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [
                    *message.get("headers", []),
                    (b"x-request-id", request_id.encode()),
                    *([(b"connection", b"close")] if self._room.closed else []),
                ]
            await send(message)

        path: str = scope["path"]
        free = path.startswith(("/v1/health", "/v2/health"))
        with named(request_id):
            try:
                if not free:
                    try:
                        if path.startswith(_ONE_PICTURE) and path.endswith(_ENDS):
                            now = time.monotonic()
                            self._engine.check_room(coming=self._room.coming(now))
                            scope["state"]["coming"] = coming = self._room.announce(now)
                        self._room.enter()
                    except OverloadError as error:
                        await problem(error, request_id=request_id)(scope, receive, tell)
                        return
                try:
                    await self._app(scope, receive, tell)
                finally:
                    if not free:
                        self._room.leave()
            finally:
                self._room.came(coming)
                took = time.perf_counter() - started
                route = getattr(scope.get("route"), "path", "other")
                REQUESTS.answered("http", route, status, took)
                if not free:
                    _log.info("request", extra={"route": route, "status": status, "latency_s": took})


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            text = value.decode("latin-1")
            if _ID.fullmatch(text):
                return str(text)
    return uuid.uuid4().hex
