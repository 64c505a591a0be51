"""From a published graph to one with a free batch, checked against the original picture by picture.

Owns the order of the rewrites and the check. The check runs the original as published where a runtime loads it, else
the original with only its quantized constants folded; both through ONNX Runtime on the CPU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, ValueInfoProto, checker, load

from facefleet.errors import GraphError
from facefleet.models.build import rewrites
from facefleet.models.build.graph import dims, rename
from facefleet.models.build.idle import drop_idle_channels
from facefleet.types import F32Array

_TOLERANCE = 1e-4  # of the largest value of an output: float32 sums in another order
_DETECTOR_PX = 320  # what is checked where the original takes any size


@dataclass(frozen=True, slots=True)
class DynamicReport:
    """What was done to a graph, and how far its answers moved.

    Attributes:
        changes: Rewrite -> places changed.
        reference: ``as published``, or ``constants folded`` where no runtime loads the file as published.
        sizes: Heights and widths that were compared.
        errors: Output -> largest difference, relative to the largest value of that output.
    """

    changes: dict[str, int]
    reference: str
    sizes: list[tuple[int, int]]
    errors: dict[str, float]


def dynamic_onnx(
    source: Path,
    *,
    role: Literal["detector", "embedder"],
    mean: Sequence[float],
    std: Sequence[float],
    prelu: bool,
) -> tuple[ModelProto, DynamicReport]:
    """Rewrite a published graph for batches.

    Args:
        source: The ONNX file, with one float32 NCHW picture input.
        role: Detectors get a free height and width too; the output of an embedder is called ``output``.
        mean: Subtracted from 0..255 pictures, for realistic inputs in the check.
        std: Divisor after that.
        prelu: Whether PRelu is rewritten, for runtimes whose own is slow.

    Returns:
        The graph, with input ``images``, and the report.

    Raises:
        GraphError: The file is not understood, or the rewritten graph answers differently.
    """
    try:
        model = load(source)
    except Exception as error:  # protobuf's exceptions share no base class
        raise GraphError(f"{source.name}: not an ONNX file ({type(error).__name__})", hint="check the file") from error
    changes = {
        "stale inputs dropped": rewrites.drop_stale_inputs(model.graph),
        "constants dequantized": rewrites.fold_dequantized(model.graph),
    }
    picture = _picture_input(model, source)
    shape = dims(model.graph.input[0])
    fixed_size = all(isinstance(side, int) for side in shape[2:4])
    height, width = (side if isinstance(side, int) else _DETECTOR_PX for side in shape[2:4])
    pictures = _pictures(height, width, mean, std)
    original, reference = _original(source, model, pictures[:1])
    changes |= {
        "fixed resizes scaled": rewrites.scale_instead_of_size(
            model, lambda names: inner_values(model, names, pictures[:1])
        )
        if role == "detector" and fixed_size
        else 0,
        "mixed heads separated": rewrites.separate_heads(model.graph),
        "fixed reshapes freed": rewrites.batch_reshapes(model.graph),
        "normalizations folded": rewrites.fold_normalizations(model.graph),
        "idle channels dropped": drop_idle_channels(model.graph),
        "sibling convolutions joined": rewrites.merge_siblings(model),
        "PRelu rewritten": rewrites.prelu_as_convolutions(model.graph) if prelu else 0,
    }
    rewrites.free_dimensions(model.graph, size=role == "detector")
    rename(model.graph, picture, "images")
    if role == "embedder":
        rename(model.graph, model.graph.output[0].name, "output")
    try:
        checker.check_model(model, full_check=False)
    except checker.ValidationError as error:
        raise GraphError(f"{source.name}: the rewritten graph is not valid: {error}") from error
    errors = check_rows(original, session(model), pictures, name=source.name)
    report = DynamicReport({k: v for k, v in changes.items() if v}, reference, [(height, width)], errors)
    return model, report


def _picture_input(model: ModelProto, source: Path) -> str:
    shapes = {value.name: dims(value) for value in model.graph.input}
    if len(shapes) != 1 or len(next(iter(shapes.values()))) != 4:
        raise GraphError(
            f"{source.name}: expected one NCHW picture input, found {shapes}", hint="export the network alone"
        )
    name, shape = next(iter(shapes.items()))
    if shape[1] != 3:
        raise GraphError(f"{source.name}: input {name} is {shape}, not (n, 3, h, w)", hint="facefleet needs NCHW")
    return str(name)


def _original(source: Path, folded: ModelProto, picture: F32Array) -> tuple[Any, str]:
    """A session of the graph as it was before the rewrites, and which form of it."""
    with contextlib.suppress(Exception):  # whatever the runtime says: the folded graph is compared instead
        found = session(source)
        found.run(None, {found.get_inputs()[0].name: picture})
        return found, "as published"
    try:
        return session(folded), "constants folded"
    except Exception as error:  # the runtime's exceptions share no base class
        raise GraphError(f"{source.name}: onnxruntime does not run it: {error}") from error


def inner_values(model: ModelProto, names: Sequence[str], picture: F32Array) -> list[NDArray[Any]]:
    """Values of inner tensors for one picture."""
    opened = ModelProto()
    opened.CopyFrom(model)
    outputs = {value.name for value in opened.graph.output}
    opened.graph.output.extend(ValueInfoProto(name=name) for name in dict.fromkeys(names) if name not in outputs)
    found: list[NDArray[Any]] = session(opened).run(list(names), {opened.graph.input[0].name: picture})
    return found


def session(model: ModelProto | Path) -> Any:  # noqa: ANN401  # onnxruntime is imported where it is used
    """A reference session on the CPU, one thread."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    content = str(model) if isinstance(model, Path) else model.SerializeToString()
    return ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def _pictures(height: int, width: int, mean: Sequence[float], std: Sequence[float]) -> F32Array:
    """(4, 3, h, w) float32: three different smooth pictures, and the first once more."""
    random = np.random.default_rng(7)
    coarse = random.uniform(0, 255, (3, 9, 9, 3)).astype(np.float32)
    pictures = np.stack([cv2.resize(picture, (width, height)) for picture in (*coarse, coarse[0])])
    scaled = (pictures - np.asarray(mean, np.float32)) / np.asarray(std, np.float32)
    return np.ascontiguousarray(scaled.transpose(0, 3, 1, 2), np.float32)


