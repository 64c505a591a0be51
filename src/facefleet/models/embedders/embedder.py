"""An embedder: aligned chips in, L2-normalised vectors out.

Owns one open runner. Stateless between calls; safe in any thread.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

import numpy as np

from facefleet.backends import Runner
from facefleet.errors import BadOutputError
from facefleet.ops import l2_normalize
from facefleet.packs import EmbedderSpec
from facefleet.types import Embeddings, F32Array, U8Array


class Embedder:
    """Turns chips into embeddings.

    Args:
        runner: A prepared network with a free batch; its first output is (n, dimension), a second one (AdaFace's
            feature norm) is not used.
        spec: What the manifest says of it.
        flip: Whether the embedding of the mirrored chip is added before normalising.

    Attributes:
        runner: As given.
        spec: As given.
        flip: As given.
    """

    def __init__(self, runner: Runner, spec: EmbedderSpec, *, flip: bool = False) -> None:
        self.runner = runner
        self.spec = spec
        self.flip = flip

    def __enter__(self) -> Self:
        self.runner.open()
        self.raw(np.zeros((1, self.spec.height, self.spec.width, 3), np.uint8))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.runner.close()

    @property
    def dimension(self) -> int:
        """Length of an embedding."""
        return self.spec.dimension

    def embed(self, chips: U8Array) -> Embeddings:
        """Embed a batch.

        Args:
            chips: (n, 112, 112, 3) uint8 RGB, n >= 1; a narrower network sees their middle.

        Returns:
            n embeddings.

        Raises:
            BadOutputError: A vector is zero, not finite, or of the wrong length.
            BackendError: The run failed.
        """
        chips = _middle(chips, self.spec.height, self.spec.width)
        vectors = self.raw(chips)
        if self.flip:
            vectors = vectors + self.raw(np.ascontiguousarray(chips[:, :, ::-1]))
        unit, norms = l2_normalize(vectors)
        if not (norms > 0).all():
            raise BadOutputError("an embedding is zero", hint="run with precision=fp32, or report the input")
        return Embeddings(unit, norms)

    def raw(self, chips: U8Array) -> F32Array:
        """Run the network on (n, h, w, 3) uint8 RGB chips of its own size; (n, d) float32, not normalised.

        Raises:
            BadOutputError: The vectors do not have the length that the manifest gives.
            BackendError: The run failed.
        """
        vectors = self.runner.run(chips)[0]
        if vectors.shape != (len(chips), self.spec.dimension):
            raise BadOutputError(
                f"the embedder returned {vectors.shape}, the manifest says dimension {self.spec.dimension}",
                hint="correct `dimension` in the manifest",
            )
        return vectors


def _middle(chips: U8Array, height: int, width: int) -> U8Array:
    top, left = (chips.shape[1] - height) // 2, (chips.shape[2] - width) // 2
    if top or left:
        return np.ascontiguousarray(chips[:, top : top + height, left : left + width])
    return chips
