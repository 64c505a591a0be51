"""Time of every node of an imported network, one after the other: for measuring only."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_RUNS = 6


class _Timed(torch.fx.Interpreter):
    """Runs a graph node by node; the device is waited for after each."""

    def __init__(self, module: torch.fx.GraphModule, device: torch.device) -> None:
        super().__init__(module)
        self._device = device
        self.seconds: dict[str, list[float]] = {}

    def run_node(self, n: torch.fx.Node) -> Any:  # noqa: ANN401  # whatever the node gives
        started = time.perf_counter()
        result = super().run_node(n)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        if n.op not in ("placeholder", "output", "get_attr"):
            self.seconds.setdefault(n.name, []).append(time.perf_counter() - started)
        return result


def layer_times(
    network: torch.nn.Module, normalized: Callable[[Tensor], Tensor], pictures: Tensor, device: torch.device
) -> dict[str, float]:
    """Milliseconds a node: the median of five runs after one to warm up.

    Args:
        network: From `module_from_onnx`.
        normalized: Makes its input of pictures.
        pictures: (1, h, w, 3) uint8.
        device: Where the network is.
    """
    if not isinstance(network, torch.fx.GraphModule):
        return {}
    timed = _Timed(network, device)
    with torch.inference_mode():
        images = normalized(pictures.to(device))
        for _ in range(_RUNS):
            timed.run(images)
    return {name: 1000 * statistics.median(seconds[1:]) for name, seconds in timed.seconds.items()}
