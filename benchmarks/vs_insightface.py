"""facefleet against insightface: the same two networks, the same photos, from JPEG bytes to embeddings.

    FACEFLEET_DATA=... python benchmarks/vs_insightface.py [--rounds 3] [--peer-python PYTHON] [--recheck 0.77]

SCRFD-500m at 640 and MobileFaceNet; identity/ and detection/ JPEGs and insightface's t1.jpg. Every contender runs in
a process of its own, in turn, several rounds; the figure is the median. insightface is called the way its users do:
`FaceAnalysis.get` on each picture. Its answers are also compared face by face. Prints a table and one line of JSON.

`--peer-python` is an interpreter with insightface installed, where it cannot live in this environment. `--recheck` adds
the default engine with another bound below which a picture is looked at again in fp32.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

DETECTOR, EMBEDDER = "scrfd_500m_bnkps", "mobilefacenet_half"
CONTENDERS = {
    "insightface": [],
    "facefleet": ["auto", "auto"],
    "facefleet openvino fp32": ["openvino", "fp32"],
    "facefleet onnxruntime fp32": ["onnxruntime", "fp32"],
}
MIN_SECONDS = 6.0


def photos(data: Path) -> list[Path]:
    """The photos, always in the same order."""
    found = [path for folder in ("identity", "detection") for path in (data / folder).rglob("*.jp*g")]
    return sorted(found)


def run_insightface(data: Path, folder: Path) -> dict[str, Any]:
    import time

    import cv2
    from insightface.app import FaceAnalysis

    models = folder / "models" / "bench"
    models.mkdir(parents=True, exist_ok=True)
    for source in (f"scrfd/{DETECTOR}.onnx", "mobilefacenet_diandianti/mobilefacenet.onnx"):
        shutil.copy(data / "models" / source, models)
    app = FaceAnalysis(name="bench", root=str(folder), providers=["CPUExecutionProvider"])
    app.prepare(ctx_id=-1, det_size=(640, 640))
    blobs = [path.read_bytes() for path in photos(data)]

    def analyze(blob: bytes) -> Any:  # noqa: ANN401
        return app.get(cv2.imdecode(np.frombuffer(blob, np.uint8), cv2.IMREAD_COLOR))

    results = [analyze(blob) for blob in blobs]  # the warm-up too
    images, started = 0, time.perf_counter()
    while images == 0 or time.perf_counter() - started < MIN_SECONDS:
        for blob in blobs:
            analyze(blob)
        images += len(blobs)
    seconds = time.perf_counter() - started
    np.savez(
        folder / "insightface.npz",
        counts=np.array([len(faces) for faces in results]),
        boxes=np.array([face.bbox for faces in results for face in faces], np.float32),
        embeddings=np.array([face.normed_embedding for faces in results for face in faces], np.float32),
    )
    return {"images_per_s": images / seconds, "faces": sum(map(len, results))}


def run_facefleet(
    data: Path, folder: Path, name: str, backend: str, precision: str, recheck: str = ""
) -> dict[str, Any]:
    import itertools
    import time

    from data_packs import write_pack
    from facefleet import Engine, Settings
    from facefleet.config import DecodeSettings, DetectSettings, RuntimeSettings

    pack = write_pack(folder, data, DETECTOR, EMBEDDER)
    # Everything as insightface has it, so that the faces can be compared: its one scale for both axes, full decoding.
    detect = DetectSettings(scale="insightface")
    settings = Settings(
        pack=str(pack),
        runtime=RuntimeSettings(backend=backend, precision=precision),  # type: ignore[arg-type]
        detect=replace(detect, recheck=float(recheck)) if recheck else detect,
        decode=DecodeSettings(scaled="off"),
    )
    blobs = [path.read_bytes() for path in photos(data)]
    with Engine(settings) as engine:
        results = [outcome.unwrap() for outcome in engine.map(blobs)]
        rounds, started, images = itertools.count(), time.perf_counter(), 0
        stream = (
            blob
            for number in itertools.takewhile(lambda n: n == 0 or time.perf_counter() - started < MIN_SECONDS, rounds)
            for blob in blobs
        )
        for _ in engine.as_ready(stream):
            images += 1
        seconds = time.perf_counter() - started
        description = engine.describe()
        stages = {stage: busy / count * 1000 for stage, (count, busy) in engine.stage_seconds().items()}
    np.savez(
        folder / f"{name}.npz",
        counts=np.array([len(faces) for faces in results]),
        boxes=np.concatenate([faces.boxes for faces in results]),
        embeddings=np.concatenate([faces.embeddings for faces in results]),
    )
    return {
        "images_per_s": images / seconds,
        "faces": sum(map(len, results)),
        "engine": f"{description['backend']} {description['precision']}",
        "ms_per_item": {stage: round(ms, 2) for stage, ms in stages.items()},
    }


def agreement(folder: Path, name: str) -> dict[str, float]:
    """How far the faces of a contender are from insightface's."""
    theirs, ours = np.load(folder / "insightface.npz"), np.load(folder / f"{name}.npz")
    overlaps, cosines, unmatched = [], [], 0
    starts = {key: np.concatenate([[0], np.cumsum(each["counts"])]) for key, each in (("a", theirs), ("b", ours))}
    for photo in range(len(theirs["counts"])):
        a = slice(starts["a"][photo], starts["a"][photo + 1])
        b = slice(starts["b"][photo], starts["b"][photo + 1])
        overlap = iou(theirs["boxes"][a], ours["boxes"][b])
        unmatched += abs(overlap.shape[0] - overlap.shape[1])
        while overlap.size and overlap.max() > 0:
            row, column = np.unravel_index(overlap.argmax(), overlap.shape)
            overlaps.append(float(overlap[row, column]))
            cosines.append(float(theirs["embeddings"][a][row] @ ours["embeddings"][b][column]))
            overlap[row] = overlap[:, column] = 0
    return {
        "unmatched": unmatched,
        "iou_min": float(np.min(overlaps)),
        "iou_p1": float(np.percentile(overlaps, 1)),
        "cosine_min": float(np.min(cosines)),
        "cosine_p1": float(np.percentile(cosines, 1)),
        "iou_below_0.97": int((np.array(overlaps) < 0.97).sum()),
        "iou_below_0.99": int((np.array(overlaps) < 0.99).sum()),
        "cosine_below_0.995": int((np.array(cosines) < 0.995).sum()),
        "cosine_below_0.999": int((np.array(cosines) < 0.999).sum()),
    }


