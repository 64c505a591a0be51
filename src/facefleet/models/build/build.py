"""From a pack or a graph to engines that passed the gate: `EngineFromOnnx`.

Owns the order: prepare, hold the profile against the graph, try the batches, choose the precision, build, gate,
publish.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
from onnx import load, save

from facefleet.backends import InputContract, Runner, RunnerOptions, create_runner
from facefleet.errors import ConfigError
from facefleet.models.build.auto import search_int8
from facefleet.models.build.engines import Engine, EngineSpec, EngineStore
from facefleet.models.build.parity import ParityReport, compare
from facefleet.models.build.pictures import chips, network_input, read_pairs, scenes
from facefleet.models.build.profile import MemoryEstimate, Profile, Span, check_profile, estimate_memory
from facefleet.models.build.quantize import Calibration, Quantizer
from facefleet.models.build.search import Guard, SearchResult, read_recipe
from facefleet.models.build.trial import try_batches
from facefleet.models.detectors import Detector
from facefleet.models.prepare import FP32_CONVOLUTIONS, PreparedModel, prepare_detector, prepare_embedder
from facefleet.packs import DetectorSpec, EmbedderSpec, LocatedManifest, Store
from facefleet.types import U8Array

_log = logging.getLogger(__name__)
_REFERENCE_FP32 = RunnerOptions()
_CALIBRATION_FACES = 256
Prepare = Callable[..., PreparedModel]
BuildPrecision = Literal["fp32", "bf16", "fp16", "int8"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be built, as the command line says it.

    Attributes:
        backend: Key of `facefleet.backends.BACKENDS`.
        batch: Batch sizes.
        size: Detector sides in pixels; embedders have their own.
        precision: See `EngineSpec`.
        mode: See `EngineSpec`.
        threads: Processor threads.
        pictures: Photos to gate and calibrate with; None: drawn faces.
        guard: What int8 must hold with ``auto``.
        recipe: Layers that stay in fp32 with ``int8``, as a file; None: none.
        pools: Memory pool -> bytes, for TensorRT.
        device: ``cpu`` or ``cuda[:N]``.
        hardware_compatible: Whether a TensorRT plan runs on other GPUs too.
        calibration: How int8 finds its ranges; see `Quantizer`.
        pairs: File of labeled pairs of photos, for losses of accuracy with ``auto``; see `read_pairs`.
    """

    backend: str
    batch: Span
    size: Span
    precision: BuildPrecision | Literal["auto"] = "fp32"
    mode: Literal["throughput", "latency"] = "throughput"
    threads: int = 1
    pictures: Path | None = None
    guard: Guard = field(default_factory=Guard)
    recipe: Path | None = None
    pools: dict[str, int] = field(default_factory=dict)
    device: str = "cpu"
    hardware_compatible: bool = False
    calibration: Calibration = "percentile"
    pairs: Path | None = None


@dataclass(frozen=True, slots=True)
class Built:
    """One engine and what was learned on the way.

    Attributes:
        engine: Published.
        report: The gate's; None where the engine was there already.
        memory: Estimate for its profile.
        search: What was found with ``auto``.
    """

    engine: Engine
    report: ParityReport | None
    memory: MemoryEstimate
    search: SearchResult | None = None


