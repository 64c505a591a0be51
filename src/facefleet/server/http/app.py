"""The two HTTP applications: the front, and the operator's lane. Owns how routes and errors are put together."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp

from facefleet import __version__
from facefleet.errors import FacefleetError, InternalError, NotFoundError, RequestError
from facefleet.server.auth import Keys
from facefleet.server.fetch import Fetcher
from facefleet.server.galleries import Galleries
from facefleet.server.http import faces, health, kserve, schema
from facefleet.server.http import galleries as gallery_routes
from facefleet.server.http.answers import problem
from facefleet.server.http.lane import Lane
from facefleet.server.kserve import Models
from facefleet.server.service import Service

_log = logging.getLogger(__name__)
_DESCRIPTION = "Faces of pictures: detected, aligned, embedded, compared. Errors are problem details (RFC 9457)."


def make_app(
    service: Service,
    keys: Keys | None = None,
    galleries: Galleries | None = None,
    fetcher: Fetcher | None = None,
) -> ASGIApp:
    """The front: REST, KServe v2 and health. No CORS, no metrics, nothing administrative."""
    app = FastAPI(title="facefleet", version=__version__, description=_DESCRIPTION)
    app.state.service = service
    app.state.keys = keys or Keys({})
    app.state.models = Models(service)
    app.state.fetcher = fetcher
    app.state.galleries = galleries or Galleries(None)
    for router in (faces.router, faces.extract_router, gallery_routes.router, kserve.router, health.router):
        app.include_router(router)
    _handle_errors(app)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return Lane(app, service)


def make_ops_app(service: Service, keys: Keys | None, loop: asyncio.AbstractEventLoop) -> FastAPI:
    """The operator's lane: health, metrics, reload.

    Args:
        service: The service.
        keys: Of those, ones with the scope admin may reload.
        loop: Where the service runs.
    """
    app = FastAPI(title="facefleet operation", version=__version__)
    app.state.service = service
    app.state.keys = keys or Keys({})
    app.state.loop = loop
    app.include_router(health.router)
    app.include_router(health.ops)
    _handle_errors(app)
    return app


def _handle_errors(app: FastAPI) -> None:
    async def typed(request: Request, error: Exception) -> Response:
        assert isinstance(error, (FacefleetError, InternalError))
        if isinstance(error, InternalError):
            _log.error("a bug", exc_info=error)
        return _problem(request, error)

    async def malformed(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first: dict[str, Any] = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return _problem(request, RequestError(f"{where}: {first['msg']}"))

    async def by_status(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 404:
            return _problem(request, NotFoundError("no such route", hint="GET /docs lists all routes"))
        response = _problem(request, RequestError(str(error.detail)))
        response.status_code = error.status_code
        response.headers.update(error.headers or {})
        return response

    async def bug(request: Request, error: Exception) -> Response:
        _log.error("a bug", exc_info=error)
        return _problem(request, InternalError(type(error).__name__))

    app.add_exception_handler(FacefleetError, typed)
    app.add_exception_handler(InternalError, typed)
    app.add_exception_handler(RequestValidationError, malformed)
    app.add_exception_handler(HTTPException, by_status)
    app.add_exception_handler(Exception, bug)


def _problem(request: Request, error: FacefleetError | InternalError) -> Response:
    kserve = request.url.path.startswith("/v2")
    return problem(error, request_id=getattr(request.state, "request_id", ""), kserve=kserve)


def _openapi(app: FastAPI) -> dict[str, Any]:
    """The description, with the schema of problems, which no route returns as its model."""
    if app.openapi_schema is None:
        tree = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        schemas = tree.setdefault("components", {}).setdefault("schemas", {})
        schemas["Problem"] = schema.Problem.model_json_schema()
        for path in tree["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None) if "400" not in operation["responses"] else None
        app.openapi_schema = tree
    return app.openapi_schema
