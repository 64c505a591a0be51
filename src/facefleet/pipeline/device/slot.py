"""The memory of one batch of pictures on the device, allocated once: the pictures, what is known of them, their faces.

A slot belongs to one batch at a time, from decoding until its last chip is cut. The host's side of its small tables is
read and written only while no copy of them is under way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from facefleet.ops import Letterbox
from facefleet.ops.cuda import Pictures
from facefleet.pipeline.device.lanes import Lane, Mark, pinned

ROW = 16
"""Numbers of a face: box, ten of landmarks, score, and whether it can be aligned."""
COUNT, REJECTED, REDO, FINITE = range(4)
"""Numbers of a picture: faces, highest score rejected, whether the host has to do it, whether outputs were finite."""
READ_ROWS = 16
"""Faces a picture, on average, that come to the host with the counts; more are fetched when they are known."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A picture as it lies in the pool.

    Attributes:
        offset: First byte.
        height: Rows.
        width: Columns.
        scale: Pixels per pixel of the original.
        frame: Width and height of the original.
        plans: How it lies in each detector input.
    """

    offset: int
    height: int
    width: int
    scale: float
    frame: tuple[int, int]
    plans: tuple[Letterbox, ...]


class Slot:
    """Memory of one batch.

    Args:
        device: Where.
        batch: Most pictures.
        pool_bytes: For all their pixels.
        inputs: Detector inputs a picture.
        candidates: Most faces a picture.
    """

    def __init__(self, device: torch.device, *, batch: int, pool_bytes: int, inputs: int, candidates: int) -> None:
        rows = batch * candidates + 1  # the last one takes what is no face
        self.batch, self._inputs = batch, inputs
        self.pool = torch.zeros(pool_bytes, dtype=torch.uint8, device=device)
        self.staging = self.pool if device.type == "cpu" else pinned((pool_bytes,), torch.uint8, device)
        self._host_whole = pinned((batch * (3 + 2 * inputs),), torch.int64, device)
        self._host_single = pinned((batch * (3 + 2 * inputs),), torch.float32, device)
        self._host_double = pinned((batch,), torch.float64, device)
        self._whole, self._single, self.scales = (
            each.to(device, copy=True) for each in (self._host_whole, self._host_single, self._host_double)
        )
        self.rows = torch.zeros((rows, ROW), device=device)
        self.which = torch.zeros(rows, dtype=torch.int64, device=device)
        self.matrices = torch.zeros((rows, 2, 3), device=device)
        self.usable = torch.zeros(rows, dtype=torch.bool, device=device)
        self.heads = torch.zeros((batch, 4), device=device)
        self.host_heads = pinned((batch, 4), torch.float32, device)
        self.host_rows = pinned((min(batch * READ_ROWS, rows - 1), ROW), torch.float32, device)
        self.pictures: Pictures | None = None
        self.free = Mark()
        self.filling = Lane(device)

    @property
    def bytes(self) -> int:
        """Memory on the device."""
        tensors = (self.pool, self._whole, self._single, self.scales, self.rows, self.which, self.matrices, self.usable)
        return sum(each.numel() * each.element_size() for each in tensors)

    def lay(self, placed: Sequence[Placed], bucket: int, threshold: float) -> None:
        """Write down where pictures lie, for a batch of `bucket`; what is beyond them finds nothing."""
        n, count = self.batch, len(placed)
        whole, single, double = (each.numpy() for each in (self._host_whole, self._host_single, self._host_double))
        whole[:n], whole[n:] = 0, 1
        single[:], double[:] = 1, 1
        whole[:count] = [each.offset for each in placed]
        single[2 * n : 3 * n] = np.inf
        single[2 * n : 2 * n + count] = threshold
        double[:count] = [each.scale for each in placed]
        sizes, frames = whole[n : 3 * n].reshape(n, 2), single[: 2 * n].reshape(n, 2)
        sizes[:count] = [(each.height, each.width) for each in placed]
        frames[:count] = [each.frame for each in placed]
        for number in range(self._inputs):
            content, scale = (each[self._part(number)].reshape(n, 2) for each in (whole, single))
            plans = [each.plans[number] for each in placed]
            content[:count] = [(plan.content_height, plan.content_width) for plan in plans]
            scale[:count] = [(plan.scale_x, plan.scale_y) for plan in plans]
        self._whole.copy_(self._host_whole, non_blocking=True)
        self._single.copy_(self._host_single, non_blocking=True)
        self.scales.copy_(self._host_double, non_blocking=True)
        self.pictures = Pictures(self.pool, self._whole[:bucket], self._whole[n : n + 2 * bucket].view(-1, 2))

    def contents(self, bucket: int) -> list[Tensor]:
        """For each input (bucket, 2) int64 rows and columns covered."""
        return [self._whole[self._part(number)].view(-1, 2)[:bucket] for number in range(self._inputs)]

    def input_scales(self, bucket: int) -> list[Tensor]:
        """For each input (bucket, 2) float32 pixels of it per pixel of the original."""
        return [self._single[self._part(number)].view(-1, 2)[:bucket] for number in range(self._inputs)]

    def frames(self, bucket: int) -> Tensor:
        """(bucket, 2) float32 width and height of the originals."""
        return self._single[: 2 * bucket].view(-1, 2)

    def thresholds(self, bucket: int) -> Tensor:
        """(bucket,) float32 least scores."""
        return self._single[2 * self.batch : 2 * self.batch + bucket]

    def _part(self, number: int) -> slice:
        first = (3 + 2 * number) * self.batch
        return slice(first, first + 2 * self.batch)
