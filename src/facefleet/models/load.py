"""From settings to open models: pack, backend, precision, guard, self-test.

Owns the order in which the parts are made and the log of what was chosen.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from facefleet.backends import Choice, InputContract, RunnerOptions, choose, create_runner
from facefleet.config import Settings, available_threads
from facefleet.decode import Decoder
from facefleet.models.detectors import Detector, Selection
from facefleet.models.embedders import Embedder
from facefleet.models.guard import compare_detectors, compare_embedders, remembered, self_test
from facefleet.models.prepare import PreparedModel, prepare_detector, prepare_embedder
from facefleet.ops.letterbox import round_up
from facefleet.packs import DetectorSpec, EmbedderSpec, Manifest, Store

_log = logging.getLogger(__name__)
# In bf16 the layers at the finest resolutions stay in fp32: most of the rounding error starts there.
_DETECTOR_FP32_STRIDE, _EMBEDDER_FP32_STRIDE = 8, 2
Precision: TypeAlias = Literal["fp32", "bf16"]


@dataclass(frozen=True, slots=True)
class Loaded:
    """Everything a pipeline runs on, open.

    Attributes:
        manifest: The pack.
        decoder: Bytes to pictures.
        detector: Open.
        embedder: Open.
        sizes: Detector sizes.
        select: Which faces are kept, the pack's defaults filled in.
        workers: Threads to run them from.
        detector_sha256: Digest of the detector's published file.
        embedder_sha256: Digest of the embedder's.
        description: What was chosen, for people.
    """

    manifest: Manifest
    decoder: Decoder
    detector: Detector
    embedder: Embedder
    sizes: tuple[int | str, ...]
    select: Selection
    workers: int
    detector_sha256: str
    embedder_sha256: str
    description: dict[str, str]


def load_models(pack: str, settings: Settings, stack: contextlib.ExitStack) -> Loaded:
    """Open the models of a pack.

    Args:
        pack: Name or path of a manifest.
        settings: All options.
        stack: Closes what is opened here.

    Raises:
        PackError: The pack is not there, not verified, or not understood.
        BackendUnavailableError: What is asked for is not here.
        SelfTestError: The models answer wrongly.
    """
    import cv2

    store = Store(Path(settings.home) if settings.home else None)
    located = store.manifest(pack)
    manifest = located.manifest
    choice = choose(settings.runtime)
    threads = settings.runtime.threads or available_threads()
    cv2.setNumThreads(1)  # pictures run side by side; threads inside one would fight over the same processors
    detector_file = prepare_detector(store, located, backend=choice.backend)
    embedder_file = prepare_embedder(store, located, backend=choice.backend)
    sizes = settings.detect.sizes
    options = RunnerOptions(device=choice.device, instances=threads, threads=threads)

    def make_detector(precision: Precision, options: RunnerOptions = options) -> Detector:
        chosen = replace(
            options, precision=precision, warm=_squares(sizes, manifest.detector), fp32_stride=_DETECTOR_FP32_STRIDE
        )
        runner = create_runner(choice.backend, detector_file.path, _contract(manifest.detector), chosen)
        return Detector(runner, manifest.detector, one_scale=settings.detect.scale == "insightface")

    def make_embedder(precision: Precision, options: RunnerOptions = options) -> Embedder:
        size = (manifest.embedder.height, manifest.embedder.width)
        chosen = replace(options, precision=precision, warm=(size,), fp32_stride=_EMBEDDER_FP32_STRIDE)
        runner = create_runner(choice.backend, embedder_file.path, _contract(manifest.embedder), chosen)
        return Embedder(runner, manifest.embedder, flip=settings.embed.flip)

    alone = replace(options, instances=1)
    detect = _precision(
        store,
        choice,
        detector_file,
        lambda: compare_detectors(lambda: make_detector("fp32", alone), lambda: make_detector(choice.precision, alone)),
    )
    embed = _precision(
        store,
        choice,
        embedder_file,
        lambda: compare_embedders(lambda: make_embedder("fp32", alone), lambda: make_embedder(choice.precision, alone)),
    )
    detector = stack.enter_context(make_detector(detect))
    embedder = stack.enter_context(make_embedder(embed))
    select = Selection(
        score=settings.detect.score or manifest.detector.score,
        nms=settings.detect.nms or manifest.detector.nms,
        max_faces=settings.detect.max_faces,
        order=settings.detect.order,
        min_face_px=settings.detect.min_face_px,
    )
    self_test(detector, embedder, select.score)
    description = {
        "pack": manifest.name,
        "license": manifest.license,
        "backend": choice.backend,
        "device": choice.device,
        "precision": detect if detect == embed else f"detector {detect}, embedder {embed}",
        "threads": str(threads),
        "detector": f"{manifest.detector.family} at {', '.join(_shown(size, manifest) for size in sizes)}",
        "embedder": f"{manifest.embedder.family}, {manifest.embedder.dimension} dimensions",
        "chosen": choice.reason,
    }
    return Loaded(
        manifest=manifest,
        decoder=Decoder(settings.decode),
        detector=detector,
        embedder=embedder,
        sizes=sizes,
        select=select,
        # OpenVINO computes in threads of its own: while all of them are busy, one more worker decodes and aligns.
        workers=threads + 1 if choice.backend == "openvino" else threads,
        detector_sha256=detector_file.sha256,
        embedder_sha256=embedder_file.sha256,
        description=description,
    )


def _precision(
    store: Store, choice: Choice, file: PreparedModel, measure: Callable[[], dict[str, float | bool]]
) -> Precision:
    """The precision a model really runs in."""
    if choice.precision == "fp32" or not choice.guarded:
        return choice.precision
    if remembered(store.home, [file.sha256, choice.backend, choice.precision, file.path.name], measure):
        return choice.precision
    _log.warning("%s loses too much accuracy in %s and runs in fp32", file.path.name, choice.precision)
    return "fp32"


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
