"""REST: faces of one picture, of many, verification, what is running, and the call that InsightFace-REST has."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive

from facefleet.errors import FacefleetError, NoFaceError, RequestError
from facefleet.server.errors import problem_of
from facefleet.server.http import schema
from facefleet.server.http.answers import ARROW, NDJSON, Embeddings, answer, arrow, faces_tree, line
from facefleet.server.http.bodies import Body, body_of
from facefleet.server.http.callers import Asked, Reader, unless_gone
from facefleet.server.service import Service
from facefleet.server.values import Answer, Ask
from facefleet.telemetry.record import outcome_of
from facefleet.types import FaceRecord, Faces

router = APIRouter(prefix="/v1", tags=["faces"], responses=schema.PROBLEMS)
Coding = Annotated[Embeddings, Query(description="How embeddings are written; `none` does not compute them")]


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


@router.post(
    "/faces",
    summary="Every face of one picture",
    response_model=schema.FacesAnswer,
    responses={200: schema.FACES_TYPES},
    openapi_extra=schema.body("image/*", "application/octet-stream", schema={"image": schema.JPEG_BASE64}),
)
async def faces(
    request: Request,
    caller: Reader,
    ask: Asked,
    embeddings: Coding = "float",
    max_faces: Annotated[int, Query(ge=0, le=100_000, description="Most faces of the answer; 0: all")] = 0,
    require_face: Annotated[bool, Query(description="Whether a picture without a face is an error")] = False,
    draw: Annotated[bool, Query(description="Answer with the picture and its faces drawn, a JPEG")] = False,
) -> Response:
    """Detect, align and embed. A picture without a face is answered with an empty list."""
    service = _service(request)
    caller.take()
    ask = replace(ask, embed=embeddings != "none" and not draw)
    async with body_of(request, service.limits, service.room) as body:
        data = await body.image()
        found = await unless_gone(request, service.analyze(data, ask))
        if require_face and not len(found):
            raise NoFaceError(
                "the picture shows no face", hint=f"the best rejected detector score was {found.best_rejected:.2f}"
            )
        if draw:
            return Response(await service.draw(data, found), media_type="image/jpeg")
    accept = request.headers.get("accept", "")
    if ARROW in accept:
        return arrow(found, service.info(), most=max_faces)
    return answer(faces_tree("image", found, embeddings=embeddings, most=max_faces), accept)


@router.post(
    "/faces:batch",
    summary="Every face of many pictures, answered as they are ready",
    responses={
        200: {"description": "JSON lines: an item each, last the totals", "content": {NDJSON: {}}},
    },
    openapi_extra=schema.body(NDJSON),
    response_class=StreamingResponse,
)
async def batch(request: Request, caller: Reader, ask: Asked, embeddings: Coding = "float") -> StreamingResponse:
    """Send parts of a form, or lines `{"id": "a", "image": "<base64>"}`.

    Each line of the answer has `index` and `id`, and either `result` or `error`; the last one has `totals`, and `error`
    where the request itself was cut short. Use `x-timeout-ms` for the deadline of the whole.
    """
    service = _service(request)
    caller.take(0)
    ask = replace(ask, embed=embeddings != "none")
    read = asyncio.Event()
    lines = _batch(request, service, caller, ask, embeddings, read)
    first = await anext(lines)  # errors that are known by now have a status

    async def all_lines() -> AsyncIterator[bytes]:
        yield first
        async for each in lines:
            yield each

    return _WhileRead(all_lines(), read)


class _WhileRead(StreamingResponse):
    """Lines that are answered while the body is still being read.

    A message of the client goes to whoever asks for it, so the watch for its going away begins when the body has ended.
    Until then its reader finds out.
    """

    def __init__(self, content: AsyncIterator[bytes], read: asyncio.Event) -> None:
        super().__init__(content, media_type=NDJSON)
        self._read = read

    async def listen_for_disconnect(self, receive: Receive) -> None:
        await self._read.wait()
        await super().listen_for_disconnect(receive)


async def _batch(
    request: Request, service: Service, caller: Reader, ask: Ask, embeddings: Embeddings, read: asyncio.Event
) -> AsyncIterator[bytes]:
    totals: Counter[str] = Counter(ok=0, no_face=0, failed_retryable=0, failed_permanent=0)
    request_id = request.state.request_id
    ended: FacefleetError | None = None
    async with body_of(request, service.limits, service.room) as body:
        async for each in service.stream(_counted(body, caller, read), ask):
            if isinstance(each, FacefleetError):
                if not totals.total():
                    raise each
                ended = each
                continue
            yield line(_item(each, totals, embeddings, request_id))
    tree: dict[str, Any] = {"totals": {**totals, "items": totals.total()}}
    if ended is not None:
        tree["error"] = problem_of(ended, request_id=request_id)
    yield line(tree)


async def _counted(body: Body, caller: Reader, read: asyncio.Event) -> AsyncIterator[tuple[str, bytes]]:
    try:
        async for each in body.images():
            await caller.pace()  # a batch is slowed down, not refused
            yield each
    finally:
        read.set()


def _item(each: Answer, totals: Counter[str], embeddings: Embeddings, request_id: str) -> dict[str, Any]:
    """One line; counted in exactly one of the four totals."""
    head: dict[str, Any] = {"index": each.index, "id": each.id}
    if each.outcome.error is None:
        tree = faces_tree(each.id, each.outcome.unwrap(), embeddings=embeddings)
        totals[tree["status"]] += 1
        return {**head, "status": tree["status"], "result": tree}
    error = each.outcome.error
    kind = outcome_of(error)
    status = kind if kind.startswith("failed") else "failed_retryable"
    totals[status] += 1
    return {**head, "status": status, "error": problem_of(error, request_id=request_id)}


@router.post(
    "/verify",
    summary="Are two pictures of the same person?",
    response_model=schema.VerifyAnswer,
    openapi_extra=schema.body(schema={"first": schema.JPEG_BASE64, "second": schema.JPEG_BASE64}),
)
async def verify(
    request: Request,
    caller: Reader,
    ask: Asked,
    threshold: Annotated[float | None, Query(gt=-1, lt=1, description="Least cosine; default: the pack's")] = None,
) -> Response:
    """Compare the largest faces of two pictures: two parts of a form, or base64."""
    service = _service(request)
    caller.take(2)
    async with body_of(request, service.limits, service.room) as body:
        first, second = await body.pair()
        found = await unless_gone(request, service.compare(first, second, ask, threshold=threshold))
    tree = {
        "same": found.same,
        "cosine": round(found.cosine, 6),
        "threshold": found.threshold,
        "metric": "cosine",
        "faces": [
            {"box": [round(float(value), 2) for value in face.box], "score": round(face.score, 4)}
            for face in found.faces
        ],
    }
    return answer(tree, request.headers.get("accept", ""))


@router.get("/info", summary="What is running, and its limits", response_model=schema.InfoAnswer)
async def info(request: Request, caller: Reader) -> Response:
    """Versions, pack and licence, devices, limits."""
    del caller
    service = _service(request)
    return answer({**service.info(), "limits": dataclasses.asdict(service.limits)}, request.headers.get("accept", ""))


extract_router = APIRouter(tags=["compatibility"], responses=schema.PROBLEMS)


@extract_router.post("/extract", summary="As InsightFace-REST")
async def extract(request: Request, caller: Reader, ask: Asked) -> Response:
    """`{"images": {"data": ["<base64>", ...]}}`; options: see docs/how-to/serve.md."""
    service = _service(request)
    started = time.perf_counter()
    async with body_of(request, service.limits, service.room) as body:
        tree = await body.json(service.limits.max_json_bytes)
        images = tree.get("images")
        texts = images.get("data") if isinstance(images, dict) else None
        if not isinstance(texts, list) or not texts:
            raise RequestError("images.data is no list of base64 texts", hint="URLs are not fetched")
        service.limits.check_images(len(texts))
        caller.take(len(texts))
        options = {"vec": bool(tree.get("extract_embedding", True)), "points": bool(tree.get("return_landmarks"))}
        ask = replace(ask, embed=options["vec"])

        async def items() -> AsyncIterator[tuple[str, bytes]]:
            for number, text in enumerate(texts):
                yield str(number), await body.base64(text, f"images.data[{number}]")

        found: list[dict[str, Any]] = [{}] * len(texts)
        async for each in service.stream(items(), ask):
            if isinstance(each, FacefleetError):
                raise each
            found[each.index] = _extracted(each, started, options)
    took_ms = (time.perf_counter() - started) * 1000
    return answer({"took": {"total_ms": took_ms}, "data": found})


def _extracted(each: Answer, started: float, options: dict[str, bool]) -> dict[str, Any]:
    took_ms = (time.perf_counter() - started) * 1000
    if each.outcome.error is not None:
        return {"status": "failed", "took_ms": took_ms, "traceback": each.outcome.error.message, "faces": []}
    found: Faces = each.outcome.unwrap()
    return {"status": "ok", "took_ms": took_ms, "faces": [_face(face, options) for face in found]}


def _face(face: FaceRecord, options: dict[str, bool]) -> dict[str, Any]:
    tree: dict[str, Any] = {
        "num": face.index,
        "det": True,
        "prob": face.score,
        "bbox": face.faces.boxes_int[face.index].tolist(),
        "size": int(max(0.0, float(face.box[2] - face.box[0]))),
    }
    if options["points"] and np.isfinite(face.landmarks).all():
        tree["landmarks"] = face.landmarks.tolist()
    if options["vec"] and face.status == 0:
        tree |= {"norm": face.norm, "vec": face.embedding.tolist()}
    return tree
