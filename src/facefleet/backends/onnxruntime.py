"""ONNX Runtime on the CPU: the reference that others are compared with, and the fallback.

Owns sessions. Every instance runs in the thread that calls it; its own pool is one thread, so instances
never wait for each other. Pictures are normalized and laid out before they are handed over: a graph's own nodes take
four passes for it, a twentieth of SCRFD-500m's time.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from facefleet.backends.base import Runner
from facefleet.backends.faults import device_error
from facefleet.backends.pictures import network_input
from facefleet.backends.timing import COMPUTE, TRANSFER_OUT, part
from facefleet.errors import BackendError, BackendUnavailableError
from facefleet.types import F32Array, U8Array

if TYPE_CHECKING:
    import onnxruntime as ort

_LOG_ERRORS_ONLY = 3
_OPTIMIZED = "optimized.onnx"


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
        self._threads = max(1, self.options.threads // self.options.instances)
        options.intra_op_num_threads = self._threads
        options.inter_op_num_threads = 1
        # Spinning threads take the processor from the other instances.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        model = self.model
        saved = None if self.options.engine is None else self.options.engine / _OPTIMIZED
        if saved is not None and saved.is_file():
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL  # done when it was saved
            model = saved
        try:
            session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the runtime's exceptions share no base class of their own
            raise BackendError(f"onnxruntime refuses {self.model.name}: {error}") from error
        self._input = session.get_inputs()[0].name
        self._names = tuple(output.name for output in session.get_outputs())
        self._session = session

    def _close_impl(self) -> None:
        self._session = None

    def _save_impl(self, folder: Path) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = _LOG_ERRORS_ONLY
        options.optimized_model_filepath = str(folder / _OPTIMIZED)
        ort.InferenceSession(str(self.model), options, providers=["CPUExecutionProvider"])

    def layer_milliseconds(self, picture: U8Array) -> dict[str, float]:
        """See `Runner`; by the names that ONNX Runtime's own rewrites left."""
        import json
        import tempfile

        import onnxruntime as ort

        totals: dict[str, list[float]] = {}
        with tempfile.TemporaryDirectory(prefix="facefleet-") as folder:
            options = ort.SessionOptions()
            options.log_severity_level = _LOG_ERRORS_ONLY
            options.intra_op_num_threads = options.inter_op_num_threads = 1
            options.enable_profiling = True
            options.profile_file_prefix = str(Path(folder) / "layers")
            session = ort.InferenceSession(str(self.model), options, providers=["CPUExecutionProvider"])
            given = {session.get_inputs()[0].name: network_input(picture, self.contract)}
            for _ in range(6):
                session.run(None, given)
            events = json.loads(Path(session.end_profiling()).read_text())
        for event in events:
            name, _, kind = str(event.get("name", "")).rpartition("_kernel_time")
            if event.get("cat") == "Node" and name and not kind:
                totals.setdefault(name, []).append(event["dur"] / 1000)
        return {name: float(np.median(values[1:] or values)) for name, values in totals.items()}

    def _run_impl(self, pictures: U8Array) -> tuple[F32Array, ...]:
        assert self._session is not None
        # A thread of its own gains nothing from a batch and loses the cache to it: 3.0 ms a face at 8, 2.7 at 1.
        step = len(pictures) if self._threads > 1 or self.options.whole_batches else 1
        try:
            with part(COMPUTE):
                parts = [
                    self._session.run(None, {self._input: network_input(pictures[start : start + step], self.contract)})
                    for start in range(0, len(pictures), step)
                ]
        except Exception as error:  # as above
            raise device_error(f"onnxruntime failed on {self.model.name}", message=str(error)) from error
        with part(TRANSFER_OUT):
            if len(parts) == 1:
                return tuple(np.asarray(output, np.float32) for output in parts[0])
            return tuple(np.concatenate(outputs).astype(np.float32, copy=False) for outputs in zip(*parts, strict=True))
