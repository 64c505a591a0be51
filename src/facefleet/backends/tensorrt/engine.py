"""What is in a plan: its tensors, their types and shapes, and its profiles.

Owns reading a plan on the device that it was built for; refuses one of another version or device. Executes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from facefleet.backends.tensorrt.binding import Binding, load_binding
from facefleet.backends.tensorrt.build import Shape, Shapes
from facefleet.errors import BackendError, BackendUnavailableError

_TYPES = {"FLOAT": "float32", "HALF": "float16", "BF16": "bfloat16"}
"""TensorRT's names of types that are not simply numpy's in capitals."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output.

    Attributes:
        name: Its name in the graph.
        dtype: As numpy calls it, ``bfloat16`` beside.
        shape: As built, -1 being a free dimension.
        profiles: Of an input: the (min, opt, max) shapes of every profile.
    """

    name: str
    dtype: str
    shape: Shape
    profiles: tuple[Shapes, ...] = ()


@dataclass(frozen=True, slots=True)
class Engine:
    """A plan on a device. It lives as long as this object and the contexts made of it.

    Attributes:
        handle: The ``ICudaEngine``.
        runtime: The ``IRuntime`` that read it, which must outlive it.
        inputs: In the order of the graph.
        outputs: Likewise.
        profiles: Number of optimization profiles.
    """

    handle: Any
    runtime: Any
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    profiles: int


def load_engine(plan: bytes, binding: Binding | None = None) -> Engine:
    """Read a plan onto the device of the calling thread.

    Args:
        plan: What `build_plan` returned.
        binding: TensorRT; found by itself.

    Raises:
        BackendError: The plan is damaged, or of another version or device.
        BackendUnavailableError: TensorRT is not installed, or has no runtime here.
    """
    trt = binding or load_binding()
    trt.errors()  # those of earlier calls
    try:
        runtime = trt.module.Runtime(trt.logger)
    except (TypeError, RuntimeError) as error:  # the binding's way to say that there is none
        raise BackendUnavailableError(
            f"TensorRT {trt.version} has no runtime here: {trt.errors() or error}", hint="see nvidia-smi"
        ) from error
    engine = runtime.deserialize_cuda_engine(plan)
    if engine is None:
        raise BackendError(
            f"the plan is none for TensorRT {trt.version} and this device: {trt.errors() or 'no reason given'}",
            hint="build it again on this machine with `facefleet build`",
        )
    count, kinds = int(engine.num_optimization_profiles), trt.module.TensorIOMode
    inputs, outputs = [], []
    for index in range(engine.num_io_tensors):
        name = engine.get_tensor_name(index)
        dtype, shape = engine.get_tensor_dtype(name).name, _shape(engine.get_tensor_shape(name))
        dtype = _TYPES.get(dtype, dtype.lower())
        if engine.get_tensor_mode(name) == kinds.INPUT:
            inputs.append(Tensor(name, dtype, shape, tuple(_profile(engine, name, each) for each in range(count))))
        else:
            outputs.append(Tensor(name, dtype, shape))
    return Engine(engine, runtime, tuple(inputs), tuple(outputs), count)


def _profile(engine: Any, name: str, index: int) -> Shapes:  # noqa: ANN401  # an ICudaEngine
    least, usual, most = engine.get_tensor_profile_shape(name, index)
    return _shape(least), _shape(usual), _shape(most)


def _shape(dims: Any) -> Shape:  # noqa: ANN401  # a Dims
    return tuple(int(size) for size in dims)
