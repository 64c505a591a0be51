"""Exact search on one GPU: the index flat-cuda over many random unit vectors, rescored on the host, against PyTorch.

    python benchmarks/search_gpu.py [--rows 10000000] [--precision int8] [--device cuda]

Vectors are drawn on the device and kept on the host in float32, as a gallery keeps them. Queries are random too, which
leaves the nearest hardly nearer than the next. Times are those of `LayeredIndex.search`, arrays in and out, one call
after the other. The peer is a float32 product and `topk` in PyTorch with all vectors on the device; its answers are
what recall is counted against. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import numpy as np
import torch

from facefleet.gallery.index.layered import Base, LayeredIndex
from facefleet.gallery.index.registry import segment_type

_K = 5
_CHUNK = 1 << 18


def drawn(rows: int, dimension: int, device: str) -> np.ndarray:
    generator = torch.Generator(device).manual_seed(0)
    vectors = np.empty((rows, dimension), np.float32)
    for start in range(0, rows, _CHUNK):
        size = (min(_CHUNK, rows - start), dimension)
        part = torch.nn.functional.normalize(torch.randn(size, generator=generator, device=device))
        torch.from_numpy(vectors[start : start + len(part)]).copy_(part)
    return vectors


def exact(vectors: np.ndarray, queries: np.ndarray, device: str) -> tuple[np.ndarray, Callable[[torch.Tensor], object]]:
    """Rows of the nearest by a float32 product, and what finds them, for timing."""
    torch.backends.cuda.matmul.allow_tf32 = False
    rows = torch.empty(vectors.shape, device=device)
    for start in range(0, len(vectors), _CHUNK):
        rows[start : start + _CHUNK].copy_(torch.from_numpy(vectors[start : start + _CHUNK]))

    def search(some: torch.Tensor) -> torch.Tensor:
        return torch.cat([(part @ rows.T).topk(_K, dim=1).indices for part in some.split(64)])

    return search(torch.from_numpy(queries).to(device)).cpu().numpy(), search


def times_ms(work: Callable[[int], object], count: int) -> dict[str, float]:
    for i in range(5):
        work(i)
    taken = []
    for i in range(count):
        started = time.perf_counter()
        work(i)
        taken.append(1e3 * (time.perf_counter() - started))
    return {"p50_ms": round(float(np.median(taken)), 3), "p99_ms": round(float(np.quantile(taken, 0.99)), 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--dimension", type=int, default=512)
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--queries", type=int, default=512)
    options = parser.parse_args()
    started = time.perf_counter()
    vectors = drawn(options.rows, options.dimension, options.device)
    made_s = time.perf_counter() - started
    settings = {"precision": options.precision, "device": options.device}
    started = time.perf_counter()
    kind = segment_type("flat-cuda")
    segment = kind.build(vectors, settings)
    built_s = time.perf_counter() - started
    ids = np.arange(options.rows, dtype=np.int64)
    index = LayeredIndex(options.dimension, kind, settings, Base(ids, vectors, segment))
    random = np.random.default_rng(1)
    queries = random.standard_normal((options.queries, options.dimension)).astype(np.float32)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    report: dict[str, object] = {
        "device": torch.cuda.get_device_name() if options.device != "cpu" else "cpu",
        "rows": options.rows,
        "dimension": options.dimension,
        "precision": options.precision,
        "vectors_s": round(made_s, 1),
        "build_s": round(built_s, 1),
    }
    one = lambda i: index.search(queries[i % len(queries)][None], _K)  # noqa: E731
    many = lambda i: index.search(np.roll(queries, i, axis=0)[:64], _K)  # noqa: E731
    report["single"] = times_ms(one, 200)
    report["segment_alone"] = times_ms(lambda i: segment.search(queries[i % len(queries)][None], _K + 16, None), 100)
    report["batch_64"] = times_ms(many, 40)
    found = np.concatenate([index.search(queries[start : start + 64], _K).ids for start in range(0, len(queries), 64)])
    if options.device != "cpu":
        report["memory_bytes"] = torch.cuda.memory_allocated()
    print(json.dumps(report), flush=True)
    want, peer = exact(vectors, queries, options.device)
    hits = [len(set(a) & set(b)) for a, b in zip(found.tolist(), want.tolist(), strict=True)]
    report["recall"] = sum(hits) / (_K * len(queries))
    given = torch.from_numpy(queries).to(options.device)
    for count in (1, 64):
        report[f"torch_fp32_{count}"] = times_ms(lambda _, n=count: peer(given[:n]).cpu(), 20)  # type: ignore[attr-defined,misc]
    print(json.dumps(report))


if __name__ == "__main__":
    main()
