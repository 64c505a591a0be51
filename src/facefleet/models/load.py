"""From settings to open models: pack, backend, precision, guard, self-test.

Owns the order in which the parts are made and the log of what was chosen.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from facefleet.backends import Choice, InputContract, Runner, RunnerOptions, choose, create_runner
from facefleet.config import Settings, available_threads
from facefleet.decode import Decoder
from facefleet.errors import BackendUnavailableError
from facefleet.models.detectors import Detector, Selection, SparseHead
from facefleet.models.embedders import Embedder
from facefleet.models.guard import (
    check_detector,
    check_embedder,
    compare_detectors,
    compare_embedders,
    remembered,
)
from facefleet.models.prepare import CHUNK, PreparedModel, prepare_detector, prepare_embedder
from facefleet.ops.letterbox import round_up
from facefleet.packs import DetectorSpec, EmbedderSpec, Manifest, Store
from facefleet.telemetry.record import engine_rebuilt

if TYPE_CHECKING:
    from facefleet.models.build.engines import Engine

_log = logging.getLogger(__name__)
_ROUNDED = "weights rounded together"  # a verdict of another way of rounding says nothing
Precision: TypeAlias = Literal["fp32", "bf16", "fp16", "int8"]


@dataclass(frozen=True, slots=True)
class Loaded:
    """Everything a pipeline runs on, open.

    Attributes:
        manifest: The pack.
        decoder: Bytes to pictures.
        detector: Open; None where the role was not asked for.
        embedder: Likewise.
        sizes: Detector sizes.
        select: Which faces are kept, the pack's defaults filled in.
        workers: Threads to run them from.
        detector_sha256: Digest of the detector's published file.
        embedder_sha256: Digest of the embedder's.
        description: What was chosen, for people.
        host_way: Why pictures stay on the host, in words; empty: the device holds them from decoding to embedding.
    """

    manifest: Manifest
    decoder: Decoder
    detector: Detector | None
    embedder: Embedder | None
    sizes: tuple[int | str, ...]
    select: Selection
    workers: int
    detector_sha256: str
    embedder_sha256: str
    description: dict[str, str]
    host_way: str = ""


Role: TypeAlias = Literal["detector", "embedder"]
ROLES: tuple[Role, ...] = ("detector", "embedder")


def load_models(
    pack: str, settings: Settings, stack: contextlib.ExitStack, *, roles: tuple[Role, ...] = ROLES
) -> Loaded:
    """Open the models of a pack.

    Args:
        pack: Name or path of a manifest.
        settings: All options.
        stack: Closes what is opened here.
        roles: What is opened.

    Raises:
        PackError: The pack is not there, not verified, or not understood.
        BackendUnavailableError: What is asked for is not here.
        SelfTestError: The models answer wrongly.
    """
    import cv2

    cv2.setNumThreads(1)  # pictures run side by side; threads inside one would fight over the same processors
    loader = _Loader(pack, settings, roles)
    manifest = loader.manifest
    precision = loader.precisions()
    rechecked = loader.choice.backend == "openvino" and precision[0] == "bf16"
    detector = stack.enter_context(loader.detector(precision[0], exact=rechecked)) if "detector" in roles else None
    embedder = stack.enter_context(loader.embedder(precision[1])) if "embedder" in roles else None
    select = Selection(
        score=settings.detect.score or manifest.detector.score,
        nms=settings.detect.nms or manifest.detector.nms,
        max_faces=settings.detect.max_faces,
        order=settings.detect.order,
        min_face_px=settings.detect.min_face_px,
    )
    if detector is not None:
        check_detector(detector, select.score)
    if embedder is not None:
        check_embedder(embedder)
    return Loaded(
        manifest=manifest,
        decoder=Decoder(settings.decode),
        detector=detector,
        embedder=embedder,
        sizes=settings.detect.sizes,
        select=select,
        workers=loader.threads,
        detector_sha256=loader.detector_file.sha256,
        embedder_sha256=loader.embedder_file.sha256,
        description=loader.describe(precision),
        host_way=loader.host_way,
    )


class _Loader:
    """What `load_models` knows before anything is open, and how it makes detectors and embedders of it."""

    def __init__(self, pack: str, settings: Settings, roles: tuple[Role, ...]) -> None:
        self._settings = settings
        self._store = Store(Path(settings.home) if settings.home else None)
        located = self._store.manifest(pack)
        self.manifest = located.manifest
        self.choice = choose(settings.runtime)
        self.threads = settings.runtime.threads or available_threads()
        self._located = located
        self.detector_file = prepare_detector(self._store, located, backend=self.choice.backend, sparse=True)
        self.embedder_file = prepare_embedder(self._store, located, backend=self.choice.backend)
        self.instances = settings.runtime.instances or self.threads
        self._options = RunnerOptions(device=self.choice.device, instances=self.instances, threads=self.threads)
        self.host_way = _host_way(self.choice, settings, self.manifest.detector, roles)
        if not self.host_way:  # what is run from the host is the exception: a buffer for one picture will do
            self.instances = 1
            self._options = replace(self._options, instances=1, max_batch=1)

    def detector(self, precision: Precision, *, instances: int = 0, exact: bool = False) -> Detector:
        """A detector, not open.

        Args:
            precision: Of its network.
            instances: Other than the engine's, for trying it.
            exact: Whether it has the network in fp32 too, for what it is not sure of.
        """
        spec = self.manifest.detector
        options = replace(
            self._options,
            instances=instances or self.instances,
            warm=_squares(self._settings.detect.sizes, spec),
            # Tuning the layers of a detector takes minutes for each batch size, and detecting is the smaller part.
            compiling=self._compiling("fuse"),
        )
        recheck = self._settings.detect.recheck if exact else 0.0
        runner, head = self._runner("detector", options, precision)
        second, second_head = self._runner("detector", options, "fp32") if recheck else (None, None)
        return Detector(
            runner,
            spec,
            one_scale=self._settings.detect.scale == "insightface",
            exact=second,
            recheck=recheck,
            heads=(head, second_head),
        )

    def embedder(self, precision: Precision, *, instances: int = 0) -> Embedder:
        """An embedder, not open; as `detector`."""
        spec = self.manifest.embedder
        options = replace(
            self._options,
            instances=instances or self.instances,
            warm=((spec.height, spec.width),),
            chunk=CHUNK,
            compiling=self._compiling("tune"),
        )
        runner, _ = self._runner("embedder", options, precision)
        return Embedder(runner, spec, flip=self._settings.embed.flip)

    def _compiling(self, usual: Literal["tune", "fuse"]) -> Literal["tune", "fuse", "none"]:
        wanted = self._settings.runtime.compiling
        return usual if wanted == "auto" else wanted

    def _runner(self, role: Role, options: RunnerOptions, precision: Precision) -> tuple[Runner, SparseHead | None]:
        """A runner of an engine that was built before, or of the graph; and what computes what was left out of that."""
        backend = self.choice.backend
        prepare = prepare_detector if role == "detector" else prepare_embedder
        # Lower precisions are made of the graph without the rewrites that only make one runtime faster.
        plain = prepare(self._store, self._located, backend="openvino")
        file = (
            plain if precision == "int8" else prepare(self._store, self._located, backend=backend, precision=precision)
        )
        contract = _contract(self.manifest.detector if role == "detector" else self.manifest.embedder)
        engine = self._engine(role, file, plain if precision != "fp32" else None, contract, options.warm, precision)
        if precision == "int8" and engine is None:
            raise BackendUnavailableError(
                f"no int8 engine of {file.path.stem} for {backend} in {self._settings.runtime.engines}",
                hint=f"facefleet build {self.manifest.name} --backend {backend} --precision int8 -o FOLDER",
            )
        if engine is None and role == "detector":
            file = prepare_detector(self._store, self._located, backend=backend, precision=precision, sparse=True)
        head = None if file.last is None else SparseHead.load(file.last)
        kept = head.before if head is not None else frozenset()
        options = replace(
            options,
            precision="fp32" if precision == "int8" else precision,
            fp32_layers=frozenset(engine.facts["fp32_layers"]) if engine is not None else kept,
            engine=engine.folder if engine is not None else None,
        )
        return create_runner(backend, file.path, contract, options), head

    def _engine(
        self,
        role: Role,
        file: PreparedModel,
        plain: PreparedModel | None,
        contract: InputContract,
        sides: tuple[tuple[int, int], ...],
        precision: Precision,
    ) -> Engine | None:
        folder = self._settings.runtime.engines
        if not folder:
            return None
        from facefleet.models.build.engines import EngineSpec, EngineStore
        from facefleet.models.build.profile import ANY_PROFILE

        spec = EngineSpec(
            name=file.path.stem,
            role=role,
            model=file.path,
            contract=contract,
            backend=self.choice.backend,
            precision=precision,
            profiles=(ANY_PROFILE,),
            device=self.choice.device,
            source=None if plain is None else plain.path,
        )
        found = EngineStore(Path(folder)).match(spec, sides=sides)
        if found is None:
            _log.warning("no engine of %s in %s fits: it is compiled now", file.path.stem, precision)
            engine_rebuilt(self.choice.backend)
            return None
        _log.info("%s: engine %s", role, found.folder)
        return found

    def precisions(self) -> tuple[Precision, Precision]:
        """What detector and embedder really run in."""
        wanted = self.choice.precision
        if wanted == "int8":
            return "fp32", "int8"  # there is no guard for boxes in int8
        if wanted == "fp32" or not self.choice.guarded:
            return wanted, wanted
        return (
            self._guarded(
                self.detector_file,
                lambda: compare_detectors(
                    lambda: self.detector("fp32", instances=1), lambda: self.detector(wanted, instances=1)
                ),
            ),
            self._guarded(
                self.embedder_file,
                lambda: compare_embedders(
                    lambda: self.embedder("fp32", instances=1), lambda: self.embedder(wanted, instances=1)
                ),
            ),
        )

    def _guarded(self, file: PreparedModel, measure: Callable[[], dict[str, float | bool]]) -> Precision:
        wanted = self.choice.precision
        if remembered(self._store.home, [file.sha256, self.choice.backend, wanted, _ROUNDED, file.path.name], measure):
            return wanted
        _log.warning("%s loses too much accuracy in %s and runs in fp32", file.path.name, wanted)
        return "fp32"

    def describe(self, precisions: tuple[Precision, Precision]) -> dict[str, str]:
        """What was chosen, for people."""
        manifest = self.manifest
        sizes = ", ".join(_shown(size, manifest) for size in self._settings.detect.sizes)
        detect, embed = precisions
        return {
            "pack": manifest.name,
            "license": manifest.license,
            "backend": self.choice.backend,
            "device": self.choice.device,
            "precision": detect if detect == embed else f"detector {detect}, embedder {embed}",
            "threads": str(self.threads),
            "detector": f"{manifest.detector.family} at {sizes}",
            "embedder": f"{manifest.embedder.family}, {manifest.embedder.dimension} dimensions",
            "chosen": self.choice.reason,
        }


def _host_way(choice: Choice, settings: Settings, spec: DetectorSpec, roles: tuple[Role, ...]) -> str:
    """Why pictures stay on the host, in words; empty: they need not."""
    if choice.backend != "torch" or not choice.device.startswith("cuda"):
        return f"{choice.backend} runs on {choice.device}"
    if "detector" not in roles:
        return "faces come aligned"
    if not settings.runtime.resident:
        return "runtime.resident=false"
    if settings.batch.target_p99_ms:
        return "batches adapt to a target"
    from facefleet.models.detectors.device import why_not

    return why_not(spec, settings.detect.sizes)


def _contract(spec: DetectorSpec | EmbedderSpec) -> InputContract:
    return InputContract(spec.color, spec.mean, spec.std)


def _squares(sizes: tuple[int | str, ...], spec: DetectorSpec) -> tuple[tuple[int, int], ...]:
    """Input sizes that get a plan of their own: those of square inputs; tight ones are as many as pictures."""
    if spec.fit == "tight":
        return ()
    sides = [round_up(size, spec.stride) for size in sizes if isinstance(size, int)]
    return tuple((side, side) for side in dict.fromkeys(sides))


def _shown(size: int | str, manifest: Manifest) -> str:
    """A detector size with what it is rounded up to."""
    if isinstance(size, str):
        return size
    side = round_up(size, manifest.detector.stride)
    return str(size) if side == size else f"{size} (rounded up to {side})"
