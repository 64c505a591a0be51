"""The kernels of flat-cuda in Triton's interpreter against numpy: every way, masked or not, all that may be nearest."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest

SCRIPT = r"""
import json
import numpy as np, torch
from facefleet.gallery.index.device_search import LARGEST_TILE, DeviceSearch, Launch

WAYS = [
    (1, Launch("words", 64, 4)), (3, Launch("words", 32, 2, 2, 4)),
    (3, Launch("products", 128, 4, 4)), (20, Launch("products", 128, 8, 3, 2, 0)),
]
random = np.random.default_rng(0)

def unit(n, d):
    vectors = random.normal(size=(n, d)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

def bytes_of(vectors):
    scales = np.abs(vectors).max(axis=1) / 127
    return np.rint(vectors / scales[:, None]).astype(np.int8), scales

def searched(precision, n, d, count, launch, masked, k):
    vectors, queries = unit(n, d), unit(count, d)
    scales, factors = None, np.ones(n)
    if precision == "int8":
        (values, factors), (queries, _) = bytes_of(vectors), bytes_of(queries)
        scales = torch.zeros(n + -n % LARGEST_TILE)
        scales[:n] = torch.from_numpy(factors)
    else:
        values, queries = vectors.astype(precision), queries.astype(precision)
    rows = torch.zeros((n + -n % LARGEST_TILE, d), dtype=torch.from_numpy(values).dtype)
    rows[:n] = torch.from_numpy(values)
    search = DeviceSearch(torch, rows, scales, n)
    search._launches = dict.fromkeys(search._launches, launch)
    keep = random.random(n) < 0.3 if masked else np.ones(n, bool)
    truth = queries.astype(np.float64) @ values.astype(np.float64).T * factors
    truth[:, ~keep] = -np.inf
    unit_of = 127.0**2 * 2e-4 if precision == "int8" else 1.0
    slack = np.full(count, 0.01 * unit_of, np.float32)
    found = search.search(queries, slack, k, torch.from_numpy(keep) if masked else None)
    if found is None:
        return "none"
    scores, got = found
    for line, row, score in zip(truth, got, scores):
        there = row[row >= 0]
        assert len(set(there.tolist())) == len(there)
        assert (row[len(there):] == -1).all() and np.isneginf(score[len(there):]).all()
        assert keep[there].all()
        wanted = np.sort(line)[-k] - 0.009 * unit_of
        assert set(np.flatnonzero(line >= wanted)) <= set(there.tolist()), "a near row is missing"
        np.testing.assert_allclose(score[: len(there)], line[there], rtol=1e-5, atol=1e-4 * unit_of)
    return int((got >= 0).sum(axis=1).max())

answers = {}
for precision in ("int8", "float16", "float32"):
    for number, (count, launch) in enumerate(WAYS):
        key = f"{precision} {count} {launch}"
        answers[key] = searched(precision, 1500, 64, count, launch, number % 2 == 0, 5)
answers["depth 192"] = searched("int8", 300, 192, 1, Launch("words", 64, 4), True, 3)
answers["fewer than k"] = searched("int8", 10, 64, 1, Launch("words", 64, 4), False, 10)
answers["more than slots"] = searched("int8", 300, 64, 1, Launch("words", 64, 4), False, 1025)
print(json.dumps(answers))
"""


@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or importlib.util.find_spec("torch") is None,
    reason="triton comes with CUDA builds of torch only",
)
def test_kernels_against_numpy() -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=False, timeout=280
    )
    if "only 0-dimensional arrays can be converted" in done.stderr:
        pytest.skip("Triton's interpreter does not run with this numpy")
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found.pop("more than slots") == "none"
    assert found.pop("fewer than k") == 10
    assert len(found) == 13
    assert all(5 <= count < 300 for name, count in found.items() if name != "depth 192"), found
