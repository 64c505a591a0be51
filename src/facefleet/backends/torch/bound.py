"""A network for one batch size on buffers of its own, for callers whose tensors are on the device already.

Owns input, outputs and the captured graph. Used by one caller at a time, always on the same stream.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_WARMING = 3


class BoundNetwork:
    """Reads `input`, writes `outputs`.

    Args:
        module: From a batch of pictures to a tuple of tensors.
        shape: (n, h, w, 3) of the pictures.
        device: Where.
        capture: Whether the work is recorded as a CUDA graph, on a CUDA device.

    Attributes:
        input: (n, h, w, 3) uint8 on the device, written by the caller.
        outputs: Overwritten by every run.
        stream: That the work was warmed up on; None on the CPU.
        graph: The recorded work, if it was.
    """

    def __init__(self, module: Any, shape: tuple[int, ...], device: torch.device, *, capture: bool = True) -> None:  # noqa: ANN401
        self._module = module
        self.input = torch.zeros(shape, dtype=torch.uint8, device=device)
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.graph: torch.cuda.CUDAGraph | None = None
        self.outputs: tuple[Tensor, ...]
        with torch.inference_mode():
            if self.stream is None:
                self.outputs = module(self.input)
                return
            with torch.cuda.stream(self.stream):
                for _ in range(_WARMING):
                    self.outputs = module(self.input)
                self.stream.synchronize()
                if capture:
                    self.graph = torch.cuda.CUDAGraph()
                    with torch.cuda.graph(self.graph, stream=self.stream):
                        self.outputs = module(self.input)

    @property
    def batch(self) -> int:
        """Pictures."""
        return int(self.input.shape[0])

    def enqueue(self) -> tuple[Tensor, ...]:
        """Run on the stream that is current, without waiting; `outputs`."""
        if self.graph is not None:
            self.graph.replay()
        else:
            with torch.inference_mode():
                self.outputs = self._module(self.input)
        return self.outputs
