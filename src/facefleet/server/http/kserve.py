"""KServe v2 over HTTP, on its usual paths, with the binary tensor extension. Decodes tensors, no picture."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from numpy.typing import NDArray
from starlette.responses import Response

from facefleet.errors import RequestError
from facefleet.server.http import schema
from facefleet.server.http.answers import answer
from facefleet.server.http.bodies import body_of
from facefleet.server.http.callers import Asked, Reader, unless_gone
from facefleet.server.kserve import DTYPES, Models, datatype_of, from_raw, server_metadata, to_raw

router = APIRouter(prefix="/v2", tags=["kserve"], responses=schema.PROBLEMS)
_HEADER = "inference-header-content-length"


def _models(request: Request) -> Models:
    models: Models = request.app.state.models
    return models


@router.get("/health/live", summary="Does it run?")
async def live(request: Request) -> Response:
    """200 or 503."""
    return Response(status_code=200 if request.app.state.service.live else 503)


@router.get("/health/ready", summary="Should requests come here?")
async def ready(request: Request) -> Response:
    """200 or 503."""
    return Response(status_code=200 if request.app.state.service.ready else 503)


@router.get("", summary="Name, version, extensions")
async def metadata(caller: Reader) -> Response:
    """The server."""
    del caller
    return answer(server_metadata())


@router.get("/models/stats", summary="Statistics of all models")
async def all_statistics(request: Request, caller: Reader) -> Response:
    """As Triton's."""
    del caller
    return answer({"model_stats": [model.statistics() for model in _models(request)]})


@router.get("/models/{name}/versions/{version}/ready", summary="Is a model ready?")
@router.get("/models/{name}/ready", summary="Is a model ready?")
async def model_ready(request: Request, caller: Reader, name: str, version: str = "") -> Response:
    """200 or 503."""
    del caller
    _models(request).get(name, version)
    return Response(status_code=200 if request.app.state.service.ready else 503)


@router.get("/models/{name}/versions/{version}/config", summary="Configuration of a model")
@router.get("/models/{name}/config", summary="Configuration of a model")
async def config(request: Request, caller: Reader, name: str, version: str = "") -> Response:
    """As far as clients read it."""
    del caller
    return answer(_models(request).get(name, version).config())


@router.get("/models/{name}/versions/{version}/stats", summary="Statistics of a model")
@router.get("/models/{name}/stats", summary="Statistics of a model")
async def statistics(request: Request, caller: Reader, name: str, version: str = "") -> Response:
    """As Triton's."""
    del caller
    return answer({"model_stats": [_models(request).get(name, version).statistics()]})


@router.get("/models/{name}/versions/{version}", summary="Inputs and outputs of a model")
@router.get("/models/{name}", summary="Inputs and outputs of a model")
async def model_metadata(request: Request, caller: Reader, name: str, version: str = "") -> Response:
    """Names, types, shapes."""
    del caller
    return answer(_models(request).get(name, version).metadata())


@router.post("/models/{name}/versions/{version}/infer", summary="Run a model")
@router.post(
    "/models/{name}/infer",
    summary="Run a model",
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"type": "object"}}, "application/octet-stream": {}},
        }
    },
)
async def infer(request: Request, caller: Reader, ask: Asked, name: str, version: str = "") -> Response:
    """JSON tensors, or binary ones after a JSON header."""
    models, service = _models(request), request.app.state.service
    model = models.get(name, version)
    async with body_of(request, service.limits, service.room) as body:
        data = await body.whole(service.limits.max_body_bytes)
        header, rest = _split(data, request.headers.get(_HEADER))
        tree = await _tree(header)
        inputs = {str(each.get("name")): tensor for each, tensor in _inputs(tree, rest)}
        caller.take(sum(len(tensor) if tensor.ndim else 1 for tensor in inputs.values()))
        wanted = _wanted(tree)
        outputs = await unless_gone(request, models.infer(model, inputs, list(wanted), ask))
    binary = bool(_parameters(tree).get("binary_data_output", False))
    chosen = {key: wanted.get(key, {}).get("binary_data", binary) is True for key in outputs}
    return _reply(model.name, tree, outputs, chosen)


