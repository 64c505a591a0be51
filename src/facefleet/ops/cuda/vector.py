"""Vector arithmetic of embeddings."""

from __future__ import annotations

import torch


def l2_normalize(vectors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale rows to length one.

    Args:
        vectors: (n, d), any floating type.

    Returns:
        (n, d) float32 of unit rows and (n,) float32 norms before; a zero row stays zero with norm 0.
    """
    wide = vectors.to(torch.float32)
    norms = torch.linalg.vector_norm(wide, dim=1)
    return wide / torch.where(norms > 0, norms, 1.0)[:, None], norms
