"""ONNX Runtime on the CPU: the reference that others are compared with, and the fallback.

Owns sessions. Every instance runs in the thread that calls it; its own pool is one thread, so instances
never wait for each other. Normalization, channel order and layout are put in front of the graph, which therefore
reads uint8 pictures directly.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from facefleet.backends.base import InputContract, Runner
from facefleet.errors import BackendError, BackendUnavailableError, InferenceError, OutOfMemoryError
from facefleet.types import F32Array, U8Array

if TYPE_CHECKING:
    import onnxruntime as ort

_LOG_ERRORS_ONLY = 3


class OnnxRuntimeRunner(Runner):
    """A network on the CPU through ONNX Runtime; see `Runner`."""

    _names: tuple[str, ...] = ()
    _session: ort.InferenceSession | None = None

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the outputs in the order of the model."""
        return self._names

    def _open_impl(self) -> None:
        if self.options.device != "cpu":
            raise BackendUnavailableError(
                f"backend onnxruntime runs on the CPU here, not on {self.options.device!r}", hint="use device=cpu"
            )
        if self.options.precision != "fp32":
            raise BackendUnavailableError(
                f"backend onnxruntime runs in fp32, not in {self.options.precision}", hint="use backend=openvino"
            )
        try:
            import onnxruntime as ort
        except ImportError as error:
            raise BackendUnavailableError("onnxruntime is not installed", hint="pip install onnxruntime") from error
        options = ort.SessionOptions()
        options.log_severity_level = _LOG_ERRORS_ONLY
        options.intra_op_num_threads = max(1, self.options.threads // self.options.instances)
        options.inter_op_num_threads = 1
        # Spinning threads take the processor from the other instances.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            session = ort.InferenceSession(
                with_picture_input(self.model, self.contract), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # the runtime's exceptions share no base class of their own
            raise BackendError(f"onnxruntime refuses {self.model.name}: {error}") from error
        self._names = tuple(output.name for output in session.get_outputs())
        self._session = session

    def _close_impl(self) -> None:
        self._session = None

    def _run_impl(self, pictures: U8Array) -> tuple[F32Array, ...]:
        assert self._session is not None
        try:
            outputs = self._session.run(None, {"pictures": pictures})
        except Exception as error:  # as above
            kind = OutOfMemoryError if "alloc" in str(error).lower() else InferenceError
            raise kind(f"onnxruntime failed on {self.model.name}: {error}") from error
        return tuple(np.asarray(output, np.float32) for output in outputs)


def with_picture_input(model: Path, contract: InputContract) -> bytes:
    """Put layout, channel order and normalization in front of a graph.

    Args:
        model: An ONNX file with one float32 NCHW input.
        contract: What that input expects.

    Returns:
        The serialized graph, whose input ``pictures`` is (n, h, w, 3) uint8 RGB.
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    proto = onnx.load(model)
    graph = proto.graph
    target = graph.input[0].name
    scale = 1 / np.array(contract.std, np.float32)
    shift = -np.array(contract.mean, np.float32) * scale
    nodes = [helper.make_node("Transpose", ["pictures"], ["pictures_nchw"], perm=[0, 3, 1, 2])]
    last = "pictures_nchw"
    if contract.color == "bgr":
        graph.initializer.append(numpy_helper.from_array(np.array([2, 1, 0], np.int64), "pictures_order"))
        nodes.append(helper.make_node("Gather", [last, "pictures_order"], ["pictures_bgr"], axis=1))
        last = "pictures_bgr"
    nodes.append(helper.make_node("Cast", [last], ["pictures_float"], to=TensorProto.FLOAT))
    graph.initializer.append(numpy_helper.from_array(scale.reshape(1, 3, 1, 1), "pictures_scale"))
    graph.initializer.append(numpy_helper.from_array(shift.reshape(1, 3, 1, 1), "pictures_shift"))
    nodes.append(helper.make_node("Mul", ["pictures_float", "pictures_scale"], ["pictures_scaled"]))
    nodes.append(helper.make_node("Add", ["pictures_scaled", "pictures_shift"], [target]))
    nodes.extend(graph.node)
    del graph.node[:]
    graph.node.extend(nodes)
    del graph.input[:]
    graph.input.append(helper.make_tensor_value_info("pictures", TensorProto.UINT8, ["n", "h", "w", 3]))
    return bytes(proto.SerializeToString())
