"""Exact search on one GPU: the index flat-cuda over many random unit vectors, rescored on the host, against PyTorch.

    python benchmarks/search_gpu.py [--rows 10000000] [--precision int8] [--device cuda] [--sweep]

Vectors are drawn on the device and kept on the host in float32, as a gallery keeps them. Queries are random too, which
leaves the nearest hardly nearer than the next. Times are those of `LayeredIndex.search`, arrays in and out, one call
after the other. The peer is a float32 product and `topk` in PyTorch with all vectors on the device; its answers are
what recall is counted against; the peak of the card's memory is that of copying rows in the same run. Prints one line
of JSON. With --sweep it tries more launches of the first pass than opening does, for one query and for 64, prints the
milliseconds and the share of that peak of each, fastest first, and goes on with the best.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import numpy as np
import torch

from facefleet.gallery.index.device_search import MORE_LAUNCHES, DeviceSearch
from facefleet.gallery.index.flat_cuda import FlatCudaSegment
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


def copied_bytes_per_s() -> float:
    """Bytes read and written a second by copying 2 GiB on the device."""
    here = torch.empty(1 << 31, dtype=torch.uint8, device="cuda")
    there = torch.empty_like(here)
    taken = []
    for _ in range(10):
        started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        started.record()
        there.copy_(here)
        ended.record()
        ended.synchronize()
        taken.append(started.elapsed_time(ended) / 1000)
    return 2 * len(here) / float(np.median(taken))


def first_passes(search: DeviceSearch, read: int, peak: float, *, every: bool) -> dict[str, list[str]]:
    """Of each number of queries, the launches that were measured: milliseconds and share of the peak."""
    lines = {}
    for bucket, times in search.measured.items():
        ordered = sorted(times.items(), key=lambda item: item[1])[: None if every else 1]
        lines[str(bucket)] = [f"{1000 * s:.3f} ms {100 * read / s / peak:.0f} % {launch}" for launch, s in ordered]
    return lines


def host_parts(segment: FlatCudaSegment, index: LayeredIndex, queries: np.ndarray) -> dict[str, float]:
    """How many candidates come back, and the milliseconds that scoring them again takes."""
    scores, rows = segment.search(queries, _K + segment.margin, None)
    width = float(np.mean((rows >= 0).sum(axis=1)))
    alone = times_ms(lambda _: segment.search(queries, _K + segment.margin, None), 50)["p50_ms"]
    whole = times_ms(lambda _: index.search(queries, _K), 50)["p50_ms"]
    assert scores.shape == rows.shape
    return {"candidates": width, "again_ms": round(whole - alone, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--dimension", type=int, default=512)
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--queries", type=int, default=512)
    parser.add_argument("--sweep", action="store_true")
    options = parser.parse_args()
    started = time.perf_counter()
    vectors = drawn(options.rows, options.dimension, options.device)
    made_s = time.perf_counter() - started
    settings = {"precision": options.precision, "device": options.device}
    started = time.perf_counter()
    kind = segment_type("flat-cuda")
    segment = kind.build(vectors, settings)
    assert isinstance(segment, FlatCudaSegment)
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
    if segment.fused is not None:
        peak = copied_bytes_per_s()
        read = options.rows * options.dimension * {"int8": 1, "fp16": 2, "fp32": 4}[options.precision]
        report["copy_tb_per_s"] = round(peak / 1e12, 3)
        report["floor_ms"] = round(1000 * read / peak, 3)
        if options.sweep:
            started = time.perf_counter()
            segment.fused.measure(MORE_LAUNCHES, (1, 4, 64))
            report["sweep_s"] = round(time.perf_counter() - started, 1)
        report["first_pass"] = first_passes(segment.fused, read, peak, every=options.sweep)
    one = lambda i: index.search(queries[i % len(queries)][None], _K)  # noqa: E731
    many = lambda i: index.search(np.roll(queries, i, axis=0)[:64], _K)  # noqa: E731
    report["single"] = times_ms(one, 200)
    report["segment_alone"] = times_ms(
        lambda i: segment.search(queries[i % len(queries)][None], _K + segment.margin, None), 100
    )
    report["batch_64"] = times_ms(many, 40)
    report["rescoring"] = {count: host_parts(segment, index, queries[:count]) for count in (1, 64)}
    found = np.concatenate([index.search(queries[start : start + 64], _K).ids for start in range(0, len(queries), 64)])
    if options.device != "cpu":
        report["memory_bytes"] = torch.cuda.memory_allocated()
    print(json.dumps(report), flush=True)
    want, peer = exact(vectors, queries, options.device)
    hits = [len(set(a) & set(b)) for a, b in zip(found.tolist(), want.tolist(), strict=True)]
    report["batch_64_queries_per_s"] = round(64000 / report["batch_64"]["p50_ms"])  # type: ignore[index]
    report["recall"] = sum(hits) / (_K * len(queries))
    given = torch.from_numpy(queries).to(options.device)
    for count in (1, 64):
        report[f"torch_fp32_{count}"] = times_ms(lambda _, n=count: peer(given[:n]).cpu(), 20)  # type: ignore[attr-defined,misc]
    print(json.dumps(report))


if __name__ == "__main__":
    main()
