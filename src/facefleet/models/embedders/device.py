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
        self._plain = {each.batch: torch.zeros_like(each.outputs[0]) for each in self._networks} if self._flip else {}
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

    def bucket(self, count: int) -> int:
        """The batch that so many chips run in."""
        return self._network(count).batch

    def run(self, count: int) -> None:
        """Run the network on the first `count` chips of `room`, on the stream that is current."""
        network = self._network(count)
        if network.input is not self.room:
            bottom, right = self._top + network.input.shape[1], self._left + network.input.shape[2]
            network.input[:count].copy_(self.room[:count, self._top : bottom, self._left : right])
        network.enqueue()
        if self._flip:
            plain = self._plain[network.batch]
            plain.copy_(network.outputs[0])
            network.input.copy_(network.input.flip(2))
            network.enqueue()

    def vectors(self, bucket: int) -> tuple[Tensor, Tensor]:
        """What the last `run` of a bucket found, on the stream that is current.

        Returns:
            (bucket, d) float32 of unit rows and (bucket,) float32 norms before, in memory of their own.
        """
        raw = self._network(bucket).outputs[0]
        return l2_normalize(raw + self._plain[bucket] if self._flip else raw)

    def _network(self, count: int) -> BoundNetwork:
        return next(each for each in self._networks if each.batch >= count)
