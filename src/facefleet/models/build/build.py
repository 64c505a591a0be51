"""From a pack or a graph to engines that passed the gate: `EngineFromOnnx`.

Owns the order: prepare, hold the profile against the graph, try the batches, choose the precision, build, gate,
publish.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import tempfile
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
from onnx import load, save

from facefleet.backends import InputContract, Runner, RunnerOptions, create_runner
from facefleet.backends.pictures import network_input
from facefleet.errors import ConfigError
from facefleet.models.build.auto import Place, fastest, search_precision
from facefleet.models.build.engines import Engine, EngineSpec, EngineStore
from facefleet.models.build.judge import DetectorJudge, EmbedderJudge, Guard, Judge
from facefleet.models.build.lower import Low, Lowering, lowering, possible
from facefleet.models.build.parity import ParityReport, compare, together
from facefleet.models.build.pictures import chips, read_pairs, scenes
from facefleet.models.build.profile import MemoryEstimate, Profile, Span, check_profiles, estimate_memory
from facefleet.models.build.quantize import Calibration
from facefleet.models.build.recipe import Recipe
from facefleet.models.build.search import SearchResult
from facefleet.models.build.trial import try_batches
from facefleet.models.detectors import Detector
from facefleet.models.prepare import PreparedModel, prepare_detector, prepare_embedder
from facefleet.packs import DetectorSpec, EmbedderSpec, LocatedManifest, Store
from facefleet.types import U8Array

_log = logging.getLogger(__name__)
_REFERENCE_FP32 = RunnerOptions()
_CALIBRATION_FACES, _SEARCH_SCENES = 256, 32
_PREPARE: dict[str, Callable[..., PreparedModel]] = {"detector": prepare_detector, "embedder": prepare_embedder}
BuildPrecision = Literal["fp32", "bf16", "fp16", "int8"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be built, as the command line says it.

    Attributes:
        backend: Key of `facefleet.backends.BACKENDS`.
        profiles: Batches and detector sides; embedders have sides of their own. One engine has them all.
        precision: See `EngineSpec`; ``auto``: of each layer by itself, under the guard.
        mode: See `EngineSpec`.
        threads: Processor threads.
        pictures: Photos to gate, calibrate and search with; None: drawn faces.
        guard: What a lower precision must hold with ``auto``.
        recipes: By role, the precision of its layers, instead of `precision`.
        pools: Memory pool -> bytes, for TensorRT.
        device: ``cpu`` or ``cuda[:N]``.
        hardware_compatible: Whether a TensorRT plan runs on other GPUs too.
        calibration: How int8 finds its ranges; see `Quantizer`.
        pairs: File of labeled pairs of photos, for losses of accuracy with ``auto``; see `read_pairs`.
    """

    backend: str
    profiles: tuple[Profile, ...]
    precision: BuildPrecision | Literal["auto"] = "fp32"
    mode: Literal["throughput", "latency"] = "throughput"
    threads: int = 1
    pictures: Path | None = None
    guard: Guard = field(default_factory=Guard)
    recipes: dict[str, Recipe] = field(default_factory=dict)
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
        memory: Estimates for its profiles.
        searches: What was found with ``auto``, one a precision that was tried; the one that was taken comes first.
    """

    engine: Engine
    report: ParityReport | None
    memory: tuple[MemoryEstimate, ...]
    searches: tuple[SearchResult, ...] = ()


def build_pack(
    store: Store,
    located: LocatedManifest,
    wanted: Wanted,
    engines: EngineStore,
    *,
    roles: Collection[str] = ("detector", "embedder"),
    progress: Callable[[str], None] = lambda _: None,
) -> list[Built]:
    """Build the engines of a pack, both or those of `roles`.

    With ``int8`` the embedder is quantized and the detector stays in fp32: its boxes are few multiplications away from
    pixels.

    Raises:
        ProfileError: A profile contradicts itself or a network.
        GraphError: A network does not run at the batch sizes wanted.
        ParityError: An engine answers differently from the reference.
        BackendError: The runtime refuses a network.
        ConfigError: The backend does not have the precision, or a recipe does not fit its network.
    """
    manifest = located.manifest
    # The reference is the graph without the rewrites that only make one runtime faster.
    finds = wanted.pictures is not None or wanted.pairs is not None
    needed = {*roles, "detector"} if finds else set(roles)
    plain = {role: _PREPARE[role](store, located, backend="openvino") for role in _PREPARE if role in needed}
    specs: dict[str, DetectorSpec | EmbedderSpec] = {"detector": manifest.detector, "embedder": manifest.embedder}
    made = []
    with contextlib.ExitStack() as stack:
        finder = None
        if finds:
            finder = stack.enter_context(_finder(plain["detector"], manifest.detector))
        for role, spec in ((role, specs[role]) for role in _PREPARE if role in roles):
            work = _Work(wanted, engines, plain[role], spec, finder, progress)
            recipe = wanted.recipes.get(role)
            if recipe is not None:
                made.append(work.by_recipe(recipe))
            elif wanted.precision == "auto":
                made.append(work.searched(functools.partial(_PREPARE[role], store, located, backend=wanted.backend)))
            elif wanted.precision == "int8" and role == "embedder":
                made.append(work.lowered("int8"))
            else:
                precision = "fp32" if wanted.precision == "int8" else wanted.precision
                file = _PREPARE[role](store, located, backend=wanted.backend, precision=precision)
                made.append(work.whole(file, precision))
    return made


class _Work:
    """One network of a pack on its way to an engine."""

    def __init__(
        self,
        wanted: Wanted,
        engines: EngineStore,
        plain: PreparedModel,
        spec: DetectorSpec | EmbedderSpec,
        finder: Detector | None,
        progress: Callable[[str], None],
    ) -> None:
        self._wanted, self._engines, self._plain, self._spec = wanted, engines, plain, spec
        self._finder, self._progress = finder, progress
        self._contract = InputContract(spec.color, spec.mean, spec.std)

    def whole(self, file: PreparedModel, precision: BuildPrecision) -> Built:
        """An engine in one precision."""
        return self._build(engine_spec(file, self._spec, self._wanted, precision, source=self._plain.path))

    def by_recipe(self, recipe: Recipe) -> Built:
        """An engine whose layers have the precisions of a recipe."""
        return self.lowered(recipe.low, recipe)  # type: ignore[arg-type]  # checked when it was read

    def lowered(self, low: Low, recipe: Recipe | None = None) -> Built:
        """An engine with every layer in a lower precision, or as a recipe says."""
        self._progress("calibration" if low == "int8" else "rounding")
        lowered = self._lowering(low, self._pictures())
        return self._of(lowered, recipe.high(lowered.layers) if recipe is not None else frozenset())

    def searched(self, prepared: Callable[[], PreparedModel]) -> Built:
        """An engine in whatever is fastest under the guard; in fp32, of the graph `prepared`, where nothing is."""
        pictures = self._pictures()
        judge: Judge = DetectorJudge(self._wanted.guard)
        searched = pictures
        if isinstance(self._spec, EmbedderSpec):
            pairs = None
            if self._wanted.pairs is not None and self._finder is not None:
                labeled, pairs = read_pairs(self._wanted.pairs, self._finder, self._spec.height, self._spec.width)
                # Behind those that calibrate: the engine's key speaks of them alone.
                searched = np.concatenate([pictures, labeled])
                pairs = replace(pairs, first=pairs.first + len(pictures), second=pairs.second + len(pictures))
            judge = EmbedderJudge(self._wanted.guard, pairs)
        place = Place(self._wanted.backend, self._wanted.device)
        lowerings, results = {}, []
        for low in possible(place.backend, place.device, self._role):
            self._progress(f"{self._role}: {low}")
            lowerings[low] = self._lowering(low, pictures)
            results.append(
                search_precision(
                    self._plain.path,
                    self._spec,
                    searched,
                    lowerings[low],
                    place=place,
                    judge=judge,
                    progress=self._progress,
                )
            )
        best = fastest(results)
        if best is None:
            self._progress(f"{self._role}: nothing is faster than fp32 and holds the guard")
            return replace(self.whole(prepared(), "fp32"), searches=tuple(results))
        ordered = (best, *(result for result in results if result is not best))
        return replace(self._of(lowerings[best.low], best.chosen.high), searches=ordered)  # type: ignore[index]

    @property
    def _role(self) -> str:
        return "detector" if isinstance(self._spec, DetectorSpec) else "embedder"

    def _lowering(self, low: Low, pictures: U8Array) -> Lowering:
        return lowering(
            low,
            self._plain.path,
            self._spec,
            backend=self._wanted.backend,
            pictures=pictures,
            calibration=self._wanted.calibration,
        )

    def _pictures(self) -> U8Array:
        if isinstance(self._spec, DetectorSpec):
            first = self._wanted.profiles[0]
            return scenes(self._wanted.pictures, _SEARCH_SCENES, first.height.opt, first.width.opt)[0]
        pictures, source = chips(
            self._wanted.pictures, _CALIBRATION_FACES, self._spec.height, self._spec.width, self._finder
        )
        if source == "drawn faces":
            _log.warning("drawn faces decide: give --pictures for a network that is to be used")
        return pictures

    def _of(self, lowered: Lowering, high: frozenset[str]) -> Built:
        """Build a choice of layers."""
        with tempfile.TemporaryDirectory(prefix="facefleet-") as folder:
            graph = Path(folder) / f"{self._plain.path.stem}.onnx"
            save(lowered.graph(high), graph)
            file = PreparedModel(graph, self._plain.sha256)
            spec = engine_spec(file, self._spec, self._wanted, lowered.low, source=self._plain.path)
            variant = {**lowered.variant, "fp32_layers": sorted(high)}
            if lowered.low == "int8":
                variant["pictures"] = hashlib.sha256(self._pictures().tobytes()).hexdigest()
            named = tuple(sorted(high)) if lowered.runner[1] else ()
            return self._build(replace(spec, variant=variant, fp32_layers=named))

    def _build(self, spec: EngineSpec) -> Built:
        stride = self._spec.stride if isinstance(self._spec, DetectorSpec) else 1
        finder = self._finder if isinstance(self._spec, EmbedderSpec) else None
        return build_engine(
            spec, self._wanted, self._engines, stride=stride, detector=finder, reference=self._plain.path
        )


def engine_spec(
    file: PreparedModel,
    spec: DetectorSpec | EmbedderSpec,
    wanted: Wanted,
    precision: BuildPrecision,
    *,
    source: Path | None = None,
) -> EngineSpec:
    """What to build of a pack's network.

    Args:
        file: The graph that is built.
        spec: What the manifest says of it.
        wanted: As for `build_pack`.
        precision: Of this network.
        source: The float graph it was made from, where it was lowered.
    """
    profiles = wanted.profiles
    if isinstance(spec, EmbedderSpec):
        sides = [Span(side, side, side) for side in (spec.height, spec.width)]
        profiles = tuple(dict.fromkeys(Profile(each.batch, *sides) for each in profiles))
    return EngineSpec(
        name=file.path.stem,
        role="detector" if isinstance(spec, DetectorSpec) else "embedder",
        model=file.path,
        contract=InputContract(spec.color, spec.mean, spec.std),
        backend=wanted.backend,
        precision=precision,
        profiles=profiles,
        mode=wanted.mode,
        source=source if precision != "fp32" else None,
        device=wanted.device,
        pools=wanted.pools,
        hardware_compatible=wanted.hardware_compatible,
    )


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
    check_profiles(model, spec.profiles, stride=stride)
    memory = tuple(estimate_memory(model, profile) for profile in spec.profiles)
    for estimate in memory:
        _log.info("%s: %s", spec.name, estimate.summary())
    found = engines.find(spec)
    if found is not None:
        return Built(found, None, memory)
    tried = load(reference) if reference is not None else model  # in float32: not every runtime knows other types
    samples = _samples(spec, wanted.pictures, detector)
    for pictures, _, batches in samples:
        try_batches(tried, batches, network_input(pictures, spec.contract)).require(spec.name)
    reports: list[ParityReport] = []

    def gate(runner: Runner) -> ParityReport:
        with create_runner("onnxruntime", reference or spec.model, spec.contract, _REFERENCE_FP32) as trusted:
            seen = [
                compare(
                    trusted.run_unchecked,
                    runner.run_unchecked,
                    pictures,
                    names=trusted.output_names,
                    batches=batches,
                    precision=spec.precision,
                    source=source,
                )
                for pictures, source, batches in samples
            ]
        reports.append(together(seen))
        return reports[0]

    engine = engines.build(spec, gate, threads=wanted.threads)
    return Built(engine, reports[0] if reports else None, memory)


def _samples(spec: EngineSpec, folder: Path | None, detector: Detector | None) -> list[tuple[U8Array, str, list[int]]]:
    """Pictures, what they are, and the batches to run them in, for every size that a profile is tuned for."""
    sizes: dict[tuple[int, int], set[int]] = {}
    for profile in spec.profiles:
        usual = (profile.height.opt, profile.width.opt)
        sizes.setdefault(usual, {1, 2}).update((profile.batch.min, profile.batch.opt, profile.batch.max))
    found = []
    for (height, width), batches in sizes.items():
        count = min(max(8, *batches), 64 if spec.role == "embedder" else 16)
        if spec.role == "detector":
            pictures, source = scenes(folder, count, height, width)
        else:
            pictures, source = chips(folder, count, height, width, detector)
        found.append((pictures, source, sorted(batches)))
    return found


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
