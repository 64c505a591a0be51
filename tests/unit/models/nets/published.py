"""Random weights in the forms that published checkpoints have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from facefleet.models.nets import NETWORKS


def random_network(name: str, seed: int = 0) -> Any:
    """A network with random weights and running statistics, in eval mode: no key has a value that is a default."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = NETWORKS[name].build()
        for key, tensor in module.state_dict().items():
            if key.endswith("running_var"):
                tensor.uniform_(0.8, 1.2)
            elif key.endswith(("running_mean", "bias")):
                tensor.normal_(0, 0.1)
            elif tensor.ndim == 4:  # keeps the spread of values, so that pictures stay apart down to the end
                torch.nn.init.kaiming_normal_(tensor)
            elif tensor.ndim == 1:  # scales of normalizations and slopes of PReLU
                tensor.uniform_(0.2, 0.9)
    return module.eval()


def save(tensors: dict[str, Any], path: Path, *, prefix: str = "", form: str = "bare", extra: dict[str, Any]) -> Path:
    """Write a state dict as a published checkpoint: bare, wrapped, in the old format, or as safetensors."""
    import torch

    prefixed = {prefix + key: tensor for key, tensor in tensors.items()} | extra
    if form == "safetensors":
        from safetensors.torch import save_file

        save_file(prefixed, path)
    elif form == "legacy":
        torch.save(prefixed, path, _use_new_zipfile_serialization=False)
    elif form == "bare":
        torch.save(prefixed, path)
    else:
        torch.save({form: prefixed, "epoch": 3}, path)
    return path
