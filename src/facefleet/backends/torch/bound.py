"""Work of a device that is recorded once and replayed, and a network for one batch size as such work.

Owns input, outputs and the captured graphs. Used by one caller at a time, always on the same stream.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
_WARMING = 3


class Recorded(Generic[T]):
    """Work that is the same every time: a CUDA graph on a CUDA device, which the host starts by one call.

    Args:
        work: Launches what reads and writes the same memory each time, and waits for nothing; called a few times now.
        device: Where.
        capture: Whether it is recorded, on a CUDA device; else it is called each time.
        beside: Other work, never under way at the same time, whose memory for what is in between may be used too.

    Attributes:
        result: What `work` returned; its tensors are overwritten by every run.
        stream: That the work was warmed up on; None on the CPU.
        graph: The recorded work, if it was.
    """

    def __init__(
        self, work: Callable[[], T], device: torch.device, *, capture: bool = True, beside: Recorded[Any] | None = None
    ) -> None:
        self._work = work
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.graph: torch.cuda.CUDAGraph | None = None
        with torch.inference_mode():
            if self.stream is None:
                self.result = work()
                return
            with torch.cuda.stream(self.stream):
                for _ in range(_WARMING):
                    self.result = work()
                self.stream.synchronize()
                if capture:
                    self.graph = torch.cuda.CUDAGraph()
                    pool = None if beside is None or beside.graph is None else beside.graph.pool()
                    with torch.cuda.graph(self.graph, pool=pool, stream=self.stream):
                        self.result = work()

    def __call__(self) -> T:
        """Run on the stream that is current, without waiting; `result`."""
        if self.graph is not None:
            self.graph.replay()
        else:
            with torch.inference_mode():
                self.result = self._work()
        return self.result


class BoundNetwork:
    """Reads `input`, writes `outputs`.

    Args:
        module: From a batch of pictures to a tuple of tensors.
        shape: (n, h, w, 3) of the pictures.
        device: Where.
        capture: Whether the work is recorded as a CUDA graph, on a CUDA device.

    Attributes:
        input: (n, h, w, 3) uint8 on the device, written by the caller.
        enqueue: Runs it on the stream that is current, without waiting; returns `outputs`.
    """

    def __init__(self, module: Any, shape: tuple[int, ...], device: torch.device, *, capture: bool = True) -> None:  # noqa: ANN401
        self.input = torch.zeros(shape, dtype=torch.uint8, device=device)
        self.enqueue: Recorded[tuple[Tensor, ...]] = Recorded(lambda: module(self.input), device, capture=capture)

    @property
    def batch(self) -> int:
        """Pictures."""
        return int(self.input.shape[0])

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """Overwritten by every run."""
        return self.enqueue.result
