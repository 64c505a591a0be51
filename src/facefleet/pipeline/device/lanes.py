"""Streams and events under names that exist without a device too, where everything happens at once and in order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class Mark:
    """A place in a lane.

    Args:
        event: CUDA's; None where there is no device, and the place is reached.
    """

    def __init__(self, event: Any = None) -> None:  # noqa: ANN401  # a torch.cuda.Event
        self.event = event

    def wait(self) -> None:
        """Let this thread sleep until the lane has come here."""
        if self.event is not None:
            self.event.synchronize()


class Lane:
    """Work of a device in order, beside that of other lanes.

    Args:
        device: Which.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    @property
    def handle(self) -> int:
        """CUDA's; 0 without a device."""
        return 0 if self._stream is None else int(self._stream.cuda_stream)

    @contextmanager
    def use(self) -> Iterator[None]:
        """What this thread launches inside the ``with`` block is in this lane."""
        with torch.inference_mode():
            if self._stream is None:
                yield
            else:
                with torch.cuda.stream(self._stream):
                    yield

    def mark(self) -> Mark:
        """The place that the lane is at now."""
        if self._stream is None:
            return Mark()
        event = torch.cuda.Event(blocking=True)
        event.record(self._stream)
        return Mark(event)

    def wait(self, mark: Mark) -> None:
        """Let the lane, not this thread, wait for a place of another."""
        if self._stream is not None and mark.event is not None:
            self._stream.wait_event(mark.event)


def pinned(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros on the host, in memory that a device copies from and to without waiting."""
    return torch.zeros(shape, dtype=dtype, pin_memory=device.type == "cuda")