def build_pack(
    store: Store,
    located: LocatedManifest,
    wanted: Wanted,
    engines: EngineStore,
    *,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Built]:
    """Build both engines of a pack.

    With ``int8`` and ``auto`` the embedder is quantized and the detector stays in fp32: its boxes are few
    multiplications away from pixels, and there is no guard for them.

    Raises:
        ProfileError: The profile contradicts itself or a network.
        GraphError: A network does not run at the batch sizes wanted.
        ParityError: An engine answers differently from the reference.
        BackendError: The runtime refuses a network.
    """
    manifest = located.manifest
    integers = wanted.precision in ("int8", "auto")
    # The reference is the graph without the rewrites that only make one runtime faster.
    plain = [prepare(store, located, backend="openvino") for prepare in (prepare_detector, prepare_embedder)]
    detector = replace(wanted, precision="fp32") if integers else wanted
    made = [
        build_engine(
            engine_spec(_file(prepare_detector, store, located, detector), manifest.detector, detector),
            detector,
            engines,
            stride=manifest.detector.stride,
            reference=plain[0].path,
        )
    ]
    with contextlib.ExitStack() as stack:
        finder = None
        if wanted.pictures is not None or wanted.pairs is not None:
            finder = stack.enter_context(_finder(plain[0], manifest.detector))
        if integers:
            made.append(_build_int8(plain[1], manifest.embedder, wanted, engines, finder, progress))
        else:
            file = _file(prepare_embedder, store, located, wanted)
            spec = engine_spec(file, manifest.embedder, wanted)
            made.append(build_engine(spec, wanted, engines, detector=finder, reference=plain[1].path))
    return made


def _file(prepare: Prepare, store: Store, located: LocatedManifest, wanted: Wanted) -> PreparedModel:
    return prepare(store, located, backend=wanted.backend, precision=wanted.precision)


def _build_int8(
    plain: PreparedModel,
    embedder: EmbedderSpec,
    wanted: Wanted,
    engines: EngineStore,
    finder: Detector | None,
    progress: Callable[[str], None],
) -> Built:
    contract = InputContract(embedder.color, embedder.mean, embedder.std)
    pictures, source = chips(wanted.pictures, _CALIBRATION_FACES, embedder.height, embedder.width, finder)
    if source == "drawn faces":
        _log.warning("calibrated on drawn faces: give --pictures for a network that is to be used")
    result, pairs = None, None
    if wanted.precision == "auto":
        searched = pictures
        if wanted.pairs is not None and finder is not None:
            labeled, pairs = read_pairs(wanted.pairs, finder, embedder.height, embedder.width)
            # Behind those that calibrate: the engine's key speaks of them alone.
            searched = np.concatenate([pictures, labeled])
            pairs = replace(pairs, first=pairs.first + len(pictures), second=pairs.second + len(pictures))
        result, quantizer = search_int8(
            plain.path,
            contract,
            searched,
            backend=wanted.backend,
            guard=wanted.guard,
            pairs=pairs,
            calibration=wanted.calibration,
            progress=progress,
        )
        high = result.chosen.high
    else:
        progress("calibration")
        quantizer = Quantizer(load(plain.path), network_input(pictures, contract), calibration=wanted.calibration)
        high = read_recipe(wanted.recipe, quantizer.layers, "int8") if wanted.recipe else frozenset()
    with tempfile.TemporaryDirectory(prefix="facefleet-") as folder:
        graph = Path(folder) / f"{plain.path.stem}.onnx"
        save(quantizer.quantized(high), graph)
        spec = engine_spec(PreparedModel(graph, plain.sha256), embedder, replace(wanted, precision="int8"))
        variant = {
            "calibration": wanted.calibration,
            "fp32_layers": sorted(high),
            "pictures": hashlib.sha256(pictures.tobytes()).hexdigest(),
        }
        spec = replace(spec, source=plain.path, variant=variant)
        built = build_engine(spec, wanted, engines, detector=finder, reference=plain.path)
    return replace(built, search=result)


def engine_spec(file: PreparedModel, spec: DetectorSpec | EmbedderSpec, wanted: Wanted) -> EngineSpec:
    """What to build of a pack's network."""
    assert wanted.precision != "auto", "settled before an engine is built"
    if isinstance(spec, DetectorSpec):
        role: Literal["detector", "embedder"] = "detector"
        profile = Profile(wanted.batch, wanted.size, wanted.size)
    else:
        role = "embedder"
        profile = Profile(wanted.batch, *(Span(side, side, side) for side in (spec.height, spec.width)))
    return EngineSpec(
        name=file.path.stem,
        role=role,
        model=file.path,
        contract=InputContract(spec.color, spec.mean, spec.std),
        backend=wanted.backend,
        precision=wanted.precision,
        profile=profile,
        mode=wanted.mode,
        fp32_convolutions=_fp32_convolutions(role, wanted),
        device=wanted.device,
        pools=wanted.pools,
        hardware_compatible=wanted.hardware_compatible,
    )


