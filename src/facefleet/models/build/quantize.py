"""8-bit integer graphs: Q/DQ pairs in front of convolutions, ranges from real pictures, weights per channel.

Owns the calibration and the choice of what is quantized; the nodes themselves are made by onnxruntime.quantization.
Activations are signed and symmetric: CPU kernels for integers do not take a zero point. The input of a layer is
quantized, never its output, so that what follows it (PRelu, Add) stays fused with it in full precision. The last
Gemm and everything behind it stay in float32.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import onnx
from onnx import ModelProto, shape_inference, version_converter

from facefleet.errors import GraphError
from facefleet.types import F32Array

_OPSET = 17  # per-channel DequantizeLinear came with 13
_PICTURES, _CHUNK = 128, 16
_PERCENTILE = 99.99  # SFace, all in int8: mean cosine 0.9945; 0.9921 at 99.999, 0.9874 at 99.9, 0.9786 at 100
Calibration = Literal["percentile", "entropy"]


class Quantizer:
    """A graph with measured ranges, from which versions with any layers in float32 can be made.

    Args:
        model: Float graph, input ``images`` with a free batch.
        pictures: (n, 3, h, w) float32 network inputs for calibration, of which the first 128 are used.
        calibration: ``percentile`` cuts the outermost 0.01 % of the values, ``entropy`` minimizes the divergence of
            the histograms (Migacz, "8-bit inference with TensorRT", 2017).

    Raises:
        GraphError: The graph has no layers that can be quantized, or its opset cannot be raised.
    """

    def __init__(self, model: ModelProto, pictures: F32Array, *, calibration: Calibration = "percentile") -> None:
        self._model = _ready(model)
        convolutions = [node.name for node in self._model.graph.node if node.op_type == "Conv"]
        if not convolutions:
            raise GraphError("the graph has no convolutions to quantize", hint="build it in fp32")
        self.layers: tuple[str, ...] = tuple(convolutions)
        self._ranges = _ranges(self._model, pictures[:_PICTURES], calibration)

    def quantized(self, high: Iterable[str] = ()) -> ModelProto:
        """The graph in int8, except the layers named in `high`.

        Raises:
            GraphError: A name is not a layer's.
        """
        from onnxruntime.quantization import QuantType
        from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

        kept = set(high)
        if unknown := kept - set(self.layers):
            raise GraphError(
                f"no layer is called {sorted(unknown)[0]!r}", hint=f"layers are {', '.join(self.layers[:5])}…"
            )
        model = ModelProto()
        model.CopyFrom(self._model)
        if kept == set(self.layers):
            return model
        quantizer = QDQQuantizer(
            model,
            per_channel=True,
            reduce_range=False,
            weight_qType=QuantType.QInt8,
            activation_qType=QuantType.QInt8,
            tensors_range=self._ranges,
            nodes_to_quantize=[name for name in self.layers if name not in kept],
            nodes_to_exclude=[],
            op_types_to_quantize=["Conv"],
            extra_options={
                "ActivationSymmetric": True,
                "WeightSymmetric": True,
                "OpTypesToExcludeOutputQuantization": ["Conv"],
            },
        )
        quantizer.quantize_model()
        return quantizer.model.model


def _ready(model: ModelProto) -> ModelProto:
    """A copy with a name for every node, an opset that knows per-channel quantization, and inferred types."""
    ready = ModelProto()
    ready.CopyFrom(model)
    opset = max(each.version for each in ready.opset_import if each.domain in ("", "ai.onnx"))
    if opset < _OPSET:
        try:
            ready = version_converter.convert_version(ready, _OPSET)
        except Exception as error:  # the converter's exceptions share no base class
            raise GraphError(f"opset {opset} cannot be raised to {_OPSET}: {error}", hint="export again") from error
    for node in ready.graph.node:
        node.name = node.name or node.output[0]
    return shape_inference.infer_shapes(ready)


def _ranges(model: ModelProto, pictures: F32Array, calibration: Calibration) -> Any:  # noqa: ANN401  # opaque
    from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, create_calibrator

    class Reader(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime has no types
        def __init__(self) -> None:
            # The calibrator takes chunks of one size only.
            self._size = min(_CHUNK, len(pictures))
            self._starts = iter(range(0, len(pictures) - self._size + 1, self._size))

        def get_next(self) -> dict[str, F32Array] | None:
            start = next(self._starts, None)
            return None if start is None else {"images": pictures[start : start + self._size]}

    method = CalibrationMethod.Percentile if calibration == "percentile" else CalibrationMethod.Entropy
    with tempfile.TemporaryDirectory(prefix="facefleet-") as folder:
        file = Path(folder) / "model.onnx"
        onnx.save(model, file)
        calibrator = create_calibrator(
            file,
            ["Conv"],
            augmented_model_path=str(Path(folder) / "augmented.onnx"),
            calibrate_method=method,
            extra_options={"symmetric": True, **({"percentile": _PERCENTILE} if calibration == "percentile" else {})},
        )
        with contextlib.redirect_stdout(io.StringIO()):  # it reports its progress by print
            calibrator.collect_data(Reader())
            return calibrator.compute_data()
