"""A lower precision of an embedder on OpenVINO: which layers stand it, how much faster it is, what it costs on LFW.

    FACEFLEET_DATA=... python benchmarks/int8_lfw.py [--embedder sface|mobilefacenet] [--precision int8|bf16]
        [--guard-mean 0.999] [-o FOLDER]

The search compares 256 faces with float32; its choice is then verified on all 6,000 pairs of LFW beside
float32, in the same run, and timed with one thread, picture by picture, the two in turn. Writes the recipe and the
plot to FOLDER and prints a line of JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from data_packs import data_folder, write_pack
from facefleet import Engine, Settings
from facefleet.backends import InputContract, RunnerOptions, create_runner
from facefleet.config import DetectSettings, RuntimeSettings
from facefleet.models.build.auto import Place, search_precision
from facefleet.models.build.judge import EmbedderJudge, Guard, Pairs
from facefleet.models.build.lower import lowering
from facefleet.models.build.plot import plot_search
from facefleet.models.build.recipe import recipe_text
from facefleet.models.prepare import prepare_embedder
from facefleet.ops.verification import verification
from facefleet.packs import Store
from lfw import read_pairs

SEARCH_FACES = 256


def lfw_chips(data: Path, pack: str, names: list[str]) -> Any:  # noqa: ANN401
    """(n, 112, 112, 3) uint8: the face nearest the center of every picture."""
    settings = Settings(
        pack=pack,
        detect=DetectSettings(order="center", max_faces=1),
        runtime=RuntimeSettings(backend="openvino"),
    )
    with Engine(settings) as engine:
        files = [data / "lfw" / "lfw-deepfunneled" / name for name in names]
        return np.concatenate([outcome.unwrap().chips for outcome in engine.map(files, chips=True)])


def pairs_within(pairs: list[tuple[str, str, bool, int]], names: list[str]) -> Pairs:
    """The pairs both of whose pictures are among `names`."""
    position = {name: i for i, name in enumerate(names)}
    kept = [pair for pair in pairs if pair[0] in position and pair[1] in position]
    return Pairs(
        np.array([position[a] for a, _, _, _ in kept]),
        np.array([position[b] for _, b, _, _ in kept]),
        np.array([same for _, _, same, _ in kept]),
        np.array([fold for _, _, _, fold in kept]),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--embedder", default="sface")
    parser.add_argument("--precision", default="int8", choices=("int8", "bf16"))
    parser.add_argument("--guard-mean", type=float, default=0.999)
    parser.add_argument("--guard-min", type=float, default=0.99)
    parser.add_argument("--output", "-o", type=Path, default=Path("int8"))
    options = parser.parse_args()
    data = data_folder()
    names: list[str] = json.loads((data / "reference/lfw_names.json").read_text())
    pairs = read_pairs(data / "lfw/pairs.txt")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        pack = "opencv"
        if options.embedder != "sface":
            pack = str(write_pack(Path(folder), data, "yunet_dynamic", options.embedder))
        store = Store()
        located = store.manifest(pack)
        spec = located.manifest.embedder
        contract = InputContract(spec.color, spec.mean, spec.std)
        model = prepare_embedder(store, located, backend="openvino").path
        chips = lfw_chips(data, pack, names)
        rows = np.linspace(0, len(names) - 1, SEARCH_FACES).astype(int)
        lowered = lowering(options.precision, model, spec, backend="openvino", pictures=chips[rows])
        result = search_precision(
            model,
            spec,
            chips[rows],
            lowered,
            place=Place("openvino"),
            judge=EmbedderJudge(Guard(options.guard_mean, options.guard_min)),
            progress=lambda text: print(text, file=sys.stderr, flush=True),
        )
        options.output.mkdir(parents=True, exist_ok=True)
        name, high = f"{options.embedder}.{options.precision}", result.chosen.high
        (options.output / f"{name}.recipe.toml").write_text(recipe_text(result))
        plot_search(result, options.output / f"{name}.png")
        low = Path(folder) / "low.onnx"
        onnx.save(lowered.graph(high), low)
        warm, precision = ((112, 112),), lowered.runner[0]
        runners = [
            stack.enter_context(create_runner("openvino", path, contract, runner_options))
            for path, runner_options in (
                (model, RunnerOptions(warm=warm)),
                (low, RunnerOptions(warm=warm, precision=precision, fp32_layers=high)),
            )
        ]
        rounds: list[list[float]] = [[], []]
        for _ in range(7):
            for seconds, runner in zip(rounds, runners, strict=True):
                started = time.perf_counter()
                runner.run(chips[:100])
                seconds.append((time.perf_counter() - started) / 100 * 1000)
        milliseconds = [float(np.median(each)) for each in rounds]
        everything = pairs_within(pairs, names)
        figures = []
        for runner in runners:
            vectors = np.concatenate([runner.run(chips[i : i + 256])[0] for i in range(0, len(chips), 256)])
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
            scores = np.einsum("nd,nd->n", vectors[everything.first], vectors[everything.second])
            figures.append((verification(scores, everything.same, everything.fold), vectors))
    cosine = np.einsum("nd,nd->n", figures[0][1], figures[1][1])
    print(
        json.dumps(
            {
                "embedder": options.embedder,
                "precision": options.precision,
                "layers": len(result.layers),
                "layers_fp32": len(result.chosen.high),
                "ms_fp32": round(milliseconds[0], 3),
                "ms_low": round(milliseconds[1], 3),
                "times": round(milliseconds[0] / milliseconds[1], 3),
                "accuracy_fp32": round(100 * figures[0][0].accuracy, 3),
                "accuracy_low": round(100 * figures[1][0].accuracy, 3),
                "tar_fp32": round(figures[0][0].tar, 4),
                "tar_low": round(figures[1][0].tar, 4),
                "cosine_mean": round(float(cosine.mean()), 5),
                "cosine_min": round(float(cosine.min()), 5),
            }
        )
    )


if __name__ == "__main__":
    main()
