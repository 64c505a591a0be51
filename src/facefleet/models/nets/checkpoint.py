"""From the file of a published checkpoint to a module that runs, checked name by name.

Owns the check that a file is complete and nothing else. Safe in any thread.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from facefleet.errors import BackendUnavailableError, CheckpointError
from facefleet.models.nets.layouts import NETWORKS, NetworkSpec, Triple, recognize

if TYPE_CHECKING:
    from torch import Tensor, nn

_COUNTER = "num_batches_tracked"  # of no use outside of training; old files lack it


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedNetwork:
    """A network with its published weights, and what it expects.

    Attributes:
        module: On the CPU, float32, in eval mode, without gradients. Takes (n, 3, h, w) float32. An embedder returns
            one tensor (n, dimension), not normalized; a detector a tuple in the order of `outputs`.
        name: Its key in `NETWORKS`, e.g. ``iresnet50``.
        family: How its outputs are read, as in a pack's manifest.
        color: Channel order of its input.
        mean: Subtracted from 0..255 values, per channel in `color` order.
        std: Divisor after that.
        size_px: Height and width of its input; None: any.
        outputs: Names for its outputs, in order.
        dimension: Length of its embeddings; None for a detector.
    """

    module: nn.Module
    name: str
    family: Literal["arcface", "adaface", "retinaface"]
    color: Literal["rgb", "bgr"]
    mean: Triple
    std: Triple
    size_px: tuple[int, int] | None
    outputs: tuple[str, ...]
    dimension: int | None


def load_checkpoint(path: str | os.PathLike[str], *, name: str | None = None) -> LoadedNetwork:
    """Load a published checkpoint; which network it is follows from the names and shapes in it.

    A bare state dict of IR_101 with a normalization inside its units is taken for TFace's CurricularFace. AdaFace has
    the same names, but saves them with the prefix `model.`; where that has been taken off, give `name`.

    Args:
        path: A file of `torch.save` or safetensors. Nothing in it is run.
        name: Key in `NETWORKS`, for files that do not say which network they are.

    Raises:
        BackendUnavailableError: torch is not installed.
        CheckpointError: There is no network of that name; the file is missing, damaged or holds Python objects; the
            layout is not known; or tensors are missing, superfluous, of another shape or not finite.
    """
    try:
        import torch
    except ImportError as error:
        raise BackendUnavailableError("torch is not installed", hint='pip install "facefleet[torch]"') from error
    from facefleet.models.nets.weights import read_weights

    if name is not None and name not in NETWORKS:
        raise CheckpointError(f"there is no network {name!r}", hint=f"known: {', '.join(NETWORKS)}")
    file = Path(path)
    weights = read_weights(file)
    tensors = weights.tensors
    shapes = {key: tuple(tensor.shape) for key, tensor in tensors.items()}
    spec = NETWORKS[name] if name else recognize(shapes, weights.prefixes, origin=file.name)
    with torch.device("meta"):
        module = spec.build()
    wanted = module.state_dict()
    _compare(wanted, tensors, spec, file.name)
    module.load_state_dict(
        {key: _ready(tensors.get(key), like, key, file.name) for key, like in wanted.items()}, assign=True
    )
    module.eval().requires_grad_(requires_grad=False)
    return LoadedNetwork(
        module=module,
        name=spec.name,
        family=spec.family,
        color=spec.color,
        mean=spec.mean,
        std=spec.std,
        size_px=spec.size_px,
        outputs=spec.outputs,
        dimension=spec.dimension,
    )


def _compare(wanted: Mapping[str, Tensor], got: Mapping[str, Tensor], spec: NetworkSpec, origin: str) -> None:
    """Check names and shapes both ways."""
    missing = [key for key in wanted if key not in got and not key.endswith(_COUNTER)]
    unexpected = [key for key in got if key not in wanted]
    other = [key for key in wanted if key in got and wanted[key].shape != got[key].shape]
    if not missing and not unexpected and not other:
        return
    faults = []
    if missing:
        faults.append(f"{len(missing)} missing, first {missing[0]} {_shape(wanted[missing[0]])}")
    if unexpected:
        faults.append(f"{len(unexpected)} unexpected, first {unexpected[0]} {_shape(got[unexpected[0]])}")
    if other:
        key = other[0]
        faults.append(f"{len(other)} of another shape, first {key} {_shape(got[key])}, not {_shape(wanted[key])}")
    raise CheckpointError(
        f"{origin}: not the checkpoint of {spec.name} ({spec.keys} tensors, {spec.parameters:,} parameters): "
        f"of {len(got)} tensors, {'; '.join(faults)}",
        hint="compare the file's SHA-256 with what was published; a variant of the network cannot be loaded",
    )


def _ready(tensor: Tensor | None, like: Tensor, key: str, origin: str) -> Tensor:
    """A tensor of the file as the module needs it; zero for a counter that the file lacks."""
    import torch

    if tensor is None:
        return torch.zeros(like.shape, dtype=like.dtype)
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_complex():
        raise CheckpointError(f"{origin}: {key} is not a plain tensor", hint="save the float32 state dict")
    if not bool(torch.isfinite(tensor).all()):
        raise CheckpointError(f"{origin}: {key} has values that are not finite", hint="fetch the file again")
    return tensor.to(torch.float32 if like.is_floating_point() else like.dtype).contiguous()


def _shape(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))
