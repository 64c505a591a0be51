"""``--precision auto``: an 8-bit embedder under the accuracy guard, on the backend and machine it will run on.

Owns how the choices of the search are run: a quantized graph in a temporary file, opened by the backend, timed on the
real pictures.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import onnx

from facefleet.backends import InputContract, RunnerOptions, create_runner
from facefleet.models.build.pictures import network_input
from facefleet.models.build.quantize import Calibration, Quantizer
from facefleet.models.build.search import Embed, Guard, Pairs, SearchResult, search
from facefleet.models.build.work import gflop_by_layer
from facefleet.types import F32Array, U8Array

_REPEATS = 3


def search_int8(
    model: Path,
    contract: InputContract,
    chips: U8Array,
    *,
    backend: str,
    guard: Guard,
    pairs: Pairs | None = None,
    calibration: Calibration = "percentile",
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[SearchResult, Quantizer]:
    """Find which layers of an embedder can run in int8.

    Args:
        model: Float graph, prepared.
        contract: Its input.
        chips: (n, h, w, 3) uint8 RGB; the first 128 calibrate, all are compared.
        backend: ``openvino`` or ``onnxruntime``.
        guard: What must hold.
        pairs: Pairs of the chips, for losses of accuracy.
        calibration: See `Quantizer`.
        progress: Told what is being measured.

    Returns:
        The result, and the quantizer: ``quantizer.quantized(result.chosen.high)`` is the graph.

    Raises:
        GraphError: The graph cannot be quantized.
        BackendError: The backend refuses a choice.
    """
    progress("calibration")
    quantizer = Quantizer(onnx.load(model), network_input(chips, contract), calibration=calibration)
    times = _times(model, contract, chips, backend, quantizer.layers)
    with tempfile.TemporaryDirectory(prefix="facefleet-") as folder:
        embed = _embed(quantizer, Path(folder), contract, chips, backend)
        result = search(embed, quantizer.layers, times, low="int8", guard=guard, pairs=pairs, progress=progress)
    return result, quantizer


def _embed(quantizer: Quantizer, folder: Path, contract: InputContract, chips: U8Array, backend: str) -> Embed:
    options = RunnerOptions(warm=((chips.shape[1], chips.shape[2]),))

    def embed(high: frozenset[str], timed: bool) -> tuple[F32Array, float]:
        file = folder / "choice.onnx"
        onnx.save(quantizer.quantized(high), file)
        with create_runner(backend, file, contract, options) as runner:
            vectors = runner.run(chips)[0]
            if not timed:
                return vectors, float("nan")
            some = chips[: min(len(chips), 64)]
            seconds = []
            for _ in range(_REPEATS):
                started = time.perf_counter()
                runner.run(some)
                seconds.append(time.perf_counter() - started)
        return vectors, min(seconds) / len(some) * 1000

    return embed


def _times(
    model: Path, contract: InputContract, chips: U8Array, backend: str, layers: tuple[str, ...]
) -> dict[str, float]:
    """Milliseconds of every layer where the backend measures all of them, else their work in GFLOP."""
    height, width = chips.shape[1:3]
    with create_runner(backend, model, contract, RunnerOptions(warm=((height, width),))) as runner:
        measured = runner.layer_milliseconds(chips[:1])
    if all(name in measured for name in layers):
        return {name: measured[name] for name in layers}
    work = gflop_by_layer(onnx.load(model), height, width) or {}
    return {name: work.get(name, 0.0) for name in layers}
