"""Files of a pack made ready to run, once, and kept in the store.

Owns the cache of prepared graphs: ``prepared/<key>/model.onnx`` with its report beside it. The key covers the
published file, the rewrites and everything that steers them. Safe with several processes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from facefleet.backends import InputContract
from facefleet.packs import DetectorSpec, EmbedderSpec, LocatedManifest, Store
from facefleet.packs.fetch import digest, locked, publish

if TYPE_CHECKING:
    from onnx import ModelProto

    from facefleet.models.build.rounding import Rounder

CHUNK = 4
"""Faces that an embedder is given at once, where its answers stay the same: a tenth to a fifth less time."""
_SPARSE = ("openvino", "onnxruntime")
"""Where the last layers of a head are better computed only where there are faces: on a CPU, which waits for nobody."""
_CASTING = ("torch", "tensorrt")  # they run what the graph says
_SCENES, _SCENE_PX, _FACES = 4, 320, 32
"""What shows the layers of a detector and of an embedder what they get, where weights are rounded to bf16."""
_VERSION = 11  # raised with every change of a rewrite


@dataclass(frozen=True, slots=True)
class PreparedModel:
    """A graph ready to run.

    Attributes:
        path: ONNX file with input ``images``, a free batch, and for detectors a free height and width.
        sha256: Digest of the published file it was made from.
        last: The last convolutions, which the graph was left without; None where it is whole.
    """

    path: Path
    sha256: str
    last: Path | None = None


def prepare_detector(
    store: Store, located: LocatedManifest, *, backend: str, precision: str = "fp32", sparse: bool = False
) -> PreparedModel:
    """The detector of a pack, ready for `backend`, with casts where that backend takes its precision from the graph.

    Args:
        store: Where it is kept.
        located: The pack.
        backend: What it is to run on.
        precision: What it is to run in.
        sparse: Whether the last convolutions may be left out of it, to be computed where there are faces; done for
            backends of the CPU and graphs that have such.

    Raises:
        PackError: Its file is missing, wrong, or not understood.
    """
    sparse = sparse and backend in _SPARSE and located.manifest.detector.family == "scrfd"
    return _prepare(store, located, located.manifest.detector, "detector", backend, precision, sparse=sparse)


def prepare_embedder(store: Store, located: LocatedManifest, *, backend: str, precision: str = "fp32") -> PreparedModel:
    """The embedder of a pack; as `prepare_detector`.

    Raises:
        PackError: Its file is missing, wrong, or not understood.
    """
    return _prepare(store, located, located.manifest.embedder, "embedder", backend, precision)


def _prepare(
    store: Store,
    located: LocatedManifest,
    spec: DetectorSpec | EmbedderSpec,
    role: Literal["detector", "embedder"],
    backend: str,
    precision: str,
    *,
    sparse: bool = False,
) -> PreparedModel:
    source = store.locate(located, spec.source)
    sha256 = store.digest(source)
    prelu = backend == "onnxruntime"
    casts = precision if backend in _CASTING and precision in ("fp16", "bf16") else ""
    rounded = backend == "openvino" and precision == "bf16"
    key = hashlib.sha256(json.dumps([_VERSION, sha256, role, prelu, casts, rounded, sparse]).encode()).hexdigest()[:24]
    folder = store.home / "prepared" / key
    target = folder / f"{source.stem}.onnx"
    last = target.with_suffix(".npz")
    if target.is_file():
        return PreparedModel(target, sha256, last if last.is_file() else None)
    with locked(folder / "lock"):
        if not target.is_file():
            from facefleet.models.build.dynamic import dynamic_onnx

            model, report = dynamic_onnx(source, role=role, mean=spec.mean, std=spec.std, prelu=prelu)
            exact: frozenset[str] = frozenset()
            if sparse:
                model, exact = _without_last(model, spec, last)
            if casts:
                from facefleet.models.build.cast import cast_graph

                model = cast_graph(model, "fp16" if casts == "fp16" else "bf16")
            if rounded:
                model = rounder(model, spec).rounded(exact)
            content = {"source": str(source), "sha256": digest(source), **dataclasses.asdict(report)}
            (folder / "report.json").write_text(json.dumps(content, indent=1))
            part = target.with_suffix(".part")
            part.write_bytes(model.SerializeToString())
            publish(part, target)
    return PreparedModel(target, sha256, last if last.is_file() else None)


def _without_last(
    model: ModelProto, spec: DetectorSpec | EmbedderSpec, last: Path
) -> tuple[ModelProto, frozenset[str]]:
    """The graph without its last convolutions, checked, and those in `last`; as it is where it has none such.

    Returns:
        The graph, and the layers that are to run in fp32.
    """
    from facefleet.backends.pictures import network_input
    from facefleet.models.build.pictures import scenes
    from facefleet.models.build.sparse import check_left_out, leave_out_last

    found = leave_out_last(model)
    if found is None:
        return model, frozenset()
    rest, head = found
    pictures, _ = scenes(None, 2, _SCENE_PX, _SCENE_PX)
    inputs = network_input(pictures, InputContract(spec.color, spec.mean, spec.std))
    check_left_out(model, rest, head, inputs)
    part = last.with_suffix(".npz.part")
    head.save(part)
    publish(part, last)
    return rest, head.before


def rounder(model: ModelProto, spec: DetectorSpec | EmbedderSpec) -> Rounder:
    """Weights that bf16 can hold, fitted to drawn faces: there may be no others where a pack is first used."""
    from facefleet.backends.pictures import network_input
    from facefleet.models.build.pictures import chips, scenes
    from facefleet.models.build.rounding import Rounder

    if isinstance(spec, DetectorSpec):
        pictures, _ = scenes(None, _SCENES, _SCENE_PX, _SCENE_PX)
        positions = 16384
    else:
        pictures, _ = chips(None, _FACES, spec.height, spec.width, None)
        positions = 8192
    inputs = network_input(pictures, InputContract(spec.color, spec.mean, spec.std))
    return Rounder(model, inputs, positions=positions)
