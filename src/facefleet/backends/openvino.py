"""OpenVINO on the CPU: a plan for every instance, run by the thread that calls it, so that instances never wait.

Owns compiled models and infer requests. Refuses devices other than the CPU. Normalization, channel order and layout
are compiled into the network, which therefore reads uint8 pictures directly. A batch is run picture by picture on
plans of batch one, or a few at a time where that was seen to give the same answers; results therefore do not depend
on the batch, not even in the last bit.

A plan of several streams would hand every run to a thread of OpenVINO's and back; with one stream the calling thread
computes. Plans do not share their weights, so that very large networks share one plan all the same.
"""

from __future__ import annotations

import io
import logging
import queue
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from xml.etree import ElementTree

import numpy as np

from facefleet.backends.base import ANY_SIZE, InputContract, Outputs, Runner, T
from facefleet.backends.faults import device_error
from facefleet.backends.timing import COMPUTE, TRANSFER_OUT, WAIT, part
from facefleet.errors import BackendError, BackendUnavailableError
from facefleet.types import U8Array

if TYPE_CHECKING:
    import openvino as ov

R = TypeVar("R")

_log = logging.getLogger(__name__)
_ACTIVATIONS = ("Relu", "PRelu", "Clamp", "Sigmoid")
_WITHOUT_BIAS = "/WithoutBiases"  # what a convolution is called whose sum with a bias has the node's name
_OWN_PLANS_BYTES = 1 << 30
"""Up to so many bytes of weights in all, every instance has a plan of its own."""


