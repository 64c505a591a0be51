"""A detector whose pictures are on the device already: letterboxed, run, read and settled there, a batch at a time.

Owns the networks, one for each input side and batch bucket, on buffers of their own. Used on one stream. Imports
PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from facefleet.backends.torch.runner import TorchRunner
from facefleet.models.detectors.detector import Detector, Selection
from facefleet.models.detectors.device import HEADS, DeviceDetections, settle
from facefleet.ops import Letterbox
from facefleet.ops.cuda import Pictures, letterbox_into
from facefleet.ops.letterbox import round_up


class DeviceDetector:
    """Finds faces in batches of pictures; see `Detector`.

    Args:
        detector: Open, and `why_not` had nothing to say.
        sizes: Detector sizes.
        buckets: Batch sizes, rising.

    Raises:
        BackendError: The networks cannot be made.
    """

    def __init__(self, detector: Detector, sizes: Sequence[int | str], buckets: Sequence[int]) -> None:
        assert isinstance(detector.runner, TorchRunner)
        self._detector = detector
        self._sizes = tuple(sizes)
        stride = detector.spec.stride
        self.sides = tuple(dict.fromkeys(round_up(size, stride) for size in sizes if isinstance(size, int)))
        self.buckets = tuple(buckets)
        self._head = HEADS[detector.spec.family](detector.outputs)
        bind = detector.runner.bind
        self._networks = {
            (side, bucket): bind(bucket, side, side) for side in self.sides for bucket in reversed(self.buckets)
        }

    def plan(self, width: int, height: int) -> tuple[Letterbox, ...]:
        """How a picture lies in the inputs, one for each of `sides`, in their order."""
        return self._detector.plan(width, height, self._sizes)

    def run(self, pictures: Pictures, contents: Sequence[Tensor]) -> None:
        """Run the networks on a batch, on the stream that is current.

        Args:
            pictures: As many as one of `buckets`.
            contents: For each side (n, 2) int64 rows and columns that each picture covers.
        """
        for side, content in zip(self.sides, contents, strict=True):
            network = self._networks[side, len(pictures)]
            letterbox_into(network.input, pictures, content)
            network.enqueue()

    def settled(
        self, scales: Sequence[Tensor], frames: Tensor, thresholds: Tensor, select: Selection
    ) -> DeviceDetections:
        """The faces that the last `run` of a bucket found, on the stream that is current.

        Args:
            scales: For each side (n, 2) float32 input pixels per pixel of the original, x and y; n is the bucket.
            frames: (n, 2) float32 width and height of the originals.
            thresholds: (n,) float32: least scores.
            select: What to keep besides.
        """
        read, bucket = self._head.batch_candidates, len(frames)
        outputs = [self._networks[side, bucket].outputs for side in self.sides]
        parts = [
            (read(values, side, side, thresholds), scale)
            for values, side, scale in zip(outputs, self.sides, scales, strict=True)
        ]
        return settle(parts, frames, select)
