"""One ONNX file without a manifest, taken for a pack whose other network is that of the default pack.

Owns what its family is usually trained with. Refuses graphs that no family is recognized in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from facefleet.errors import GraphError
from facefleet.models.build.inspect import ModelReport, inspect_model
from facefleet.packs import DetectorSpec, EmbedderSpec, LocatedManifest, ModelFile, Store

_BESIDE = "opencv"


@dataclass(frozen=True, slots=True)
class Input:
    """What a network reads.

    Attributes:
        color: Channel order.
        mean: Subtracted from 0..255 values.
        std: Divisor after that.
    """

    color: Literal["rgb", "bgr"]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


_USUAL = {
    "embedder": Input("rgb", (127.5, 127.5, 127.5), (127.5, 127.5, 127.5)),
    "scrfd": Input("rgb", (127.5, 127.5, 127.5), (128.0, 128.0, 128.0)),
    "retinaface": Input("bgr", (104.0, 117.0, 123.0), (1.0, 1.0, 1.0)),
    "yunet": Input("bgr", (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
}


@dataclass(frozen=True, slots=True)
class SingleModel:
    """A file whose family is known.

    Attributes:
        report: What it is.
        family: ``embedder``, ``scrfd``, ``retinaface`` or ``yunet``.
        input: What that family usually reads.
    """

    report: ModelReport
    family: str
    input: Input


def recognize_model(path: Path) -> SingleModel:
    """The family of a file.

    Raises:
        GraphError: It cannot be read, or no family is recognized.
    """
    report = inspect_model(path)
    family = report.layout.split(":")[0]
    if family not in _USUAL:
        raise GraphError(
            f"{path.name}: neither a detector nor an embedder that is known",
            hint="`facefleet inspect` shows what it has; networks of other families cannot be built",
        )
    return SingleModel(report, family, _USUAL[family])


def manifest_of(model: SingleModel, store: Store) -> tuple[LocatedManifest, str]:
    """A manifest for one file, and the role it has in it.

    Args:
        model: The file; its input as it is, where that is not the usual one.
        store: Where the default pack is.
    """
    report, family, reads = model.report, model.family, model.input
    path = report.path
    source = (ModelFile(file=path.name),)
    manifest = store.manifest(_BESIDE).manifest
    if family == "embedder":
        height, width = (side if isinstance(side, int) else 112 for side in next(iter(report.inputs.values()))[2:4])
        outputs = list(report.outputs.values())
        embedder = EmbedderSpec(
            family="adaface" if len(outputs) == 2 else "arcface",
            source=source,
            color=reads.color,
            mean=reads.mean,
            std=reads.std,
            height=height,
            width=width,
            dimension=int(outputs[0][1]),
            threshold=manifest.embedder.threshold,
        )
        manifest = replace(manifest, name="model", embedder=embedder)
    else:
        detector = DetectorSpec(
            family=family,  # type: ignore[arg-type]  # a key of _USUAL
            source=source,
            color=reads.color,
            mean=reads.mean,
            std=reads.std,
            fit="tight" if family == "yunet" else "square",
        )
        manifest = replace(manifest, name="model", detector=detector)
    return LocatedManifest(manifest, path.resolve().parent), "embedder" if family == "embedder" else "detector"