def check_rows(original: Any, rewritten: Any, pictures: F32Array, *, name: str) -> dict[str, float]:  # noqa: ANN401
    """Compare a batch through `rewritten` with single pictures through `original`.

    Args:
        original: Session of the graph as published; may know a batch of one only.
        rewritten: Session of the rewritten graph.
        pictures: (n, 3, h, w) float32, the last equal to the first.
        name: What to call the graph in errors.

    Returns:
        Output -> largest difference relative to the output's largest value.

    Raises:
        GraphError: A row differs, depends on its neighbors, or has the wrong shape.
    """
    wanted = original.get_inputs()[0].name
    singles = [original.run(None, {wanted: picture[None]}) for picture in pictures]
    batch = rewritten.run(None, {"images": pictures})
    errors = {}
    for position, output in enumerate(rewritten.get_outputs()):
        got = batch[position]
        if got.ndim < 2 or len(got) != len(pictures):
            raise GraphError(f"{name}: output {output.name} of {len(pictures)} pictures has shape {got.shape}")
        worst = 0.0
        for row in range(len(pictures)):
            want = _as_row(singles[row][position], got[row], output.name, name)
            scale = max(float(np.abs(want).max(initial=0)), 1e-6)
            worst = max(worst, float(np.abs(want - got[row]).max(initial=0)) / scale)
        errors[output.name] = worst
        if not worst <= _TOLERANCE:
            raise GraphError(
                f"{name}: output {output.name} of the rewritten graph differs by {worst:.2e} of its largest value",
                hint="the graph has a layout that is not known here; report it",
            )
        if not np.allclose(got[0], got[-1], rtol=0, atol=_TOLERANCE * max(float(np.abs(got[0]).max(initial=0)), 1e-6)):
            raise GraphError(f"{name}: output {output.name} differs between equal pictures of one batch")
    return errors


def _as_row(single: NDArray[np.float32], row: NDArray[np.float32], output: str, name: str) -> NDArray[np.float32]:
    """The output for a single picture in the shape of a row of the batch's."""
    if single.size != row.size:
        raise GraphError(f"{name}: output {output} has {row.size} values a picture, {single.size} as published")
    return single.reshape(row.shape)
