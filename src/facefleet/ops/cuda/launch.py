"""Whether kernels of ours can run on a tensor."""

from __future__ import annotations

import importlib.util
from functools import lru_cache

import torch


@lru_cache(maxsize=1)
def _installed() -> bool:
    return importlib.util.find_spec("triton") is not None


def has_kernels(tensor: torch.Tensor) -> bool:
    """Whether it is on a CUDA device and Triton is installed; elsewhere PyTorch's own operators compute the same."""
    return tensor.is_cuda and _installed()
