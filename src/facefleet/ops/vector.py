"""Vector arithmetic of embeddings."""

from __future__ import annotations

import numpy as np

from facefleet.types import F32Array


def l2_normalize(vectors: F32Array) -> tuple[F32Array, F32Array]:
    """Scale rows to length one.

    Args:
        vectors: (n, d) float32.

    Returns:
        (n, d) float32 of unit rows and (n,) float32 norms before; a zero row stays zero with norm 0.
    """
    norms = np.sqrt(np.einsum("nd,nd->n", vectors, vectors, dtype=np.float64))
    unit = vectors / np.where(norms > 0, norms, 1.0)[:, None]
    return unit.astype(np.float32), norms.astype(np.float32)
