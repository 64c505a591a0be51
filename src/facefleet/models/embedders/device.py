"""An embedder whose chips are on the device already: in buckets, without waiting. Imports PyTorch.

Owns the networks, one a bucket, all on buffers of their own. Used on one stream.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from facefleet.backends.torch.bound import BoundNetwork
from facefleet.backends.torch.runner import TorchRunner
from facefleet.errors import BadOutputError
from facefleet.models.embedders.embedder import Embedder
from facefleet.ops.align import SIDE_PX
from facefleet.ops.cuda import l2_normalize


class DeviceEmbedder:
    """Embeds chips of any photos; see `Embedder`.

    Args:
        embedder: Open, on a `TorchRunner`.
        buckets: Batch sizes, rising; the largest is the most chips a run.

    Attributes:
        room: (largest bucket, 112, 112, 3) uint8 on the device: chips are written here, from the first row on.

    Raises:
        BackendError: The networks cannot be made.
    """

    def __init__(self, embedder: Embedder, buckets: Sequence[int]) -> None:
        assert isinstance(embedder.runner, TorchRunner)
        spec = embedder.spec
        self._flip, self._dimension = embedder.flip, spec.dimension
        self._networks = [embedder.runner.bind(bucket, spec.height, spec.width) for bucket in reversed(buckets)][::-1]
        largest = self._networks[-1].input
        self._top, self._left = (SIDE_PX - spec.height) // 2, (SIDE_PX - spec.width) // 2
        whole = (len(largest), SIDE_PX, SIDE_PX, 3)
        self.room = largest if largest.shape == whole else torch.zeros(whole, dtype=torch.uint8, device=largest.device)
        for network in self._networks:
            if network.outputs[0].shape != (network.batch, self._dimension):
                raise BadOutputError(
                    f"the embedder returned {tuple(network.outputs[0].shape)}, the manifest says {self._dimension}",
                    hint="correct `dimension` in the manifest",
                )

    @property
    def buckets(self) -> tuple[int, ...]:
        """Batch sizes, rising."""
        return tuple(network.batch for network in self._networks)

    def embed(self, count: int) -> tuple[Tensor, Tensor]:
        """Embed the first `count` chips of `room`, on the stream that is current.

        Returns:
            (count, d) float32 of unit rows and (count,) float32 norms before, in memory of their own.
        """
        network = next(each for each in self._networks if each.batch >= count)
        if network.input is not self.room:
            bottom, right = self._top + network.input.shape[1], self._left + network.input.shape[2]
            network.input[:count].copy_(self.room[:count, self._top : bottom, self._left : right])
        raw = self._run(network)
        if self._flip:
            raw = raw.clone()
            network.input.copy_(network.input.flip(2))
            raw += self._run(network)
        return l2_normalize(raw[:count])

    def _run(self, network: BoundNetwork) -> Tensor:
        return network.enqueue()[0]
