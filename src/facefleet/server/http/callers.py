"""Who asks and how: the API key, priority and deadline of a request; and its end when the client goes away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Header, Request, Security
from fastapi.security import APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer

from facefleet.errors import CancelledError
from facefleet.server.asking import make_ask
from facefleet.server.auth import Caller, Keys
from facefleet.server.service import Service
from facefleet.server.values import Ask

T = TypeVar("T")


async def caller_of(
    request: Request,
    key: Annotated[str | None, Security(APIKeyHeader(name="x-api-key", auto_error=False))] = None,
    bearer: Annotated[HTTPAuthorizationCredentials | None, Security(HTTPBearer(auto_error=False))] = None,
) -> Caller:
    """The caller, who may read.

    Raises:
        UnauthorizedError: A key is needed and there is none that is known.
        ForbiddenError: It may not read.
    """
    keys: Keys = request.app.state.keys
    caller = keys.caller(key or (bearer.credentials if bearer else None))
    caller.need("read")
    return caller


Reader = Annotated[Caller, Depends(caller_of)]


async def ask_of(
    request: Request,
    caller: Reader,
    x_priority: Annotated[str | None, Header(description="`interactive` (default) or `bulk`")] = None,
    x_timeout_ms: Annotated[
        str | None, Header(description="Deadline in milliseconds; then nothing more is done")
    ] = None,
) -> Ask:
    """Priority and deadline from the headers.

    Raises:
        RequestError: One of them is malformed.
    """
    service: Service = request.app.state.service
    return make_ask(service, caller, x_priority, x_timeout_ms)


Asked = Annotated[Ask, Depends(ask_of)]


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Run `work`, and cancel it when the client goes away. The body must have been read.

    Raises:
        CancelledError: It went away.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise CancelledError("the client went away")
    finally:
        watcher.cancel()
        if not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
