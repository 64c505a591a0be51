"""Verification on Labeled Faces in the Wild, 6,000 pairs, View 2.

    FACEFLEET_DATA=... python benchmarks/lfw.py [--pack opencv] [--detector D --embedder E] [--det-size 640] \
        [--backend auto] [--precision auto] [--reference]

The face nearest the center of each picture is taken. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np

from data_packs import data_folder, write_pack
from facefleet import Engine, Settings
from facefleet.config import BatchSettings, DetectSettings, RuntimeSettings
from facefleet.ops.verification import verification


def read_pairs(file: Path) -> list[tuple[str, str, bool, int]]:
    rows = [line.split("\t") for line in file.read_text().splitlines()]
    per_fold = 2 * int(rows[0][1])

    def picture(name: str, number: str) -> str:
        return f"{name}/{name}_{int(number):04d}.jpg"

    pairs = []
    for i, row in enumerate(rows[1:]):
        if len(row) == 3:
            pairs.append((picture(row[0], row[1]), picture(row[0], row[2]), True, i // per_fold))
        else:
            pairs.append((picture(row[0], row[1]), picture(row[2], row[3]), False, i // per_fold))
    return pairs


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pack", default="opencv")
    parser.add_argument("--detector", help="a detector of the data folder, instead of --pack")
    parser.add_argument("--embedder", default="sface")
    parser.add_argument("--det-size", default="640")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--flip", action="store_true")
    parser.add_argument("--reference", action="store_true", help="compare with the reference SFace embeddings")
    options = parser.parse_args()
    data = data_folder()
    names: list[str] = json.loads((data / "reference/lfw_names.json").read_text())
    with tempfile.TemporaryDirectory() as folder:
        pack = options.pack
        if options.detector:
            pack = str(write_pack(Path(folder), data, options.detector, options.embedder))
        size = options.det_size if options.det_size == "native" else int(options.det_size)
        settings = Settings(
            pack=pack,
            detect=DetectSettings(sizes=(size,), order="center", max_faces=1),
            runtime=RuntimeSettings(backend=options.backend, precision=options.precision),
            batch=BatchSettings(max_images=256),
        )
        if options.flip:
            from dataclasses import replace

            settings = replace(settings, embed=replace(settings.embed, flip=True))
        with Engine(settings) as engine:
            started = time.perf_counter()
            files = [data / "lfw" / "lfw-deepfunneled" / name for name in names]
            vectors = np.zeros((len(names), engine.dimension), np.float32)
            failures = []
            for i, outcome in enumerate(engine.map(files)):
                faces = outcome.unwrap()
                if len(faces):
                    vectors[i] = faces.embeddings[0]
                else:
                    failures.append(names[i])
            seconds = time.perf_counter() - started
            description = engine.describe()
    position = {name: i for i, name in enumerate(names)}
    pairs = read_pairs(data / "lfw/pairs.txt")
    first = vectors[[position[a] for a, _, _, _ in pairs]]
    second = vectors[[position[b] for _, b, _, _ in pairs]]
    scores = np.clip(np.einsum("nd,nd->n", first, second), -1, 1)
    same = np.array([pair[2] for pair in pairs])
    result = verification(scores, same, np.array([pair[3] for pair in pairs]))
    report = {
        "pairs": len(pairs),
        "accuracy_percent": round(result.accuracy * 100, 3),
        "deviation_percent": round(result.deviation * 100, 3),
        "threshold": round(result.threshold, 4),
        "tar_at_far_1e-3": round(result.tar, 4),
        "auc": round(result.auc, 5),
        "no_face": failures,
        "images_per_s": round(len(names) / seconds, 1),
        **description,
    }
    if options.reference:
        wanted = np.load(data / "reference/lfw_sface_fp32_yunet.npy")
        cosine = np.einsum("nd,nd->n", vectors, wanted / np.linalg.norm(wanted, axis=1, keepdims=True))
        report |= {
            "reference_cosine_min": float(cosine.min()),
            "reference_below_0.9999": int((cosine < 0.9999).sum()),
        }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
