"""Ways to lower a network layer by layer: the same for a search, a recipe, and a whole network.

Owns what is done to the graph for a precision and a backend, and how a runner is told. Runs nothing but calibration.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import onnx
from onnx import ModelProto

from facefleet.backends import InputContract
from facefleet.backends.pictures import network_input
from facefleet.errors import ConfigError
from facefleet.models.build.cast import cast_graph, tail
from facefleet.models.build.quantize import Calibration, Quantizer
from facefleet.models.prepare import rounder
from facefleet.packs import DetectorSpec, EmbedderSpec
from facefleet.types import U8Array

Low = Literal["bf16", "fp16", "int8"]


@dataclass(frozen=True, slots=True)
class Lowering:
    """A network that can be had with any layers in a lower precision.

    Attributes:
        low: That precision.
        layers: All layers that can take it, by name.
        graph: From the layers that stay in fp32 to the graph.
        runner: What a runner of that graph is told: its precision, and whether it needs the names of the layers too.
        variant: Everything that steers `graph`, as plain values.
    """

    low: Low
    layers: tuple[str, ...]
    graph: Callable[[frozenset[str]], ModelProto]
    runner: tuple[Literal["fp32", "bf16", "fp16"], bool]
    variant: dict[str, Any]


def possible(backend: str, device: str, role: str) -> tuple[Low, ...]:
    """Lower precisions that a search has a choice of.

    int8 is for embedders: boxes are few multiplications away from pixels.
    """
    integers: tuple[Low, ...] = ("int8",) if role == "embedder" else ()
    if backend == "openvino":
        from facefleet.backends.openvino import capabilities

        return ("bf16", *integers) if "BF16" in capabilities() else integers
    if backend == "onnxruntime":
        return integers
    return ("bf16",) if device == "cpu" else ("fp16", "bf16")


def lowering(
    low: Low,
    model: Path,
    spec: DetectorSpec | EmbedderSpec,
    *,
    backend: str,
    pictures: U8Array,
    calibration: Calibration = "percentile",
) -> Lowering:
    """Prepare to lower a network.

    Args:
        low: The precision.
        model: Its float graph, prepared, without rewrites for one runtime.
        spec: What the manifest says of it.
        backend: What it is to run on.
        pictures: (n, h, w, 3) uint8 RGB; int8 is calibrated with them.
        calibration: See `Quantizer`.

    Raises:
        ConfigError: The backend does not run this precision, or it is int8 for a detector.
        GraphError: The graph cannot be lowered.
    """
    proto = onnx.load(model)
    if low == "int8":
        if isinstance(spec, DetectorSpec) or backend not in ("openvino", "onnxruntime"):
            raise ConfigError(
                f"int8 for a {'detector' if isinstance(spec, DetectorSpec) else 'network on ' + backend}",
                hint="int8 is for embedders, on openvino and onnxruntime",
            )
        contract = InputContract(spec.color, spec.mean, spec.std)
        quantizer = Quantizer(proto, network_input(pictures, contract), calibration=calibration)
        return Lowering(low, quantizer.layers, quantizer.quantized, ("fp32", False), {"calibration": calibration})
    if backend == "openvino" and low == "bf16":
        fitted = rounder(proto, spec)
        return Lowering(low, _layers(proto), fitted.rounded, ("bf16", True), {})
    if backend not in ("torch", "tensorrt"):
        raise ConfigError(f"{backend} has no precision {low}", hint="choose another precision or backend")
    kept = tail(proto)
    layers = tuple(
        name
        for name, node in zip(_layers(proto), _nodes(proto), strict=True)
        if node.output[0] not in kept  # stays in fp32 in any case
    )

    def cast(high: frozenset[str]) -> ModelProto:
        return proto if len(high) == len(layers) else cast_graph(proto, low, high)

    return Lowering(low, layers, cast, (low, False), {})


def _nodes(model: ModelProto) -> list[Any]:
    return [node for node in model.graph.node if node.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul")]


def _layers(model: ModelProto) -> tuple[str, ...]:
    return tuple(node.name or node.output[0] for node in _nodes(model))