def iou(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(n, m) intersection over union of (n, 4) and (m, 4) boxes."""
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, 2:], b[None, :, 2:])
    shared = np.clip(high - low, 0, None).prod(-1)
    area = [(boxes[:, 2:] - boxes[:, :2]).prod(-1) for boxes in (a, b)]
    return np.asarray(shared / (area[0][:, None] + area[1][None] - shared))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--recheck", help="another bound than the default's")
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    data = Path(os.environ["FACEFLEET_DATA"]).resolve()
    contenders = dict(CONTENDERS)
    if options.recheck:
        contenders[f"facefleet, recheck {options.recheck}"] = ["auto", "auto", options.recheck]
    if options.contender:
        arguments = contenders[options.contender]
        if arguments:
            result = run_facefleet(data, options.folder, options.contender, *arguments)
        else:
            result = run_insightface(data, options.folder)
        print(json.dumps(result))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        rates: dict[str, list[float]] = {name: [] for name in contenders}
        last: dict[str, dict[str, Any]] = {}
        for _ in range(options.rounds):
            for name, arguments in contenders.items():
                python = sys.executable if arguments else options.peer_python
                command = [python, __file__, "--contender", name, "--folder", str(folder)]
                command += ["--recheck", options.recheck] if options.recheck else []
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                last[name] = json.loads(done.stdout.splitlines()[-1])
                rates[name].append(last[name]["images_per_s"])
        agreements = {name: agreement(folder, name) for name in list(contenders)[1:]}
    base = float(np.median(rates["insightface"]))
    ratios = {
        name: float(np.median([ours / theirs for ours, theirs in zip(rates[name], rates["insightface"], strict=True)]))
        for name in contenders
    }
    print(f"{'contender':30} {'img/s':>8} {'times':>6}  faces  engine")
    for name in contenders:
        rate = float(np.median(rates[name]))
        print(f"{name:30} {rate:8.1f} {ratios[name]:6.2f}  {last[name]['faces']:5}  {last[name].get('engine', '')}")
    for name, each in agreements.items():
        print(f"{name:30} {each}")
    print(
        json.dumps(
            {"insightface_images_per_s": base, "rates": rates, "ratios": ratios, "agreement": agreements, "last": last}
        )
    )


if __name__ == "__main__":
    main()
