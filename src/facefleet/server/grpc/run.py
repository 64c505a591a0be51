"""KServe v2 over gRPC: the servicer and its server, in the service's event loop.

Owns the way from errors to gRPC statuses; a deadline of the call is the deadline of its pictures, and a call that is
cancelled takes its pictures out of the queue.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import grpc
import numpy as np
from google.protobuf.json_format import ParseDict
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from facefleet.errors import ConfigError, DeadlineError, FacefleetError, InternalError, RequestError
from facefleet.server.asking import make_ask
from facefleet.server.auth import Caller, Keys
from facefleet.server.errors import retry_after_s, status_of
from facefleet.server.kserve import DTYPES, Model, Models, datatype_of, from_raw, server_metadata, to_raw
from facefleet.server.listen import Listen
from facefleet.server.service import Service
from facefleet.server.values import Ask
from facefleet.telemetry.record import REQUESTS

T = TypeVar("T")
_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    413: grpc.StatusCode.INVALID_ARGUMENT,
    415: grpc.StatusCode.INVALID_ARGUMENT,
    422: grpc.StatusCode.INVALID_ARGUMENT,
    409: grpc.StatusCode.FAILED_PRECONDITION,
    424: grpc.StatusCode.UNAVAILABLE,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    499: grpc.StatusCode.CANCELLED,
    503: grpc.StatusCode.UNAVAILABLE,
}
_CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


def grpc_code(error: FacefleetError | InternalError) -> grpc.StatusCode:
    """The gRPC status of an error."""
    if isinstance(error, DeadlineError):
        return grpc.StatusCode.DEADLINE_EXCEEDED
    return _CODES.get(status_of(error), grpc.StatusCode.INTERNAL)


class Servicer(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]  # generated, untyped
    """The calls of the protocol; what is not here answers UNIMPLEMENTED."""

    def __init__(self, service: Service, keys: Keys, models: Models) -> None:
        self._service = service
        self._keys = keys
        self._models = models

    async def ServerLive(self, request: Any, context: Any) -> Any:  # noqa: ANN401, ARG002, D102, N802  # generated
        return pb.ServerLiveResponse(live=self._service.live)

    async def ServerReady(self, request: Any, context: Any) -> Any:  # noqa: ANN401, ARG002, D102, N802
        return pb.ServerReadyResponse(ready=self._service.ready)

    async def ModelReady(self, request: Any, context: Any) -> Any:  # noqa: ANN401, D102, N802
        async with self._call(context, "ModelReady"):
            self._models.get(request.name, request.version)
            return pb.ModelReadyResponse(ready=self._service.ready)

    async def ServerMetadata(self, request: Any, context: Any) -> Any:  # noqa: ANN401, ARG002, D102, N802
        async with self._call(context, "ServerMetadata"):
            return pb.ServerMetadataResponse(**server_metadata())

    async def ModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: ANN401, D102, N802
        async with self._call(context, "ModelMetadata"):
            model = self._models.get(request.name, request.version)
            return ParseDict(model.metadata(), pb.ModelMetadataResponse())

    async def ModelConfig(self, request: Any, context: Any) -> Any:  # noqa: ANN401, D102, N802
        async with self._call(context, "ModelConfig"):
            model = self._models.get(request.name, request.version)
            return ParseDict({"config": model.config()}, pb.ModelConfigResponse())

    async def ModelStatistics(self, request: Any, context: Any) -> Any:  # noqa: ANN401, D102, N802
        async with self._call(context, "ModelStatistics"):
            chosen = [self._models.get(request.name, request.version)] if request.name else list(self._models)
            return ParseDict({"model_stats": [model.statistics() for model in chosen]}, pb.ModelStatisticsResponse())

    async def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: ANN401, D102, N802
        async with self._call(context, "ModelInfer") as caller:
            return await self._infer(request, context, caller)

    async def ModelStreamInfer(self, requests: Any, context: Any) -> AsyncIterator[Any]:  # noqa: ANN401, D102, N802
        async with self._call(context, "ModelStreamInfer") as caller:
            async for request in requests:
                try:
                    yield pb.ModelStreamInferResponse(infer_response=await self._infer(request, context, caller))
                except FacefleetError as error:
                    yield pb.ModelStreamInferResponse(error_message=str(error), infer_response={"id": request.id})

    async def _infer(self, request: Any, context: Any, caller: Caller) -> Any:  # noqa: ANN401
        room = self._service.room
        room.enter()
        try:
            model = self._models.get(request.model_name, request.model_version)
            inputs = _inputs(request)
            caller.take(sum(len(tensor) if tensor.ndim else 1 for tensor in inputs.values()))
            wanted = [output.name for output in request.outputs]
            outputs = await self._models.infer(model, inputs, wanted, self._ask(context, caller))
        finally:
            room.leave()
        return _reply(request, model, outputs)

    def _ask(self, context: Any, caller: Caller) -> Ask:  # noqa: ANN401
        found = dict(context.invocation_metadata() or ())
        timeout_ms = found.get("x-timeout-ms")
        remaining = context.time_remaining()
        if timeout_ms is None and remaining is not None:
            if remaining <= 0:
                raise DeadlineError("the deadline of the call has passed")
            timeout_ms = str(min(remaining, self._service.limits.max_timeout_s) * 1000)
        return make_ask(self._service, caller, found.get("x-priority"), timeout_ms)

    @contextlib.asynccontextmanager
    async def _call(self, context: Any, name: str) -> AsyncIterator[Caller]:  # noqa: ANN401
        """Who calls; errors become statuses."""
        started = time.perf_counter()
        status = "OK"
        try:
            found = dict(context.invocation_metadata() or ())
            bearer = found.get("authorization", "")
            key = found.get("x-api-key") or (bearer[7:] if bearer[:7].lower() == "bearer " else None)
            caller = self._keys.caller(key)
            caller.need("read")
            yield caller
        except (FacefleetError, InternalError) as error:
            status = grpc_code(error).name
            await _abort(context, error)
        finally:
            REQUESTS.answered("grpc", name, status, time.perf_counter() - started)


async def _abort(context: Any, error: FacefleetError | InternalError) -> NoReturn:  # noqa: ANN401
    trailing = [("facefleet-code", error.code)]
    after = retry_after_s(error)
    if after is not None:
        trailing.append(("retry-after-ms", str(int(after * 1000))))
    context.set_trailing_metadata(tuple(trailing))
    text = "something went wrong here; see the log" if isinstance(error, InternalError) else str(error)
    await context.abort(grpc_code(error), text)
    raise AssertionError("abort raises")


def _inputs(request: Any) -> dict[str, NDArray[Any]]:  # noqa: ANN401
    raws = list(request.raw_input_contents)
    if raws and len(raws) != len(request.inputs):
        raise RequestError(f"{len(raws)} raw tensors for {len(request.inputs)} inputs")
    found = {}
    for number, each in enumerate(request.inputs):
        shape = list(each.shape)
        if each.datatype not in DTYPES or len(shape) > 8:
            raise RequestError("an input without a usable datatype and shape")
        if raws:
            found[each.name] = from_raw(raws[number], each.datatype, shape)
            continue
        values = getattr(each.contents, _CONTENTS.get(each.datatype, "bytes_contents"))
        try:
            if each.datatype == "BYTES":
                tensor = np.empty(len(values), np.object_)
                tensor[:] = list(values)
            else:
                tensor = np.array(values, DTYPES[each.datatype])
            found[each.name] = tensor.reshape(shape)
        except (ValueError, OverflowError) as error:
            raise RequestError(f"contents do not fit {each.datatype} {shape}") from error
    return found


def _reply(request: Any, model: Model, outputs: dict[str, NDArray[Any]]) -> Any:  # noqa: ANN401
    reply = pb.ModelInferResponse(model_name=model.name, model_version="1", id=request.id)
    for name, tensor in outputs.items():
        output = reply.outputs.add()
        output.name, output.datatype = name, datatype_of(tensor)
        output.shape.extend(tensor.shape)
        reply.raw_output_contents.append(to_raw(tensor))
    return reply


class GrpcFront:
    """The gRPC server.

    Args:
        service: The service.
        keys: Who may call.
        listen: Host and TLS, as of HTTP.
        port: Port; 0: any.
    """

    def __init__(self, service: Service, keys: Keys, listen: Listen, port: int) -> None:
        limit = service.limits.max_body_bytes
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", min(limit, 2**31 - 1)),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),
                ("grpc.max_metadata_size", 32 << 10),
            ],
            maximum_concurrent_rpcs=service.limits.max_requests,
        )
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(
            Servicer(service, keys, Models(service)), self._server
        )
        host = f"[{listen.host}]" if ":" in listen.host else listen.host
        try:
            if listen.certfile is not None and listen.keyfile is not None:
                pair = (Path(listen.keyfile).read_bytes(), Path(listen.certfile).read_bytes())
                self.port = self._server.add_secure_port(f"{host}:{port}", grpc.ssl_server_credentials([pair]))
            else:
                self.port = self._server.add_insecure_port(f"{host}:{port}")
        except (RuntimeError, OSError) as error:
            raise ConfigError(f"gRPC cannot listen on {host}:{port}", hint="is --grpc-port in use?") from error

    async def start(self) -> None:
        """Listen."""
        await self._server.start()

    async def stop(self, drain_s: float) -> None:
        """No new calls; those inside are finished until then."""
        await self._server.stop(drain_s)
