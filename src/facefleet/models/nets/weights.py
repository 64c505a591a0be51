"""Tensors from the file of a checkpoint, without running anything that is in it.

Owns the reading of PyTorch and safetensors files and the mapping of what those libraries raise. Refuses pickles that
hold more than tensors and plain values. Safe in any thread: reading takes a lock, since torch keeps its list of allowed
classes for the whole process.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Final

from facefleet.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

_WRAPPERS: Final = ("state_dict", "state_dict_backbone")  # as saved by Lightning and others; by arcface_torch
_PREFIXES: Final = ("module.", "model.", "backbone.")
_TRAINING_ONLY: Final = "head."  # the margin of a training loss, beside a prefixed network
_LOCK = threading.Lock()


class _Inert:
    """Stands for a class that old Lightning checkpoints name as a key; never made an instance of."""


_INERT_NAMES: Final = ("pytorch_lightning.callbacks.model_checkpoint.ModelCheckpoint",)


@dataclass(frozen=True, slots=True)
class Weights:
    """What a file holds.

    Attributes:
        tensors: Name without prefix -> tensor on the CPU.
        prefixes: What was taken off the names, outermost first.
    """

    tensors: dict[str, Tensor]
    prefixes: tuple[str, ...]


def read_weights(path: Path) -> Weights:
    """Read a checkpoint.

    Args:
        path: A file of `torch.save` (either format) or safetensors, told apart by content.

    Raises:
        CheckpointError: The file is missing, damaged, of another kind, holds Python objects, or holds no state dict.
    """
    try:
        with path.open("rb") as stream:
            head = stream.read(16)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}", hint="check the path") from error
    if head[8:9] == b"{":
        found: object = _read_safetensors(path)
    elif head.startswith((b"PK", b"\x80")):
        found = _read_torch(path)
    else:
        raise CheckpointError(
            f"{path.name}: not a checkpoint; it starts with {head[:8]!r}",
            hint="a file of torch.save or safetensors is needed; a page saved instead of a download looks like this",
        )
    return _state_dict(found, path.name)


def _read_safetensors(path: Path) -> object:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError as error:
        raise CheckpointError(
            f"{path.name}: safetensors is not installed", hint='pip install "facefleet[torch]"'
        ) from error
    try:
        return load_file(path, device="cpu")
    except (SafetensorError, OSError, ValueError) as error:
        raise _damaged(path, error) from error


def _read_torch(path: Path) -> object:
    import torch

    try:
        with _LOCK, torch.serialization.safe_globals([(_Inert, name) for name in _INERT_NAMES]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        if "GLOBAL" not in str(error):
            raise _damaged(path, error) from error
        raise CheckpointError(
            f"{path.name}: holds Python objects beside tensors, which are not loaded",
            hint="if you trust the file, save its state dict alone: torch.save(torch.load(path, weights_only=False)"
            "['state_dict'], 'weights.pth')",
        ) from error
    except Exception as error:  # damaged files end in errors of many kinds
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> CheckpointError:
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    return CheckpointError(
        f"{path.name}: damaged, or not a checkpoint: {first[:200]}",
        hint="fetch the file again and compare its size and SHA-256 with what was published",
    )


def _state_dict(found: object, origin: str) -> Weights:
    from torch import Tensor

    for wrapper in _WRAPPERS:
        if isinstance(found, Mapping) and isinstance(found.get(wrapper), Mapping):
            found = found[wrapper]
            break
    if not isinstance(found, Mapping) or not found:
        raise CheckpointError(
            f"{origin}: holds {type(found).__name__}, not a state dict", hint="save model.state_dict() with torch.save"
        )
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise CheckpointError(
                f"{origin}: entry {name!r} is {type(value).__name__}, not a tensor",
                hint="save model.state_dict() with torch.save",
            )
    return _without_prefixes(dict(found), origin)


def _without_prefixes(tensors: dict[str, Tensor], origin: str) -> Weights:
    prefixes: list[str] = []
    while prefix := next((each for each in _PREFIXES if any(name.startswith(each) for name in tensors)), None):
        prefixes.append(prefix)
        kept = [name for name in tensors if name.startswith(prefix) or not name.startswith(_TRAINING_ONLY)]
        stripped = {name.removeprefix(prefix): tensors[name] for name in kept}
        if len(stripped) != len(kept):
            raise CheckpointError(
                f"{origin}: holds the same names with and without {prefix!r}", hint="save one network alone"
            )
        tensors = stripped
    return Weights(tensors, tuple(prefixes))
