"""Pictures of different sizes in one tensor, so that one launch reads from all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from facefleet.types import RGBArray


@dataclass(frozen=True, slots=True)
class Pictures:
    """Pictures one after the other.

    Attributes:
        data: (bytes,) uint8: RGB pixels, row by row, without gaps.
        offsets: (n,) int64: first byte of each.
        sizes: (n, 2) int64: height and width.
    """

    data: torch.Tensor
    offsets: torch.Tensor
    sizes: torch.Tensor

    def __post_init__(self) -> None:
        if not (self.offsets.is_contiguous() and self.sizes.is_contiguous()):
            raise ValueError("offsets and sizes are read by kernels and must be contiguous")

    def __len__(self) -> int:
        return int(self.offsets.shape[0])

    def sample(self, which: torch.Tensor, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Pixels at integer places.

        Args:
            which: (k,) int64 numbers of pictures.
            y: (k, rows, columns) int64, inside of the picture.
            x: The same for columns.

        Returns:
            (k, rows, columns, 3) int32.
        """
        width = self.sizes[which, 1][:, None, None]
        first = self.offsets[which][:, None, None] + (y * width + x) * 3
        index = first[..., None] + torch.arange(3, device=first.device)
        return self.data[index.reshape(-1)].reshape(index.shape).to(torch.int32)


def pack(
    pictures: Sequence[RGBArray],
    device: torch.device | str,
    *,
    staging: torch.Tensor | None = None,
    each: Callable[..., Iterable[object]] = map,
) -> Pictures:
    """Copy pictures to a device, all in one transfer.

    Args:
        pictures: (h, w, 3) uint8 each, at least one.
        device: Where to.
        staging: (at least so many bytes,) uint8 in pinned memory, to copy from without waiting; the caller leaves it
            alone until the device has it.
        each: Calls a function for every element of its other arguments, as `map` does: an executor's `map` copies many
            pictures at a time.
    """
    sizes = np.array([picture.shape[:2] for picture in pictures], np.int64)
    lengths = sizes.prod(axis=1) * 3
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    total = int(offsets[-1])
    host = torch.empty(total, dtype=torch.uint8) if staging is None else staging[:total]
    flat = host.numpy()

    def lay(picture: RGBArray, offset: int) -> None:
        np.copyto(flat[offset : offset + picture.size].reshape(picture.shape), picture)

    for _ in each(lay, pictures, offsets[:-1].tolist()):
        pass
    data = host.to(device, non_blocking=True)
    small = torch.from_numpy(np.concatenate([offsets[:-1], sizes.reshape(-1)])).to(device, non_blocking=True)
    return Pictures(data, small[: len(sizes)], small[len(sizes) :].view(-1, 2))
