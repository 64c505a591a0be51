"""Exact search: this project's flat index, FAISS IndexFlatIP with its BLAS threshold set well, and numpy, in turns.

    python benchmarks/search_speed.py [--rows 1000000] [--dimension 512] [--rounds 7] [--index flat]

Top 5 of random unit vectors, a single query and a batch of 64. Each contender runs once a round, one after the other;
figures are medians over rounds. numpy selects with argpartition. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable

import numpy as np

from facefleet.config import available_threads
from facefleet.gallery.index.faiss import load_faiss
from facefleet.gallery.index.layered import Base, LayeredIndex
from facefleet.gallery.index.registry import segment_type

_K = 5


def unit_vectors(rows: int, dimension: int) -> np.ndarray:
    generator = np.random.default_rng(0)
    vectors = np.empty((rows, dimension), np.float32)
    for start in range(0, rows, 100_000):
        part = generator.standard_normal((min(100_000, rows - start), dimension), dtype=np.float32)
        vectors[start : start + len(part)] = part / np.linalg.norm(part, axis=1, keepdims=True)
    return vectors


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dimension", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--queries", type=int, nargs="*", default=[1, 64])
    options = parser.parse_args()
    vectors = unit_vectors(options.rows, options.dimension)
    ids = np.arange(options.rows, dtype=np.int64)
    flat = LayeredIndex(
        options.dimension,
        segment_type("flat"),
        {},
        Base(ids, vectors, segment_type("flat").build(vectors, {})),
    )
    faiss = load_faiss()
    peer = faiss.IndexFlatIP(options.dimension)
    peer.add(vectors)

    def by_numpy(queries: np.ndarray) -> np.ndarray:
        scores = queries @ vectors.T if len(queries) > 1 else (vectors @ queries[0])[None]
        best = np.argpartition(scores, -_K, axis=1)[:, -_K:]
        order = np.argsort(-np.take_along_axis(scores, best, axis=1), axis=1)
        return np.take_along_axis(best, order, axis=1)

    contenders: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "facefleet": lambda queries: flat.search(queries, _K).ids,
        "faiss": lambda queries: np.asarray(peer.search(queries, _K)[1]),
        "numpy": by_numpy,
    }
    report: dict[str, object] = {
        "rows": options.rows,
        "dimension": options.dimension,
        "threads": available_threads(),
        "processor": platform.processor() or os.uname().machine,
        "faiss_version": faiss.__version__,
        "numpy_version": np.__version__,
    }
    for count in options.queries:
        queries = unit_vectors(count, options.dimension) * np.float32(-1)
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        answers = {name: run(queries) for name, run in contenders.items()}
        for _ in range(options.rounds):
            for name, run in contenders.items():
                started = time.perf_counter()
                run(queries)
                seconds[name].append(time.perf_counter() - started)
        middle = {name: statistics.median(values) for name, values in seconds.items()}
        report[f"batch_{count}"] = {
            "ms": {name: round(1000 * value, 1) for name, value in middle.items()},
            "best_ms": {name: round(1000 * min(values), 1) for name, values in seconds.items()},
            "times_the_better_peer": round(min(middle["faiss"], middle["numpy"]) / middle["facefleet"], 2),
            "same_answers": all((answers[name] == answers["facefleet"]).all() for name in contenders),
        }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
