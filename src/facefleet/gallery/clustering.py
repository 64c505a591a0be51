"""Who is who among faces without names, and who appears together how often.

Two methods, both of scikit-learn or SciPy: ``components``, the connected components of the graph of mutual nearest
neighbors at or above a threshold, and ``hdbscan``. Mutual: each is among the other's nearest, so that one blurred face
that is like everybody joins nobody. Exact neighbors; time grows with the square of the number of faces, memory does
not.

Source: Brito, Chavez, Quiroz, Yukich, "Connectivity of the mutual k-nearest-neighbor graph in clustering and outlier
detection", 1997; Campello, Moulavi, Sander, "Density-based clustering based on hierarchical density estimates", 2013.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from facefleet.errors import BackendUnavailableError, ConfigError
from facefleet.gallery.index.flat import flat_search
from facefleet.types import F32Array

Method: TypeAlias = Literal["components", "hdbscan"]
_BLOCK = 512
NOISE = -1
"""Cluster of a face that belongs to none."""


def cluster_faces(
    vectors: F32Array, *, method: Method = "components", threshold: float = 0.55, neighbors: int = 20, min_size: int = 2
) -> NDArray[np.int64]:
    """Group faces.

    Args:
        vectors: (n, d) float32 of length one.
        method: See this module.
        threshold: Least cosine of two neighbors; ``components`` only.
        neighbors: How many nearest are looked at; ``components`` only.
        min_size: Smaller groups are no cluster.

    Returns:
        (n,) number of each face's cluster, the largest cluster being 0; `NOISE` for none.

    Raises:
        ConfigError: The method is unknown, or a number out of range.
        BackendUnavailableError: scikit-learn is not installed.
    """
    if method not in ("components", "hdbscan"):
        raise ConfigError(f"method {method!r}", hint="choose one of components, hdbscan")
    if min_size < 1 or neighbors < 1 or not -1 <= threshold <= 1:
        raise ConfigError("min_size and neighbors are at least 1, threshold is a cosine")
    if not len(vectors):
        return np.empty(0, np.int64)
    try:
        labels = _components(vectors, threshold, neighbors) if method == "components" else _hdbscan(vectors, min_size)
    except ImportError as error:
        raise BackendUnavailableError(
            "clustering needs scikit-learn", hint='pip install "facefleet[gallery]"'
        ) from error
    return _by_size(labels, min_size)


def _components(vectors: F32Array, threshold: float, neighbors: int) -> NDArray[np.int64]:
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    n = len(vectors)
    near: list[NDArray[np.int64]] = []
    for start in range(0, n, _BLOCK):
        scores, rows = flat_search(vectors, vectors[start : start + _BLOCK], min(neighbors + 1, n))
        from_, place = np.nonzero((scores >= threshold) & (rows >= 0))
        near.append(np.stack([from_ + start, rows[from_, place]]))
    edges = np.concatenate(near, axis=1)
    graph = coo_matrix((np.ones(edges.shape[1], np.int8), (edges[0], edges[1])), shape=(n, n)).tocsr()
    _, labels = connected_components(graph.minimum(graph.T), directed=False)
    return np.asarray(labels, np.int64)


def _hdbscan(vectors: F32Array, min_size: int) -> NDArray[np.int64]:
    from sklearn.cluster import HDBSCAN

    if len(vectors) < 2:
        return np.zeros(len(vectors), np.int64)
    # On unit vectors the Euclidean distance orders pairs as the cosine does.
    found = HDBSCAN(min_cluster_size=max(2, min_size), min_samples=1, copy=True).fit(vectors)
    return np.asarray(found.labels_, np.int64)


def _by_size(labels: NDArray[np.int64], min_size: int) -> NDArray[np.int64]:
    """Numbers by size, largest first, ties by the first face; small ones are noise."""
    out = np.full(len(labels), NOISE, np.int64)
    names, first, counts = np.unique(labels, return_index=True, return_counts=True)
    kept = [i for i in np.lexsort((first, -counts)) if names[i] != NOISE and counts[i] >= min_size]
    for number, i in enumerate(kept):
        out[labels == names[i]] = number
    return out


def together(inputs: Sequence[str], labels: NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """How many pictures show two clusters together.

    Args:
        inputs: (n,) picture of each face.
        labels: (n,) cluster of each face.

    Returns:
        First cluster, second cluster, pictures; most first.
    """
    pictures: dict[str, set[int]] = {}
    for name, label in zip(inputs, labels.tolist(), strict=True):
        if label != NOISE:
            pictures.setdefault(name, set()).add(label)
    counts: Counter[tuple[int, int]] = Counter()
    for present in pictures.values():
        counts.update(combinations(sorted(present), 2))
    return [(a, b, count) for (a, b), count in sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))]
