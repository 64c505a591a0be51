"""The models of the Open Inference Protocol (KServe v2), without HTTP or gRPC: metadata, tensors in, tensors out.

``face_pipeline`` takes encoded pictures (BYTES) and gives boxes, landmarks, scores and embeddings; ``face_detector``
takes uint8 RGB pictures and gives boxes, landmarks and scores; ``face_embedder`` takes aligned faces of 112 x 112.
The number of faces differs by picture, and tensors are rectangles: faces are padded with NaN up to the most of any
picture of the request, and ``num_faces`` says how many.

Owns totals for statistics; runs in the fronts' event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from facefleet import __version__
from facefleet.errors import FacefleetError, NotFoundError, OverloadError, RequestError
from facefleet.ops.align import SIDE_PX
from facefleet.server.service import Service
from facefleet.server.values import Ask
from facefleet.types import FaceChips, Faces, Outcome

SERVER: Final = "facefleet"
EXTENSIONS: Final = ("binary_tensor_data", "model_configuration", "statistics")
EMBEDDER: Final = "face_embedder"
MAX_BATCH: Final = 64
VERSION: Final = "1"
DTYPES: Final[Mapping[str, Any]] = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BYTES": np.object_,
}
Tensors = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output: shape without the batch, -1 where it varies."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    def batched(self) -> dict[str, Any]:
        """As metadata names it, with the batch."""
        return {"name": self.name, "datatype": self.datatype, "shape": [-1, *self.shape]}


@dataclass(slots=True)
class Totals:
    """What a model has done, for statistics; nanoseconds as the protocol has them."""

    requests: int = 0
    failures: int = 0
    images: int = 0
    success_ns: int = 0
    fail_ns: int = 0
    last_ms: int = 0


@dataclass(slots=True)
class Model:
    """A model of the protocol."""

    name: str
    input: TensorSpec
    outputs: tuple[TensorSpec, ...]
    totals: Totals = field(default_factory=Totals)

    def metadata(self) -> dict[str, Any]:
        """Name, versions, inputs and outputs."""
        return {
            "name": self.name,
            "versions": [VERSION],
            "platform": SERVER,
            "inputs": [self.input.batched()],
            "outputs": [output.batched() for output in self.outputs],
        }

    def config(self) -> dict[str, Any]:
        """Triton's model configuration, as far as clients read it."""

        def entry(spec: TensorSpec) -> dict[str, Any]:
            kind = "TYPE_STRING" if spec.datatype == "BYTES" else f"TYPE_{spec.datatype}"
            return {"name": spec.name, "data_type": kind, "dims": list(spec.shape)}

        return {
            "name": self.name,
            "platform": SERVER,
            "backend": SERVER,
            "max_batch_size": MAX_BATCH,
            "input": [entry(self.input)],
            "output": [entry(output) for output in self.outputs],
        }

    def statistics(self) -> dict[str, Any]:
        """What it has done."""
        done = self.totals
        untimed = {"count": done.requests, "ns": 0}  # clients look at the counts to see that a model was asked
        good = {"count": done.requests, "ns": done.success_ns}
        return {
            "name": self.name,
            "version": VERSION,
            "last_inference": done.last_ms,
            "inference_count": done.images,
            "execution_count": done.requests,
            "inference_stats": {
                "success": good,
                "fail": {"count": done.failures, "ns": done.fail_ns},
                "queue": untimed,
                "compute_input": untimed,
                "compute_infer": good,
                "compute_output": untimed,
            },
            "batch_stats": [],
        }


