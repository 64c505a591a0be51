"""``--precision auto``: the lowest precision of each layer under the accuracy guard, where it will run.

Owns how the choices of a search are run: a graph in a temporary file, opened by the backend. On a processor every
choice is timed on the real pictures. Where compiling takes long (a GPU), layers are timed one by one, once high and
once low, and a choice is the sum of its layers.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from facefleet.backends import InputContract, Runner, RunnerOptions, create_runner
from facefleet.models.build.judge import Judge
from facefleet.models.build.lower import Lowering
from facefleet.models.build.search import Answer, Run, SearchResult, search
from facefleet.models.build.work import gflop_by_layer
from facefleet.models.detectors import Detector, Selection, settle
from facefleet.ops import plan_letterbox
from facefleet.packs import DetectorSpec, EmbedderSpec
from facefleet.types import U8Array

_REPEATS, _TIMED = 3, 64
_BATCH = 16


@dataclass(frozen=True, slots=True)
class Place:
    """Where a network is to run.

    Attributes:
        backend: Key of `facefleet.backends.BUILT`.
        device: ``cpu`` or ``cuda[:N]``.
    """

    backend: str
    device: str = "cpu"


def search_precision(
    model: Path,
    spec: DetectorSpec | EmbedderSpec,
    pictures: U8Array,
    lowered: Lowering,
    *,
    place: Place,
    judge: Judge,
    progress: Callable[[str], None] = lambda _: None,
) -> SearchResult:
    """Find which layers of a network can take a lower precision.

    Args:
        model: Its float graph, prepared.
        spec: What the manifest says of it.
        pictures: (n, h, w, 3) uint8 RGB of one size: chips, or letterboxed photos.
        lowered: How its layers are lowered.
        place: Where it is to run.
        judge: What must hold.
        progress: Told what is being measured.

    Raises:
        BackendError: The backend refuses a choice.
    """
    contract = InputContract(spec.color, spec.mean, spec.std)
    role = "detector" if isinstance(spec, DetectorSpec) else "embedder"
    with tempfile.TemporaryDirectory(prefix="facefleet-") as folder:
        trial = _Trial(Path(folder), contract, spec, pictures, lowered, place)
        times = trial.layer_times(model)
        run = trial.run if place.device == "cpu" else trial.summed(times)
        return search(run, lowered.layers, times, low=lowered.low, judge=judge, role=role, progress=progress)


def fastest(results: Sequence[SearchResult]) -> SearchResult | None:
    """The search whose choice gains most; None where none is faster than fp32."""
    best = max(results, key=lambda result: result.speedup, default=None)
    return best if best is not None and best.speedup > 1 else None


class _Trial:
    def __init__(
        self,
        folder: Path,
        contract: InputContract,
        spec: DetectorSpec | EmbedderSpec,
        pictures: U8Array,
        lowered: Lowering,
        place: Place,
    ) -> None:
        self._folder, self._contract, self._spec = folder, contract, spec
        self._pictures, self._lowered, self._place = pictures, lowered, place

    def run(self, high: frozenset[str], timed: bool) -> tuple[Answer, float]:
        """As `search.Run`, every choice timed."""
        runner = self._runner(high)
        answer = self._answer(runner)
        if not timed:
            return answer, float("nan")
        some = self._pictures[:_TIMED]
        seconds = []
        with runner:
            runner.run(some)
            for _ in range(_REPEATS):
                started = time.perf_counter()
                runner.run(some)
                seconds.append(time.perf_counter() - started)
        return answer, min(seconds) / len(some) * 1000

    def summed(self, high_ms: dict[str, float]) -> Run:
        """As `search.Run`, a choice being the sum of its layers."""
        low_ms = self._measured(self._runner(frozenset()))

        def run(high: frozenset[str], timed: bool) -> tuple[Answer, float]:
            answer = self._answer(self._runner(high))
            if not timed:
                return answer, float("nan")
            costs = (high_ms[name] if name in high else low_ms.get(name, high_ms[name]) for name in high_ms)
            return answer, sum(costs)

        return run

    def layer_times(self, model: Path) -> dict[str, float]:
        """Milliseconds of every layer where the backend measures all of them, else their work in GFLOP."""
        layers = self._lowered.layers
        measured = self._measured(create_runner(self._place.backend, model, self._contract, self._options()))
        if all(name in measured for name in layers):
            return {name: measured[name] for name in layers}
        work = gflop_by_layer(onnx.load(model), *self._pictures.shape[1:3]) or {}
        return {name: work.get(name, 0.0) for name in layers}

    def _measured(self, runner: Runner) -> dict[str, float]:
        with runner:
            return runner.layer_milliseconds(self._pictures[:1])

    def _options(self) -> RunnerOptions:
        height, width = self._pictures.shape[1:3]
        shapes = ((1, height, width, 3), (_BATCH, height, width, 3), (_BATCH, height, width, 3))
        return RunnerOptions(
            device=self._place.device,
            warm=((height, width),),
            max_batch=_BATCH,
            profiles=(shapes,),
            eager=self._place.device != "cpu",
        )

    def _runner(self, high: frozenset[str]) -> Runner:
        file = self._folder / "choice.onnx"
        onnx.save(self._lowered.graph(high), file)
        precision, named = self._lowered.runner
        everything = len(high) == len(self._lowered.layers)
        options = replace(
            self._options(),
            precision="fp32" if everything else precision,
            fp32_layers=high if named and not everything else frozenset(),
        )
        return create_runner(self._place.backend, file, self._contract, options)

    def _answer(self, runner: Runner) -> Answer:
        """Vectors of chips, or faces of photos."""
        if isinstance(self._spec, EmbedderSpec):
            with runner:
                return runner.run(self._pictures)[0]
        height, width = self._pictures.shape[1:3]
        plan = plan_letterbox(width, height, "native", 1)
        select = Selection(self._spec.score, self._spec.nms)
        found = []
        with Detector(runner, self._spec) as detector:
            for start in range(0, len(self._pictures), _BATCH):
                found += detector.infer(self._pictures[start : start + _BATCH], select.score)
        return [settle([(plan, each)], width, height, select) for each in found]