def _split(data: bytes, length: str | None) -> tuple[bytes, memoryview]:
    if length is None:
        return data, memoryview(b"")
    if not length.isdigit() or int(length) > len(data):
        raise RequestError(f"{_HEADER} {length[:20]!r} does not fit the body")
    return data[: int(length)], memoryview(data)[int(length) :]


async def _tree(header: bytes) -> dict[str, Any]:
    try:
        tree = json.loads(header) if len(header) < 256 << 10 else await asyncio.to_thread(json.loads, header)
    except (ValueError, RecursionError) as error:
        raise RequestError("the request is not valid JSON") from error
    if not isinstance(tree, dict) or not isinstance(tree.get("inputs"), list):
        raise RequestError("the request has no list of inputs")
    return tree


def _parameters(tree: Any) -> dict[str, Any]:  # noqa: ANN401  # JSON
    found = tree.get("parameters") if isinstance(tree, dict) else None
    return found if isinstance(found, dict) else {}


def _wanted(tree: dict[str, Any]) -> dict[str, dict[str, Any]]:
    outputs = tree.get("outputs") or []
    if not isinstance(outputs, list) or not all(isinstance(each, dict) for each in outputs):
        raise RequestError("outputs is no list of objects")
    return {str(each.get("name")): _parameters(each) for each in outputs}


def _inputs(tree: dict[str, Any], rest: memoryview) -> list[tuple[dict[str, Any], NDArray[Any]]]:
    found = []
    for each in tree["inputs"]:
        shape = each.get("shape") if isinstance(each, dict) else None
        datatype = each.get("datatype") if isinstance(each, dict) else None
        good = isinstance(shape, list) and len(shape) <= 8 and all(type(side) is int for side in shape)
        if not good or not isinstance(datatype, str) or datatype not in DTYPES:
            raise RequestError("an input without a usable name, datatype and shape")
        assert isinstance(shape, list)
        size = _parameters(each).get("binary_data_size")
        if size is not None:
            if type(size) is not int or not 0 <= size <= len(rest):
                raise RequestError("binary_data_size does not fit the body")
            found.append((each, from_raw(rest[:size], datatype, shape)))
            rest = rest[size:]
        else:
            found.append((each, _from_json(each.get("data"), datatype, shape)))
    if len(rest):
        raise RequestError(f"{len(rest)} bytes after the last input")
    return found


def _from_json(data: Any, datatype: str, shape: list[int]) -> NDArray[Any]:  # noqa: ANN401  # JSON
    from base64 import b64decode

    try:
        if datatype != "BYTES":
            return np.array(data, DTYPES[datatype]).reshape(shape)
        flat = np.array(data, np.object_).reshape(-1)
        decoded = [b64decode(each["b64"] if isinstance(each, dict) else each, validate=True) for each in flat]
        tensor = np.empty(len(decoded), np.object_)
        tensor[:] = decoded
        return tensor.reshape(shape)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise RequestError(f"data does not fit {datatype} {shape}", hint="BYTES in JSON are base64") from error


def _reply(name: str, tree: dict[str, Any], outputs: dict[str, NDArray[Any]], binary: dict[str, bool]) -> Response:
    entries, raws = [], []
    for key, tensor in outputs.items():
        entry: dict[str, Any] = {"name": key, "datatype": datatype_of(tensor), "shape": list(tensor.shape)}
        if binary[key]:
            raws.append(to_raw(tensor))
            entry["parameters"] = {"binary_data_size": len(raws[-1])}
        elif tensor.dtype == np.object_:
            entry["data"] = [each.decode() for each in tensor.reshape(-1)]
        else:
            entry["data"] = [None if value != value else value for value in tensor.reshape(-1).tolist()]  # noqa: PLR0124  # NaN
        entries.append(entry)
    reply: dict[str, Any] = {"model_name": name, "model_version": "1", "outputs": entries}
    if isinstance(tree.get("id"), str):
        reply["id"] = tree["id"][:255]
    if not raws:
        return answer(reply)
    header = json.dumps(reply, separators=(",", ":")).encode()
    headers = {_HEADER: str(len(header))}
    return Response(header + b"".join(raws), media_type="application/octet-stream", headers=headers)
