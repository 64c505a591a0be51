"""The check that every vector passes on its way into a gallery or a search."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from facefleet.errors import InvalidEmbeddingError
from facefleet.ops import l2_normalize
from facefleet.types import F32Array

_UNIT = 1e-6


def checked_vectors(vectors: ArrayLike, dimension: int) -> F32Array:
    """Unit vectors of what a caller gave.

    Args:
        vectors: (n, d) or (d,) numbers.
        dimension: The d that is right.

    Returns:
        (n, d) float32, C-contiguous, L2-normalized, a new array.

    Raises:
        InvalidEmbeddingError: Not numbers, another dimension, NaN or infinite, or zero.
    """
    try:
        array = np.atleast_2d(np.asarray(vectors, np.float32))
    except (TypeError, ValueError) as error:
        raise InvalidEmbeddingError(f"an embedding is {dimension} numbers: {error}") from error
    if array.ndim != 2 or array.shape[1] != dimension:
        raise InvalidEmbeddingError(
            f"embeddings of shape {np.shape(vectors)}: this gallery's have {dimension} dimensions",
            hint="use the model that the gallery was made with",
        )
    bad = np.flatnonzero(~np.isfinite(array).all(axis=1))
    if len(bad):
        raise InvalidEmbeddingError(
            f"embedding {bad[0]} of {len(array)} is not finite", hint="leave out faces whose status is not ok"
        )
    unit, norms = l2_normalize(array)
    if not np.isfinite(norms).all() or (norms < 1e-12).any():
        raise InvalidEmbeddingError("an embedding has length zero or too large a length")
    # What is of length one already stays as it is, to the last bit: checking twice changes nothing.
    return np.ascontiguousarray(np.where(np.abs(norms - 1) < _UNIT, array.T, unit.T).T)
