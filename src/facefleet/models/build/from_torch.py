"""`OnnxFromTorch`: a network in PyTorch to an ONNX graph with a free batch, compared with it at several batch sizes.

Owns the export and the comparison. torch is imported inside; what its exporters print is kept from the user.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import onnx
from onnx import ModelProto

from facefleet.errors import BackendUnavailableError, GraphError
from facefleet.models.build.dynamic import session
from facefleet.models.build.graph import rename

if TYPE_CHECKING:
    from facefleet.models.nets import LoadedNetwork

Exporter = Literal["auto", "dynamo", "script"]
_log = logging.getLogger(__name__)
_OPSETS = {"dynamo": 18, "script": 17}
_TOLERANCE = 1e-4  # of the largest value of an output
_TRACED_PX = (160, 192)  # for networks of any size: sides that differ, so that they cannot be taken for each other
_BATCHES = (1, 3, 16)


def onnx_from_torch(network: LoadedNetwork, *, exporter: Exporter = "auto") -> tuple[ModelProto, dict[str, float]]:
    """Export a network.

    Args:
        network: Loaded; its module is in eval mode.
        exporter: ``dynamo`` (torch.export, needs onnxscript), ``script`` (TorchScript), or ``auto``: the first of
            these that is there and whose graph answers right.

    Returns:
        The graph, input ``images`` (batch, 3, height, width), and output -> largest difference from PyTorch at batch
        1, 3 and 16, relative to the output's largest value.

    Raises:
        GraphError: No exporter made a graph that answers as PyTorch does.
        BackendUnavailableError: The exporter asked for needs a package that is not there.
    """
    reasons = []
    for name in ("dynamo", "script") if exporter == "auto" else (exporter,):
        if name == "dynamo" and importlib.util.find_spec("onnxscript") is None:
            if exporter == "dynamo":
                raise BackendUnavailableError(
                    "the exporter dynamo needs onnxscript", hint='pip install "facefleet[torch]", or use script'
                )
            continue
        try:
            with _quiet():
                model = _EXPORTERS[name](network)
            return model, _compare(network, model)
        except GraphError as error:
            reasons.append(f"{name}: {error.message}")
        except Exception as error:  # the exporters raise whatever they meet
            reasons.append(f"{name}: {type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}")
        _log.warning("export of %s: %s", network.name, reasons[-1])
    raise GraphError(f"{network.name} could not be exported: {'; '.join(reasons)}", hint="try the other exporter")


def _example(network: LoadedNetwork, batch: int) -> Any:  # noqa: ANN401  # a torch tensor
    import torch

    height, width = network.size_px or _TRACED_PX
    return torch.from_numpy(np.random.default_rng(batch).uniform(-1, 1, (batch, 3, height, width)).astype(np.float32))


def _by_dynamo(network: LoadedNetwork) -> ModelProto:
    import torch

    dims: dict[int, Any] = {0: torch.export.Dim("batch")}
    if network.size_px is None:
        dims |= {2: 32 * torch.export.Dim("rows"), 3: 32 * torch.export.Dim("columns")}
    program = torch.onnx.export(
        network.module,
        (_example(network, 2),),
        input_names=["images"],
        output_names=list(network.outputs),
        opset_version=_OPSETS["dynamo"],
        dynamic_shapes=(dims,),
        dynamo=True,
        verbose=False,
    )
    with tempfile.TemporaryDirectory(prefix="facefleet-") as folder:
        program.save(str(Path(folder) / "model.onnx"), external_data=False)
        return _named(onnx.load(Path(folder) / "model.onnx"), network)


def _by_script(network: LoadedNetwork) -> ModelProto:
    import torch

    free = {0: "batch"} if network.size_px else {0: "batch", 2: "height", 3: "width"}
    axes = {"images": free} | {name: {0: "batch"} for name in network.outputs}
    buffer = io.BytesIO()
    torch.onnx.export(
        network.module,
        (_example(network, 2),),
        buffer,
        input_names=["images"],
        output_names=list(network.outputs),
        opset_version=_OPSETS["script"],
        dynamic_axes=axes,
        do_constant_folding=True,
        dynamo=False,
    )
    return _named(onnx.load_from_string(buffer.getvalue()), network)


_EXPORTERS: dict[str, Callable[[LoadedNetwork], ModelProto]] = {"dynamo": _by_dynamo, "script": _by_script}


def _named(model: ModelProto, network: LoadedNetwork) -> ModelProto:
    """Inputs and outputs by their names; exporters give an output that is also an inner tensor another."""
    for value, name in zip(model.graph.output, network.outputs, strict=True):
        rename(model.graph, value.name, name)
    rename(model.graph, model.graph.input[0].name, "images")
    del model.graph.value_info[:]  # inner shapes speak of the example
    return model


def _compare(network: LoadedNetwork, model: ModelProto) -> dict[str, float]:
    import torch

    runner = session(model)
    worst = dict.fromkeys(network.outputs, 0.0)
    for batch in _BATCHES:
        example = _example(network, batch)
        with torch.inference_mode():
            made = network.module(example)
        want = [made] if isinstance(made, torch.Tensor) else list(made)
        got = runner.run(None, {"images": example.numpy()})
        for name, a, b in zip(network.outputs, want, got, strict=True):
            reference = a.numpy()
            if b.shape != reference.shape:
                raise GraphError(f"output {name} has shape {b.shape} at batch {batch}, PyTorch {reference.shape}")
            scale = float(np.abs(reference).max(initial=0)) or 1.0
            worst[name] = max(worst[name], float(np.abs(b - reference).max(initial=0)) / scale)
            if not worst[name] <= _TOLERANCE:
                raise GraphError(f"output {name} differs by {worst[name]:.1e} of its largest value at batch {batch}")
    return worst


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep exporters from printing and warning: what matters is whether the graph answers right."""
    chatty = logging.getLogger("torch.onnx")
    level = chatty.level
    chatty.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        chatty.setLevel(level)