def _fp32_convolutions(role: str, wanted: Wanted) -> int:
    return FP32_CONVOLUTIONS[role] if wanted.backend == "openvino" and wanted.precision == "bf16" else 0


def build_engine(
    spec: EngineSpec,
    wanted: Wanted,
    engines: EngineStore,
    *,
    stride: int = 1,
    detector: Detector | None = None,
    reference: Path | None = None,
) -> Built:
    """Build one engine, or find it.

    Args:
        spec: What to build.
        wanted: As for `build_pack`.
        engines: Where it is published.
        stride: Of a detector, in pixels.
        detector: Open; finds faces in photos for an embedder.
        reference: Graph that ONNX Runtime answers with; `spec.model` by default.

    Raises:
        As `build_pack`.
    """
    _check_precision(spec)
    model = load(spec.model)
    check_profile(model, spec.profile, stride=stride)
    memory = estimate_memory(model, spec.profile)
    _log.info("%s: %s", spec.name, memory.summary())
    found = engines.find(spec)
    if found is not None:
        return Built(found, None, memory)
    pictures, source = _pictures(spec, wanted.pictures, detector)
    batches = sorted({1, 2, spec.profile.batch.opt, spec.profile.batch.max})
    tried = load(reference) if reference is not None else model  # in float32: not every runtime knows other types
    try_batches(tried, batches, network_input(pictures, spec.contract)).require(spec.name)
    reports: list[ParityReport] = []

    def gate(runner: Runner) -> ParityReport:
        report = _gated(spec, runner, reference or spec.model, pictures, source, batches)
        reports.append(report)
        return report

    engine = engines.build(spec, gate, threads=wanted.threads)
    return Built(engine, reports[0] if reports else None, memory)


def _gated(
    spec: EngineSpec, runner: Runner, reference: Path, pictures: U8Array, source: str, batches: list[int]
) -> ParityReport:
    with create_runner("onnxruntime", reference, spec.contract, _REFERENCE_FP32) as trusted:
        return compare(
            trusted.run_unchecked,
            runner.run_unchecked,
            pictures,
            names=trusted.output_names,
            batches=batches,
            precision=spec.precision,
            source=source,
        )


def _pictures(spec: EngineSpec, folder: Path | None, detector: Detector | None) -> tuple[U8Array, str]:
    height, width = spec.profile.height.opt, spec.profile.width.opt
    count = min(max(8, spec.profile.batch.max), 64 if spec.role == "embedder" else 16)
    if spec.role == "detector":
        return scenes(folder, count, height, width)
    return chips(folder, count, height, width, detector)


def _finder(file: PreparedModel, spec: DetectorSpec) -> Detector:
    options = replace(_REFERENCE_FP32, warm=((640, 640),))
    contract = InputContract(spec.color, spec.mean, spec.std)
    return Detector(create_runner("onnxruntime", file.path, contract, options), spec)


_PRECISIONS: dict[str, tuple[str, ...]] = {
    "onnxruntime": ("fp32", "int8"),
    "openvino": ("fp32", "bf16", "int8"),
    "torch": ("fp32", "bf16", "fp16"),
    "tensorrt": ("fp32", "bf16", "fp16"),
}


def _check_precision(spec: EngineSpec) -> None:
    allowed = _PRECISIONS.get(spec.backend)
    if allowed is None:
        raise ConfigError(f"backend {spec.backend!r} builds no engines here", hint=f"use {', '.join(_PRECISIONS)}")
    if spec.precision not in allowed:
        raise ConfigError(
            f"{spec.backend} has no precision {spec.precision}", hint=f"choose one of {', '.join(allowed)}"
        )
    if spec.precision == "bf16" and spec.backend == "openvino":
        from facefleet.backends.registry import require_bf16

        require_bf16()
