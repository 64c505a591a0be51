"""From a checkpoint or a published ONNX file to a graph with a free batch that has been seen to work.

Owns the order: load or rewrite, compare, simplify, try the batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from onnx import ModelProto

from facefleet.backends import InputContract
from facefleet.backends.pictures import network_input
from facefleet.errors import GraphError
from facefleet.models.build.dynamic import dynamic_onnx
from facefleet.models.build.from_torch import Exporter, onnx_from_torch
from facefleet.models.build.inspect import inspect_model
from facefleet.models.build.pictures import chips, scenes
from facefleet.models.build.simplify import simplify
from facefleet.models.build.trial import Trial, try_batches
from facefleet.types import F32Array

_ONNX = (".onnx",)
CONTRACTS = {
    "scrfd": InputContract("rgb", (127.5,) * 3, (128.0,) * 3),
    "retinaface": InputContract("bgr", (104.0, 117.0, 123.0), (1.0,) * 3),
    "yunet": InputContract("bgr", (0.0,) * 3, (1.0,) * 3),
    "embedder": InputContract("rgb", (127.5,) * 3, (127.5,) * 3),
}
"""What a recognized family usually expects; only for the pictures that a conversion is tried with."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """A converted graph and what was seen.

    Attributes:
        model: Input ``images`` with a free batch; embedders have one output ``output``.
        kind: What it was, e.g. ``iresnet50`` or ``scrfd``.
        role: What the network does.
        errors: Output -> largest difference from the source, relative to its largest value.
        notes: What was done, one line each.
        trial: How large a batch ran.
    """

    model: ModelProto
    kind: str
    role: Literal["detector", "embedder"]
    errors: dict[str, float]
    trial: Trial
    notes: list[str] = field(default_factory=list)


def convert(
    source: Path,
    *,
    name: str | None = None,
    exporter: Exporter = "auto",
    simplified: bool = True,
    max_batch: int = 16,
    pictures: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Conversion:
    """Convert a file.

    Args:
        source: An ONNX file, or a checkpoint of a network that `facefleet.models.nets` defines.
        name: For checkpoints that do not say which network they are.
        exporter: For checkpoints; see `onnx_from_torch`.
        simplified: Whether onnxslim or onnxsim is tried.
        max_batch: Largest batch that must run.
        pictures: Photos, or aligned faces, to try it with; None: drawn ones.
        progress: Told what is being done.

    Raises:
        GraphError: It is not understood, answers differently, or fails at a batch size; the node is named.
        CheckpointError: The checkpoint is not a known network's, or incomplete.
        BackendUnavailableError: torch is needed and not there.
    """
    if source.suffix.lower() in _ONNX:
        found = _published(source, pictures, progress)
    else:
        found = _checkpoint(source, name, exporter, pictures, progress)
    model, kind, role, errors, notes, inputs = found
    if simplified:
        progress("simplifying")
        slim = simplify(model, inputs[:3])
        model = slim.model
        notes.append(slim.note)
    progress(f"trying batches up to {max_batch}")
    trial = try_batches(model, [1, 2, max_batch], inputs)
    trial.require(source.name)
    return Conversion(model, kind, role, errors, trial, notes)


_Found = tuple[ModelProto, str, Literal["detector", "embedder"], dict[str, float], list[str], F32Array]


def _published(source: Path, pictures: Path | None, progress: Callable[[str], None]) -> _Found:
    report = inspect_model(source)
    kind = report.layout.partition(":")[0]
    if kind not in CONTRACTS:
        raise GraphError(
            f"{source.name}: outputs {report.outputs} are of no family that is known",
            hint=f"known are {', '.join(CONTRACTS)}; see `facefleet inspect {source.name}`",
        )
    role: Literal["detector", "embedder"] = "embedder" if kind == "embedder" else "detector"
    contract = CONTRACTS[kind]
    progress(f"rewriting {kind}")
    model, changes = dynamic_onnx(source, role=role, mean=contract.mean, std=contract.std, prelu=False)
    notes = [f"{what}: {count}" for what, count in changes.changes.items()]
    notes.append(f"compared with the file {changes.reference}")
    height, width = next(iter(report.inputs.values()))[2:4]
    inputs = _inputs(role, height, width, contract, pictures)
    return model, kind, role, changes.errors, notes, inputs


def _checkpoint(
    source: Path, name: str | None, exporter: Exporter, pictures: Path | None, progress: Callable[[str], None]
) -> _Found:
    from facefleet.models.nets import load_checkpoint

    progress("loading the checkpoint")
    network = load_checkpoint(source, name=name)
    role: Literal["detector", "embedder"] = "detector" if network.dimension is None else "embedder"
    progress(f"exporting {network.name}")
    model, errors = onnx_from_torch(network, exporter=exporter)
    notes = [f"{network.name}, {network.color}, mean {network.mean}, std {network.std}"]
    height, width = network.size_px or (None, None)
    contract = InputContract(network.color, network.mean, network.std)
    return model, network.name, role, errors, notes, _inputs(role, height, width, contract, pictures)


def _inputs(
    role: str, height: int | str | None, width: int | str | None, contract: InputContract, folder: Path | None
) -> F32Array:
    if role == "detector":
        rows, columns = (side if isinstance(side, int) else 320 for side in (height, width))
        return network_input(scenes(folder, 4, rows, columns)[0], contract)
    rows, columns = (side if isinstance(side, int) else 112 for side in (height, width))
    return np.asarray(network_input(chips(folder, 16, rows, columns, None)[0], contract))
