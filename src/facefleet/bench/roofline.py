"""What a network asks for, what a machine can give, and how near a measurement comes.

After Williams, Waterman, Patterson, "Roofline: an insightful visual performance model", CACM 52(4), 2009: work a second
is at most min(peak, bytes a second x work a byte). Bytes are the least there can be: weights once a batch, inputs and
outputs of convolutions and matrix products once each, nothing kept in a cache between them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class NetworkWork:
    """What one network asks for.

    Attributes:
        gflop: Billions of multiplications and additions a picture.
        weight_bytes: Of all layers, in float32.
        activation_bytes: Read and written by them a picture, in float32.
    """

    gflop: float
    weight_bytes: int
    activation_bytes: int

    def intensity(self, batch: int, bytes_each: int = 4) -> float:
        """Operations a byte of memory at a batch.

        Args:
            batch: Pictures.
            bytes_each: Of a number: 4 in fp32, 2 in bf16 and fp16.
        """
        scale = bytes_each / 4
        moved = scale * (self.weight_bytes + batch * self.activation_bytes)
        return 1e9 * self.gflop * batch / moved


@dataclass(frozen=True, slots=True)
class Roofs:
    """What a machine gives.

    Attributes:
        gflops: Billions of operations a second in a large matrix product, by precision.
        bytes_per_s: Copied from memory to memory, read and written.
    """

    gflops: dict[str, float]
    bytes_per_s: float

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def network_work(path: Path, height: int, width: int) -> NetworkWork | None:
    """What a prepared graph asks for; None where its shapes are not found.

    Args:
        path: An ONNX file.
        height: Of its input in pixels.
        width: Likewise.
    """
    from onnx import load

    from facefleet.models.build.graph import constants
    from facefleet.models.build.profile import sizes_at
    from facefleet.models.build.work import gflop_by_layer

    model = load(path)
    work = gflop_by_layer(model, height, width)
    if not work:
        return None
    sizes = sizes_at(model, (1, 3, height, width))
    known = constants(model.graph)
    weights = moved = 0
    for node in model.graph.node:
        if node.op_type not in ("Conv", "Gemm", "MatMul") or len(node.input) < 2 or node.input[1] not in known:
            continue
        weights += int(known[node.input[1]].size)
        for name in (node.input[0], node.output[0]):
            dims = [int(size) for size in sizes.get(name, []) if isinstance(size, int)]
            moved += int(np.prod(dims)) if dims else 0
    return NetworkWork(sum(work.values()), 4 * weights, 4 * moved)


def roofs(device: str) -> Roofs:
    """Measure what a device gives; about a second.

    Args:
        device: ``cpu`` or ``cuda[:N]``.
    """
    return _cuda_roofs(device) if device.startswith("cuda") else _cpu_roofs()


def _cpu_roofs() -> Roofs:
    side = 2048
    left = np.random.default_rng(0).standard_normal((side, side), np.float32)
    out = np.empty_like(left)
    seconds = _best(lambda: np.matmul(left, left, out=out))
    source = np.ones(64 << 20, np.uint8)
    target = np.empty_like(source)
    return Roofs({"fp32": 2e-9 * side**3 / seconds}, 2 * source.nbytes / _best(lambda: np.copyto(target, source)))


def _cuda_roofs(device: str) -> Roofs:
    import torch

    place = torch.device(device)
    side = 8192
    found = {}
    for name, dtype in (("fp32", torch.float32), ("fp16", torch.float16), ("bf16", torch.bfloat16)):
        left = torch.randn((side, side), device=place, dtype=dtype)

        def product(left: Any = left) -> None:  # noqa: ANN401  # a tensor
            torch.matmul(left, left)
            torch.cuda.synchronize(place)

        found[name] = 2e-9 * side**3 / _best(product)
    source = torch.ones(1 << 30, device=place, dtype=torch.uint8)
    target = torch.empty_like(source)

    def copy() -> None:
        target.copy_(source)
        torch.cuda.synchronize(place)

    return Roofs(found, 2 * source.numel() / _best(copy))


def _best(run: Callable[[], object], times: int = 7) -> float:
    run()
    seconds = []
    for _ in range(times):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    return min(seconds)