def capabilities() -> frozenset[str]:
    """What the CPU plugin can do here, e.g. ``BF16``.

    Raises:
        BackendUnavailableError: OpenVINO is not installed or has no CPU plugin here.
    """
    core = _core()
    try:
        return frozenset(str(name) for name in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"))
    except RuntimeError as error:
        raise BackendUnavailableError(f"openvino has no CPU plugin here: {error}") from error


def _core() -> ov.Core:
    try:
        import openvino as ov
    except ImportError as error:
        raise BackendUnavailableError("openvino is not installed", hint="pip install openvino") from error
    return ov.Core()


class OpenVinoRunner(Runner):
    """A network on the CPU through OpenVINO; see `Runner`."""

    _names: tuple[str, ...] = ()

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the outputs in the order of the model."""
        return self._names

    def _open_impl(self) -> None:
        if self.options.device != "cpu":
            raise BackendUnavailableError(
                f"backend openvino runs on the CPU here, not on {self.options.device!r}", hint="use device=cpu"
            )
        self._core = _core()
        self._compiling = threading.Lock()
        self._plans: dict[tuple[int, int], queue.SimpleQueue[Any]] = {}
        self._chunks: dict[tuple[int, int], queue.SimpleQueue[Any]] = {}
        self._compiled: dict[str, ov.CompiledModel] = {}
        for size in (*self.options.warm, *(() if self.options.warm else (ANY_SIZE,))):
            if self.options.whole_batches and size != ANY_SIZE:
                self._chunks[size] = self._compile(size, self.options.chunk)
                continue
            self._plans[size] = self._compile(size, 1)
            if self.options.chunk > 1 and size != ANY_SIZE:
                self._add_chunks(size)

    def _close_impl(self) -> None:
        self._plans.clear()
        self._chunks.clear()
        self._compiled.clear()
        del self._core

    def _add_chunks(self, size: tuple[int, int]) -> None:
        """A plan for several pictures at once, if its answers are those of single ones."""
        chunk = self.options.chunk
        requests = self._compile(size, chunk)
        pictures = np.random.default_rng(0).integers(0, 256, (chunk, *size, 3)).astype(np.uint8)
        singles = [self._infer(self._plans[size], pictures[i : i + 1], _copied) for i in range(chunk)]
        together = self._infer(requests, pictures, _copied)
        if all(np.array_equal(np.concatenate(a), b) for a, b in zip(zip(*singles, strict=True), together, strict=True)):
            self._chunks[size] = requests
        else:
            _log.debug("%s: batches of %d answer otherwise than single pictures: not used", self.model.name, chunk)
            del self._compiled[_blob_name(size, chunk)]

    def _compile(self, size: tuple[int, int], batch: int) -> queue.SimpleQueue[Any]:
        instances = self.options.instances
        plans = instances if instances * self.model.stat().st_size <= _OWN_PLANS_BYTES else 1
        config = {
            "INFERENCE_NUM_THREADS": max(1, self.options.threads // plans),
            "NUM_STREAMS": instances // plans,
            "ENABLE_CPU_PINNING": False,
            # Also for what is read back: it is compiled again, and in bf16 where nothing is said.
            "INFERENCE_PRECISION_HINT": {"fp32": "f32", "bf16": "bf16"}[self.options.precision],
        }
        saved = None if self.options.engine is None else self.options.engine / _blob_name(size, batch)
        try:
            if saved is not None and saved.is_file():
                blob = saved.read_bytes()
                compiled = [self._core.import_model(io.BytesIO(blob), "CPU", config) for _ in range(plans)]
            else:
                model = self._built(size, batch)
                compiled = [self._core.compile_model(model, "CPU", config) for _ in range(plans)]
        except RuntimeError as error:
            raise BackendError(f"openvino refuses {self.model.name}: {error}") from error
        self._compiled[_blob_name(size, batch)] = compiled[0]
        self._names = tuple(output.get_any_name() for output in compiled[0].outputs)
        requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for position in range(instances):
            requests.put(compiled[position % plans].create_infer_request())
        return requests

    def _built(self, size: tuple[int, int], batch: int) -> ov.Model:
        """The network at one size and batch, with layout, channel order and normalization in front."""
        model = self._core.read_model(self.model)
        model.reshape([batch, 3, *size])
        if self.options.precision != "fp32" and self.options.fp32_layers:
            model = _kept_in_fp32(self._core, model, self.options.fp32_layers)
        return _with_picture_input(model, self.contract)

    def _save_impl(self, folder: Path) -> None:
        for name, compiled in self._compiled.items():
            (folder / name).write_bytes(compiled.export_model().getvalue())

    def layer_milliseconds(self, picture: U8Array) -> dict[str, float]:
        """See `Runner`; a layer that others were fused into has their time too."""
        size = (picture.shape[1], picture.shape[2])
        config = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32", "PERF_COUNT": True}
        request = self._core.compile_model(self._built(size, 1), "CPU", config).create_infer_request()
        totals: dict[str, list[float]] = {}
        for _ in range(5):
            request.infer({0: picture})
            for info in request.profiling_info:
                totals.setdefault(info.node_name.removesuffix(_WITHOUT_BIAS), []).append(
                    info.real_time.total_seconds() * 1000
                )
        return {name: float(np.median(values)) for name, values in totals.items() if max(values) > 0}

    def _any_size(self) -> queue.SimpleQueue[Any]:
        with self._compiling:
            if ANY_SIZE not in self._plans:
                self._plans[ANY_SIZE] = self._compile(ANY_SIZE, 1)
            return self._plans[ANY_SIZE]

    def _run_impl(self, pictures: U8Array) -> Outputs:
        rows = [self._infer(requests, part, _copied) for requests, part in self._parts(pictures)]
        return rows[0] if len(rows) == 1 else tuple(np.concatenate(parts) for parts in zip(*rows, strict=True))

    def _read_impl(self, pictures: U8Array, take: Callable[[Outputs, int], list[T]]) -> list[T]:
        found: list[T] = []
        for requests, part_of_them in self._parts(pictures):
            found += self._infer(requests, part_of_them, take)
        return found

    def _parts(self, pictures: U8Array) -> Iterator[tuple[queue.SimpleQueue[Any], U8Array]]:
        """Pictures as they are run: each alone, or as many as there is a plan for."""
        size = (pictures.shape[1], pictures.shape[2])
        several = self._chunks.get(size)
        whole = several is not None and len(pictures) % self.options.chunk == 0
        single = self._plans.get(size) or (several if whole else self._any_size())
        start = 0
        while start < len(pictures):
            if several is not None and len(pictures) - start >= self.options.chunk:
                step, requests = self.options.chunk, several
            else:
                assert single is not None
                step, requests = 1, single
            yield requests, pictures[start : start + step]
            start += step

    def _infer(self, requests: queue.SimpleQueue[Any], pictures: U8Array, take: Callable[[Outputs, int], R]) -> R:
        """What `take` makes of the outputs, which are the request's own, and of the number of pictures."""
        import openvino as ov

        with part(WAIT):
            request = requests.get()
        try:
            try:
                with part(COMPUTE):
                    request.infer({0: ov.Tensor(pictures, shared_memory=True)}, share_outputs=True)
                outputs = tuple(np.asarray(output.data, np.float32) for output in request.output_tensors)
            except RuntimeError as error:
                raise device_error(f"openvino failed on {self.model.name}", message=str(error)) from error
            with part(TRANSFER_OUT):
                return take(outputs, len(pictures))
        finally:
            requests.put(request)


def _copied(outputs: Outputs, rows: int) -> Outputs:
    del rows
    return tuple(output.copy() for output in outputs)


def _blob_name(size: tuple[int, int], batch: int) -> str:
    several = f"x{batch}" if batch > 1 else ""
    return "any.blob" if size == ANY_SIZE else f"{size[0]}x{size[1]}{several}.blob"


def _with_picture_input(model: ov.Model, contract: InputContract) -> ov.Model:
    """Put layout, channel order and normalization in front of a network.

    Where it can, in the order that takes the plugin least: channels stay last, which is what its convolutions want, and
    where all are treated alike a picture is normalized as one long row. OpenVINO's own order takes a tenth of
    SCRFD-500m's time more, but less where sizes are not known or channels change places.
    """
    import openvino as ov
    from openvino import opset13 as ops

    network_input = model.get_parameters()[0]
    batch, _, height, width = network_input.get_partial_shape()
    if height.is_dynamic or contract.color == "bgr":
        return _with_preprocessing(model, contract)
    pictures = ops.parameter(ov.PartialShape([batch, height, width, 3]), ov.Type.u8, name="pictures")
    mean, scale = np.array(contract.mean, np.float32), 1 / np.array(contract.std, np.float32)
    values = ops.convert(pictures, "f32")
    if len(set(contract.mean)) == len(set(contract.std)) == 1:
        values, mean, scale = ops.reshape(values, [0, -1], True), mean[0], scale[0]
    values = ops.multiply(ops.subtract(values, mean), scale)
    values = ops.transpose(ops.reshape(values, ops.shape_of(pictures), False), [0, 3, 1, 2])
    for reader in network_input.output(0).get_target_inputs():
        reader.replace_source_output(values.output(0))
    return ov.Model(model.get_results(), [pictures], model.get_friendly_name())


def _with_preprocessing(model: ov.Model, contract: InputContract) -> ov.Model:
    import openvino as ov
    from openvino.preprocess import ColorFormat, PrePostProcessor

    process = PrePostProcessor(model)
    tensor = process.input().tensor()
    tensor.set_element_type(ov.Type.u8).set_layout(ov.Layout("NHWC")).set_color_format(ColorFormat.RGB)
    steps = process.input().preprocess()
    if contract.color == "bgr":
        steps.convert_color(ColorFormat.BGR)
    steps.convert_element_type(ov.Type.f32).mean(list(contract.mean)).scale(list(contract.std))
    process.input().model().set_layout(ov.Layout("NCHW"))
    return process.build()


def _kept_in_fp32(core: ov.Core, model: ov.Model, layers: frozenset[str]) -> ov.Model:
    """Mark the nodes called so, and activations that only they feed, for fp32.

    The plugin honors a mark that only the serialized form of a model can carry, so the model goes through that.
    """
    import openvino as ov

    kept = set()
    for operation in model.get_ordered_ops():
        if operation.get_friendly_name().removesuffix(_WITHOUT_BIAS) in layers:
            kept.add(operation.get_friendly_name())
            readers = [target.get_node() for out in operation.outputs() for target in out.get_target_inputs()]
            if len(readers) == 1 and readers[0].get_type_name() in _ACTIVATIONS:
                kept.add(readers[0].get_friendly_name())
    with tempfile.TemporaryDirectory(prefix="facefleet-") as folder:
        file = Path(folder) / "model.xml"
        ov.serialize(model, file)
        tree = ElementTree.parse(file)  # noqa: S314  # written two lines above
        for layer in tree.getroot().iterfind("layers/layer"):
            if layer.get("name") in kept and layer.get("type") not in ("Const", "Parameter", "Result"):
                info = layer.find("rt_info")
                if info is None:
                    info = ElementTree.SubElement(layer, "rt_info")
                ElementTree.SubElement(info, "attribute", {"name": "precise", "version": "0"})
        tree.write(file)
        # Weights are read while the folder exists; a mapped file stays readable after it is gone.
        return core.read_model(file)
