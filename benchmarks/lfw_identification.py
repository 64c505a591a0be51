"""Identification (1:N) on Labeled Faces in the Wild: closed and open set.

    FACEFLEET_DATA=... python benchmarks/lfw_identification.py [--pack opencv] [--detector D --embedder E] \
        [--index flat --index faiss ...]

Of everybody with two or more pictures, the first is enrolled and the others are searched for; everybody with a single
picture is a stranger who is searched for as well. The face nearest the center of each picture counts. Rank-1: the
best match is right, whatever its score. TPIR at an FPIR of 1e-2: the best match is right at the threshold that one
stranger in a hundred passes. Every index must give the same answers. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

from data_packs import data_folder, write_pack
from facefleet import Engine, Settings
from facefleet.config import BatchSettings, DetectSettings
from facefleet.gallery import Gallery, NewSample, PipelineIdentity

_FPIR = 1e-2
INDEXES: dict[str, tuple[str, dict[str, object]]] = {
    "flat": ("flat", {}),
    "faiss-flat": ("faiss", {"type": "flat"}),
    "faiss-hnsw": ("faiss", {"type": "hnsw"}),
    "flat-cuda-int8": ("flat-cuda", {"device": "cpu", "precision": "int8"}),
    "milvus": ("milvus", {}),
}


def embeddings(engine: Engine, files: list[Path]) -> tuple[np.ndarray, list[str]]:
    """(n, d) of the face nearest the center, and the names of pictures without one."""
    vectors = np.full((len(files), engine.dimension), np.nan, np.float32)
    missing = []
    for i, outcome in enumerate(engine.map(files)):
        faces = outcome.unwrap()
        if len(faces):
            vectors[i] = faces.embeddings[0]
        else:
            missing.append(files[i].name)
    return vectors, missing


def search(
    folder: Path, kind: str, identity: PipelineIdentity, mates: dict[str, np.ndarray], probes: np.ndarray
) -> tuple[list[str], np.ndarray, float]:
    """Names and scores of the best matches, and seconds for all."""
    index, options = INDEXES[kind]
    with Gallery.create(folder, identity, index=index, options=options) as gallery:
        for name, vector in mates.items():
            gallery.enrol(name, [NewSample(vector)], fingerprint=identity.fingerprint)
        gallery.view.rebuild()
        started = time.perf_counter()
        answers = gallery.identify(probes, fingerprint=identity.fingerprint, k=1, threshold=-1.0)
        seconds = time.perf_counter() - started
    return [answer[0].name for answer in answers], np.array([answer[0].score for answer in answers]), seconds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pack", default="opencv")
    parser.add_argument("--detector", help="a detector of the data folder, instead of --pack")
    parser.add_argument("--embedder", default="sface")
    parser.add_argument("--index", action="append", choices=INDEXES, help="default: flat and faiss-flat")
    options = parser.parse_args()
    kinds: list[str] = options.index or ["flat", "faiss-flat"]
    data = data_folder()
    root = data / "lfw" / "lfw-deepfunneled"
    by_name: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(root.rglob("*.jpg")):
        by_name[path.parent.name].append(path)
    files = [path for paths in by_name.values() for path in paths]
    with tempfile.TemporaryDirectory() as temporary:
        pack = options.pack
        if options.detector:
            pack = str(write_pack(Path(temporary), data, options.detector, options.embedder))
        settings = Settings(
            pack=pack, detect=DetectSettings(order="center", max_faces=1), batch=BatchSettings(max_images=256)
        )
        with Engine(settings) as engine:
            started = time.perf_counter()
            vectors, missing = embeddings(engine, files)
            seconds = time.perf_counter() - started
            threshold = engine.manifest.embedder.threshold
            identity = PipelineIdentity(engine.fingerprint, engine.dimension, threshold, engine.describe())
        place = {path: i for i, path in enumerate(files)}
        usable = {
            name: [place[path] for path in paths if np.isfinite(vectors[place[path]]).all()]
            for name, paths in by_name.items()
        }
        mates = {name: vectors[rows[0]] for name, rows in usable.items() if len(by_name[name]) > 1 and rows}
        known = [(name, row) for name in mates for row in usable[name][1:]]
        strangers = [row for name, rows in usable.items() if len(by_name[name]) == 1 for row in rows]
        probes = vectors[[row for _, row in known] + strangers]
        truth = np.array([name for name, _ in known])
        found = {kind: search(Path(temporary) / f"g-{kind}", kind, identity, mates, probes) for kind in kinds}
    names, scores, _ = found[kinds[0]]
    right = np.array(names[: len(known)]) == truth
    impostors = np.sort(scores[len(known) :])[::-1]
    limit = impostors[int(_FPIR * len(impostors))]
    report = {
        "enrolled": len(mates),
        "probes_of_known": len(known),
        "probes_of_strangers": len(strangers),
        "no_face": missing,
        "rank_1": round(float(right.mean()), 5),
        "tpir_at_fpir_1e-2": round(float((right & (scores[: len(known)] > limit)).mean()), 5),
        "threshold_there": round(float(limit), 4),
        "fpir_at_pack_threshold": round(float((impostors >= threshold).mean()), 5),
        "tpir_at_pack_threshold": round(float((right & (scores[: len(known)] >= threshold)).mean()), 5),
        "indexes": {
            kind: {
                "same_people": names == found[kind][0],
                "largest_score_difference": float(np.abs(scores - found[kind][1]).max()),
                "ms_a_query": round(1000 * found[kind][2] / len(probes), 4),
            }
            for kind in kinds
        },
        "images_per_s": round(len(files) / seconds, 1),
        "pack": identity.description["pack"],
        "detector": identity.description["detector"],
        "precision": identity.description["precision"],
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
