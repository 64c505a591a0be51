"""What the PRelu rewrite gains in ONNX Runtime: SFace as prepared with and without it, in one run.

    python benchmarks/prelu.py [--threads 1]

One picture at a time, the two in turn, medians of 200 runs; answers are compared. Prints a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np
import onnxruntime as ort

from facefleet.models.prepare import prepare_embedder
from facefleet.packs import Store


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--pack", default="opencv")
    options = parser.parse_args()
    store = Store()
    located = store.manifest(options.pack)
    sessions = []
    for backend in ("openvino", "onnxruntime"):  # without and with the rewrite
        settings = ort.SessionOptions()
        settings.intra_op_num_threads = options.threads
        settings.log_severity_level = 3
        path = prepare_embedder(store, located, backend=backend).path
        sessions.append(ort.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"]))
    picture = np.random.default_rng(0).uniform(0, 255, (1, 3, 112, 112)).astype(np.float32)
    answers = [session.run(None, {"images": picture})[0] for session in sessions]
    seconds: list[list[float]] = [[], []]
    for _ in range(200):
        for taken, session in zip(seconds, sessions, strict=True):
            started = time.perf_counter()
            session.run(None, {"images": picture})
            taken.append(time.perf_counter() - started)
    plain, rewritten = (1000 * float(np.median(each)) for each in seconds)
    print(
        json.dumps(
            {
                "threads": options.threads,
                "ms_plain": round(plain, 2),
                "ms_rewritten": round(rewritten, 2),
                "times": round(plain / rewritten, 2),
                "largest_difference": float(np.abs(answers[0] - answers[1]).max()),
            }
        )
    )


if __name__ == "__main__":
    main()
