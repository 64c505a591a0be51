"""What decoding big JPEGs at a reduced scale gains, and what it costs in agreement.

    FACEFLEET_DATA=... python benchmarks/scaled_decode.py

Photos of identity/ and detection/ with a longer side of 1280 px or more, and close-ups made from them: every face with
half its size around it, scaled so that the face is 1000 px wide in a picture of 12 megapixels. Each set is analyzed
with ``decode.scaled`` off and on, in turn, three times.
"""

from __future__ import annotations

import json
import statistics
import time
from typing import Any

import cv2
import numpy as np

from data_packs import data_folder
from facefleet import Engine, Settings
from facefleet.config import DecodeSettings
from facefleet.types import Faces
from vs_insightface import iou, photos

LARGE_PX, CLOSE_PX, CLOSE_FACES = 1280, 4000, 24


def close_ups(blobs: list[bytes], results: list[Faces]) -> list[bytes]:
    """JPEGs of 4000 x 3000 around the largest faces."""
    found = []
    for blob, faces in zip(blobs, results, strict=True):
        pixels = cv2.imdecode(np.frombuffer(blob, np.uint8), cv2.IMREAD_COLOR)
        assert pixels is not None
        for box in faces.boxes:
            width = float(box[2] - box[0])
            if width < 70:
                continue
            middle = (box[:2] + box[2:]) / 2
            zoom = 1000 / width
            matrix = np.array([[zoom, 0, 2000 - zoom * middle[0]], [0, zoom, 1500 - zoom * middle[1]]])
            picture = cv2.warpAffine(pixels, matrix, (CLOSE_PX, 3000), flags=cv2.INTER_CUBIC, borderValue=(90, 90, 90))
            good, data = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, 88])
            assert good
            found.append(data.tobytes())
    return found[:CLOSE_FACES]


def compare(off: list[Faces], on: list[Faces]) -> dict[str, Any]:
    overlaps, cosines = [], []
    for a, b in zip(off, on, strict=True):
        if len(a) and len(b):
            overlap = iou(a.boxes, b.boxes)
            for i in range(len(a)):
                j = int(overlap[i].argmax())
                if overlap[i, j] > 0.5:
                    overlaps.append(float(overlap[i, j]))
                    cosines.append(float(a.embeddings[i] @ b.embeddings[j]))
    return {
        "faces": [sum(map(len, off)), sum(map(len, on))],
        "matched": len(overlaps),
        "iou_median": round(statistics.median(overlaps), 4),
        "iou_p5": round(float(np.percentile(overlaps, 5)), 4),
        "cosine_median": round(statistics.median(cosines), 4),
        "cosine_p5": round(float(np.percentile(cosines, 5)), 4),
    }


def main() -> None:
    data = data_folder()
    blobs = [path.read_bytes() for path in photos(data)]
    with Engine(Settings(decode=DecodeSettings(scaled="off"))) as off, Engine(Settings()) as on:
        results = [outcome.unwrap() for outcome in off.map(blobs)]
        large = [b for b, faces in zip(blobs, results, strict=True) if max(faces.width, faces.height) >= LARGE_PX]
        sets = {"photos of 1280 px and more": large, "close-ups of 12 megapixels": close_ups(blobs, results)}
        for name, chosen in sets.items():
            answers: dict[str, list[Faces]] = {}
            rates: dict[str, list[float]] = {"off": [], "on": []}
            for _ in range(3):
                for label, engine in (("off", off), ("on", on)):
                    started = time.perf_counter()
                    answers[label] = [outcome.unwrap() for outcome in engine.map(chosen * 2)][: len(chosen)]
                    rates[label].append(2 * len(chosen) / (time.perf_counter() - started))
            gain = statistics.median(b / a for a, b in zip(rates["off"], rates["on"], strict=True))
            report = {"set": name, "photos": len(chosen), "gain": round(gain, 3)}
            report |= {key: round(statistics.median(values), 1) for key, values in rates.items()}
            print(json.dumps(report | compare(answers["off"], answers["on"])))


if __name__ == "__main__":
    main()
