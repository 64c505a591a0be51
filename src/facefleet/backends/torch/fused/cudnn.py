"""Convolutions with bias, residual and PReLU as one cuDNN graph, through the package ``nvidia-cudnn-frontend``.

Owns one cuDNN handle a thread and the graphs built with it. A graph is built for shapes and strides; the addresses are
given at each run. Refuses, by returning no plans, what this cuDNN cannot fuse. Runs on the stream that is current.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_LOCAL = threading.local()
_X, _W, _BIAS, _SLOPE, _REST, _RES, _Y, _MAP = range(1, 9)


def available() -> bool:
    """Whether the package is installed."""
    return importlib.util.find_spec("cudnn") is not None


def version() -> str:
    """CuDNN's own version: plans are remembered for one."""
    import cudnn

    return str(cudnn.backend_version())


def _handle(device: torch.device) -> Any:  # noqa: ANN401  # an integer of cuDNN's
    import cudnn

    handles = _LOCAL.__dict__.setdefault("handles", {})
    if device not in handles:
        with torch.cuda.device(device):
            handles[device] = cudnn.create_handle()
    cudnn.set_stream(handle=handles[device], stream=torch.cuda.current_stream(device).cuda_stream)
    return handles[device]


@dataclass(frozen=True, slots=True, eq=False)
class Operands:
    """The tensors of one convolution; maps are (n, h, w, c) views with unit stride along c.

    Attributes:
        x: What is convolved, the padding included.
        weight: (outputs, rows, columns, inputs), contiguous.
        bias: (outputs,) float32.
        slope: (outputs,) float32, or None.
        residual: Added before the activation, or None.
        y: Written.
        stride: In both directions.
        padding: Zeros on every side of `x`; only cuDNN adds them.
        bias_map: (n, h, w, outputs) in the type of `y`, instead of `bias`: one that depends on the place. Only cuDNN
            takes it.
        rest: 1 - slope, needed where a slope is above 1: PReLU(z) is max(z, slope * z) otherwise.
    """

    x: Tensor
    weight: Tensor
    bias: Tensor
    slope: Tensor | None
    residual: Tensor | None
    y: Tensor
    stride: int
    padding: int = 0
    bias_map: Tensor | None = None
    rest: Tensor | None = None

    def plain(self) -> bool:
        """Whether a kernel of ours can run it: nothing is padded."""
        return self.padding == 0 and self.bias_map is None

    def packed(self) -> bool:
        """Whether cuDNN can run it: its fused kernels take what they write or add as dense, whatever its strides."""
        added = self.residual is None or self.residual.is_contiguous()
        return bool(added and self.y.is_contiguous() and self.y.dtype == torch.float16)


class FusedGraph:
    """A graph for the shapes of `operands`, and those of its plans that have been built.

    Args:
        operands: Shapes and strides are read, the numbers are not.
    """

    def __init__(self, operands: Operands) -> None:
        import cudnn

        self._device = operands.x.device
        half, single = cudnn.data_type.HALF, cudnn.data_type.FLOAT
        graph = cudnn.pygraph(
            io_data_type=half,
            intermediate_data_type=single,
            compute_data_type=single,
            handle=_handle(self._device),
        )
        z = graph.conv_fprop(
            image=_declared(graph, operands.x, _X, half),
            weight=_declared(graph, operands.weight, _W, half),
            padding=[operands.padding] * 2,
            stride=[operands.stride] * 2,
            dilation=[1, 1],
        )
        width = operands.bias.numel()

        def vector(uid: int) -> Any:  # noqa: ANN401
            return graph.tensor(dim=[1, width, 1, 1], stride=[width, 1, width, width], data_type=single, uid=uid)

        if operands.bias_map is None:
            z = graph.add(a=z, b=vector(_BIAS))
        else:
            z = graph.add(a=z, b=_declared(graph, operands.bias_map, _MAP, half))
        if operands.residual is not None:
            z = graph.add(a=z, b=_declared(graph, operands.residual, _RES, half))
        if operands.slope is not None:
            scaled = graph.mul(a=z, b=vector(_SLOPE))
            if operands.rest is None:
                z = graph.max(z, scaled)
            else:
                z = graph.add(a=scaled, b=graph.mul(a=graph.relu(input=z), b=vector(_REST)))
        z.set_output(True).set_data_type(half).set_uid(_Y)
        z.set_dim(_dim(operands.y)).set_stride(_strides(operands.y))
        self._graph = graph
        self.count = 0
        self._built: dict[int, int] = {}
        try:
            graph.validate()
            graph.build_operation_graph()
            graph.create_execution_plans([cudnn.heur_mode.A])
            self.count = int(graph.get_execution_plan_count())
            self.reason = ""
        except Exception as error:  # cuDNN's exceptions share no base class
            self.reason = str(error).splitlines()[0][:200]

    def build(self, index: int) -> bool:
        """Make plan `index` ready to run; whether this cuDNN could."""
        if index not in self._built:
            try:
                _handle(self._device)
                self._graph.build_plan_at_index(index)
                self._built[index] = max(int(self._graph.get_workspace_size_plan_at_index(index)), 0)
            except Exception as error:  # as above
                self.reason = str(error).splitlines()[0][:200]
                return False
        return True

    def name(self, index: int) -> str:
        """CuDNN's name for plan `index`, which says what it is wherever it stands in the list."""
        return str(self._graph.get_plan_name_at_index(index))

    def workspace_bytes(self, index: int) -> int:
        """Scratch memory that plan `index`, which has been built, needs."""
        return self._built[index]

    def index_of(self, name: str) -> int | None:
        """Where the plan of that name stands now; None if it is not there any more."""
        return next((index for index in range(self.count) if self.name(index) == name), None)

    def launch(self, index: int, operands: Operands, workspace: Tensor) -> Callable[[], None]:
        """A function that runs plan `index`, which has been built, on the current stream; the tensors are held."""
        addresses = {_X: operands.x, _W: operands.weight, _Y: operands.y}
        if operands.bias_map is None:
            addresses[_BIAS] = operands.bias
        else:
            addresses[_MAP] = operands.bias_map
        if operands.slope is not None:
            addresses[_SLOPE] = operands.slope
            if operands.rest is not None:
                addresses[_REST] = operands.rest
        if operands.residual is not None:
            addresses[_RES] = operands.residual

        def run() -> None:
            self._graph.execute_plan_at_index(addresses, workspace, index, handle=_handle(self._device))

        return run


def _declared(graph: Any, tensor: Tensor, uid: int, kind: Any) -> Any:  # noqa: ANN401
    return graph.tensor(dim=_dim(tensor), stride=_strides(tensor), data_type=kind, uid=uid)


def _dim(tensor: Tensor) -> list[int]:
    n, h, w, c = tensor.shape
    return [n, c, h, w]


def _strides(tensor: Tensor) -> list[int]:
    n, h, w, c = tensor.stride()
    return [n, c, h, w]