class Models:
    """The models of a service.

    Args:
        service: Ready when they are asked to infer.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        found = (
            TensorSpec("num_faces", "INT32", (1,)),
            TensorSpec("boxes", "FP32", (-1, 4)),
            TensorSpec("landmarks", "FP32", (-1, 5, 2)),
            TensorSpec("scores", "FP32", (-1,)),
            TensorSpec("status", "BYTES", (1,)),
        )
        embedded = TensorSpec("embeddings", "FP32", (-1, -1))
        self._models = {
            "face_pipeline": Model("face_pipeline", TensorSpec("image", "BYTES", (1,)), (*found, embedded)),
            "face_detector": Model("face_detector", TensorSpec("image", "UINT8", (-1, -1, 3)), found),
            EMBEDDER: Model(
                EMBEDDER,
                TensorSpec("faces", "UINT8", (SIDE_PX, SIDE_PX, 3)),
                (TensorSpec("embeddings", "FP32", (-1,)), TensorSpec("norms", "FP32", (1,))),
            ),
        }

    def __iter__(self) -> Any:  # noqa: ANN401  # an iterator
        return iter(self._models.values())

    def get(self, name: str, version: str = "") -> Model:
        """A model by its name.

        Raises:
            NotFoundError: There is none.
        """
        model = self._models.get(name)
        if model is None or version not in ("", VERSION):
            raise NotFoundError(f"no model {name[:100]!r} {version[:20]}", hint=f"one of {', '.join(self._models)}")
        return model

    async def infer(self, model: Model, inputs: Tensors, wanted: Sequence[str], ask: Ask) -> Tensors:
        """Run a model.

        Args:
            model: Which.
            inputs: Its one input, with the batch.
            wanted: Names of outputs; empty: all.
            ask: How.

        Raises:
            RequestError: The tensors are not what the model takes.
            FacefleetError: The only picture failed, or there was no room for all of them.
        """
        started = time.perf_counter_ns()
        try:
            outputs, images = await self._infer_impl(model, inputs, wanted, ask)
        except BaseException:
            model.totals.failures += 1
            model.totals.fail_ns += time.perf_counter_ns() - started
            raise
        model.totals.requests += 1
        model.totals.images += images
        model.totals.success_ns += time.perf_counter_ns() - started
        model.totals.last_ms = int(time.time() * 1000)
        return outputs

    async def _infer_impl(self, model: Model, inputs: Tensors, wanted: Sequence[str], ask: Ask) -> tuple[Tensors, int]:
        known = [output.name for output in model.outputs]
        for name in wanted:
            if name not in known:
                raise RequestError(f"{model.name} has no output {name[:100]!r}", hint=f"one of {', '.join(known)}")
        if set(inputs) != {model.input.name}:
            raise RequestError(f"{model.name} takes one input, {model.input.name}")
        names = wanted or known
        if model.name == EMBEDDER:
            found = await self._service.embed(_chips(inputs[model.input.name]), ask)
            columns = {"embeddings": found.embeddings, "norms": found.norms[:, None]}
            return {name: columns[name] for name in names}, len(found)
        pictures = _pictures(model, inputs[model.input.name])
        ask = replace(ask, embed="embeddings" in names)
        outcomes = await asyncio.gather(*(self._one(picture, ask) for picture in pictures))
        for outcome in outcomes:
            if isinstance(outcome.error, OverloadError) or (outcome.error is not None and len(outcomes) == 1):
                raise outcome.error
        dimension = int(self._service.info()["dimension"])
        return {name: _column(name, outcomes, dimension) for name in names}, len(outcomes)

    async def _one(self, picture: bytes | NDArray[Any], ask: Ask) -> Outcome[Faces]:
        try:
            if isinstance(picture, bytes):
                return Outcome(await self._service.analyze(picture, ask))
            return Outcome(await self._service.analyze_pixels(picture, ask))
        except FacefleetError as error:
            return Outcome(error=error)


def _chips(tensor: NDArray[Any]) -> FaceChips:
    if tensor.ndim == 3:
        tensor = tensor[None]
    if tensor.dtype != np.uint8 or tensor.ndim != 4 or tensor.shape[1:] != (SIDE_PX, SIDE_PX, 3):
        raise RequestError(f"faces takes UINT8 of shape [n, {SIDE_PX}, {SIDE_PX}, 3], RGB")
    count = len(tensor)
    _check_batch(count)
    unknown = np.full((count, 2, 3), np.nan, np.float32)
    return FaceChips(np.ascontiguousarray(tensor), unknown, np.ones(count, np.bool_))


def _check_batch(count: int) -> None:
    if not 1 <= count <= MAX_BATCH:
        raise RequestError(f"a batch of {count}", hint=f"1 to {MAX_BATCH}")


def _pictures(model: Model, tensor: NDArray[Any]) -> list[bytes] | list[NDArray[Any]]:
    if model.input.datatype == "BYTES":
        if tensor.dtype != np.object_ or tensor.ndim not in (1, 2) or (tensor.ndim == 2 and tensor.shape[1] != 1):
            raise RequestError("image takes BYTES of shape [n, 1]")
        flat = [bytes(each) for each in tensor.reshape(-1)]
        count = len(flat)
    else:
        if tensor.ndim == 3:
            tensor = tensor[None]
        if tensor.dtype != np.uint8 or tensor.ndim != 4 or tensor.shape[3] != 3:
            raise RequestError("image takes UINT8 of shape [n, height, width, 3], RGB")
        count = len(tensor)
    _check_batch(count)
    return flat if model.input.datatype == "BYTES" else list(np.ascontiguousarray(tensor))


def _column(name: str, outcomes: Sequence[Outcome[Faces]], dimension: int) -> NDArray[Any]:
    """One output of all pictures."""
    found = [outcome.value for outcome in outcomes]
    if name == "num_faces":
        return np.array([[-1 if faces is None else len(faces)] for faces in found], np.int32)
    if name == "status":
        texts = [
            outcome.error.code if outcome.error is not None else "ok" if len(outcome.unwrap()) else "no_face"
            for outcome in outcomes
        ]
        return np.array([[text.encode()] for text in texts], np.object_)
    most = max((len(faces) for faces in found if faces is not None), default=0)
    shape = {"boxes": (4,), "landmarks": (5, 2), "scores": (), "embeddings": (dimension,)}[name]
    column = np.full((len(found), most, *shape), np.nan, np.float32)
    for row, faces in enumerate(found):
        if faces is not None and len(faces):
            column[row, : len(faces)] = getattr(faces, name)
    return column


def from_raw(data: bytes | memoryview, datatype: str, shape: Sequence[int]) -> NDArray[Any]:
    """A tensor from its raw bytes: little-endian, rows first; BYTES with a 4-byte length before each element.

    Raises:
        RequestError: The bytes do not fit the shape.
    """
    if datatype not in DTYPES or any(side < 0 for side in shape):
        raise RequestError(f"no tensor: {datatype[:20]} {list(shape)[:8]}")
    count = 1
    for side in shape:
        count *= int(side)
    if datatype == "BYTES":
        elements: list[bytes] = []
        rest = memoryview(data)
        while len(rest) >= 4 and len(elements) < count:
            size = int.from_bytes(rest[:4], "little")
            if len(rest) < 4 + size:
                break
            elements.append(bytes(rest[4 : 4 + size]))
            rest = rest[4 + size :]
        if len(rest) or len(elements) != count:
            raise RequestError("a BYTES tensor whose lengths do not fit its shape")
        tensor = np.empty(count, np.object_)
        tensor[:] = elements
        return tensor.reshape(shape)
    dtype = np.dtype(DTYPES[datatype]).newbyteorder("<")
    if count * dtype.itemsize != len(data):
        raise RequestError(f"{len(data)} bytes for {datatype} {list(shape)[:8]}, which has {count * dtype.itemsize}")
    return np.frombuffer(data, dtype).reshape(shape)


def to_raw(tensor: NDArray[Any]) -> bytes:
    """The raw bytes of a tensor; see `from_raw`."""
    if tensor.dtype == np.object_:
        return b"".join(len(each).to_bytes(4, "little") + each for each in tensor.reshape(-1))
    return np.ascontiguousarray(tensor).tobytes()


def datatype_of(tensor: NDArray[Any]) -> str:
    """The protocol's name of a tensor's type."""
    return next(name for name, kind in DTYPES.items() if np.dtype(kind) == tensor.dtype)


def server_metadata() -> dict[str, Any]:
    """Name, version, extensions."""
    return {"name": SERVER, "version": __version__, "extensions": list(EXTENSIONS)}
