"""Health, metrics and administration: the lane that stays quick, on a listener and a thread of its own.

Reads values only, so it may run in another thread than the service; a reload is handed to the service's loop.
"""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from facefleet.errors import FacefleetError
from facefleet.server.http import schema
from facefleet.server.http.answers import answer, problem
from facefleet.server.service import Service

router = APIRouter(tags=["health"])
ops = APIRouter(tags=["operation"])
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@router.get("/v1/health/live", summary="Does it run?", response_model=schema.HealthAnswer)
async def live(request: Request) -> Response:
    """503 when the process has to be started again."""
    service: Service = request.app.state.service
    return answer({"live": service.live}, status=200 if service.live else 503)


@router.get(
    "/v1/health/ready",
    summary="Should requests come here?",
    response_model=schema.HealthAnswer,
    responses={503: {"description": "Not now; says why.", "model": schema.HealthAnswer}},
)
async def ready(request: Request) -> Response:
    """503 while starting, draining, or while nothing is answered."""
    service: Service = request.app.state.service
    reason = service.reason
    tree: dict[str, Any] = {"ready": not reason, "reason": reason or None}
    return answer(tree, status=503 if reason else 200)


@ops.get("/metrics", summary="Metrics in Prometheus' text format")
async def metrics() -> Response:
    """What docs/metrics.md lists."""
    from facefleet.telemetry.record import render

    return Response(await asyncio.to_thread(render), media_type=_METRICS_TYPE)


@ops.post("/admin/reload", summary="Read the settings again and change over without losing a request")
async def reload(request: Request) -> Response:
    """As SIGHUP. Needs a key with the scope admin, where keys are in use."""
    state = request.app.state
    try:
        if state.keys.required:
            header = request.headers.get("authorization", "")
            bearer = header[7:] if header[:7].lower() == "bearer " else None
            state.keys.caller(request.headers.get("x-api-key") or bearer).need("admin")
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(state.service.reload(), state.loop))
    except FacefleetError as error:
        return problem(error)
    return answer({"reloaded": True, **state.service.info()})
