"""Recall of every detector of the data folder on its labeled pictures, one by one and in batches of eight.

    FACEFLEET_DATA=... python benchmarks/recall.py [--precision fp32]

A labeled face of at least 10 px (shorter side, and not marked as one to ignore) counts as found when a detection
overlaps it with an IoU of at least 0.4; a detection is false when it overlaps no label, however small, by 0.1.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_packs import DETECTORS, data_folder, write_pack
from facefleet import Engine, Settings
from facefleet.config import BatchSettings, DecodeSettings, RuntimeSettings
from facefleet.types import Faces
from vs_insightface import iou

MIN_PX, FOUND_IOU, NEAR_IOU = 10, 0.4, 0.1


@dataclass(frozen=True)
class Recall:
    """Faces found and labeled, by set, and false detections."""

    wider: int
    wider_labeled: int
    dlib: int
    dlib_labeled: int
    false: int


def score(data: Path, results: dict[str, Faces]) -> Recall:
    labels = json.loads((data / "detection" / "labels.json").read_text())
    found, labeled = {"wider": 0, "dlib": 0}, {"wider": 0, "dlib": 0}
    false = 0
    for name, entry in labels.items():
        boxes = np.array(entry["boxes_xywh"], np.float32).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        overlap = iou(boxes, results[name].boxes)
        counted = (boxes[:, 2:] - boxes[:, :2]).min(axis=1) >= MIN_PX
        group = "wider" if name.startswith("wider") else "dlib"
        found[group] += int((overlap[counted].max(axis=1, initial=0) >= FOUND_IOU).sum())
        labeled[group] += int(counted.sum())
        if group == "wider":
            false += int((overlap.max(axis=0, initial=0) < NEAR_IOU).sum())
    return Recall(found["wider"], labeled["wider"], found["dlib"], labeled["dlib"], false)


def detect(data: Path, pack: Path, *, batch: int, backend: str, precision: str) -> dict[str, Faces]:
    settings = Settings(
        pack=str(pack),
        batch=BatchSettings(detect=batch),
        decode=DecodeSettings(scaled="off"),
        runtime=RuntimeSettings(backend=backend, precision=precision),  # type: ignore[arg-type]
    )
    names = list(json.loads((data / "detection" / "labels.json").read_text()))
    with Engine(settings) as engine:
        outcomes = engine.map([data / "detection" / name for name in names])
        return {name: outcome.unwrap() for name, outcome in zip(names, outcomes, strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--precision", default="auto")
    options = parser.parse_args()
    data = data_folder()
    with tempfile.TemporaryDirectory() as folder:
        for name in DETECTORS:
            pack = write_pack(Path(folder), data, name, "mobilefacenet")
            runs = {
                batch: detect(data, pack, batch=batch, backend=options.backend, precision=options.precision)
                for batch in (1, 8)
            }
            same = all(np.array_equal(runs[1][key].boxes, runs[8][key].boxes) for key in runs[1])
            for batch, results in runs.items():
                print(f"{name:24} batch {batch}: {score(data, results)}, batches equal singles: {same}")


if __name__ == "__main__":
    main()
