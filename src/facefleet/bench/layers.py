"""Times of single layers, from backends that tell them.

TensorRT and runtimes that fuse layers report what they made of the graph, by their own names.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from facefleet.backends import RunnerOptions, create_runner
from facefleet.bench.model import Grid
from facefleet.bench.networks import Network
from facefleet.packs import Store


def layer_times(networks: Sequence[Network], grid: Grid, store: Store) -> list[dict[str, Any]]:
    """Milliseconds a layer for one picture, one thread, a network and backend each.

    Args:
        networks: What is run.
        grid: On what.
        store: Where prepared graphs are.

    Raises:
        BackendError: A backend is missing or refuses.
    """
    found = []
    for network in networks:
        for backend in grid.backends:
            for height, width in grid.sizes or (network.size,):
                precision = grid.precisions[0] if backend != "onnxruntime" else "fp32"
                file = network.prepared(store, backend, precision)
                shape = (1, height, width, 3)
                options = RunnerOptions(
                    device=grid.device,
                    precision=precision,
                    warm=((height, width),),
                    max_batch=1,
                    profiles=((shape, shape, shape),),
                )
                noise = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
                with create_runner(backend, Path(file.path), network.contract, options) as runner:
                    times = runner.layer_milliseconds(noise)
                found.append(
                    {
                        "network": network.name,
                        "backend": backend,
                        "size": [height, width],
                        "milliseconds": {name: round(value, 5) for name, value in times.items()},
                    }
                )
    return found
