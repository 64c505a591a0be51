"""An execution context that is bound to one shape for good, and the CUDA graph of that shape.

Owns the order in which a context is set up. NVIDIA's documentation: a captured graph is specific to the input shapes,
to the addresses of inputs and outputs and to the activation memory; best practice is one context a captured graph,
with memory shared between the contexts; a context has to run once before it is captured.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from facefleet.backends.tensorrt.binding import Binding
from facefleet.backends.tensorrt.build import Shape
from facefleet.backends.tensorrt.cuda import Cuda
from facefleet.backends.tensorrt.engine import Engine
from facefleet.errors import BackendError, InferenceError

_log = logging.getLogger(__name__)


class BoundContext:
    """A context on a profile, at one shape.

    Since TensorRT 10 contexts may share a profile.

    Args:
        trt: TensorRT.
        engine: The network.
        cuda: The device.
        stream: Where everything is run; memory that contexts share may be used by one stream only.
        profile: Number of the profile.
        shape: Of the input.
        activations: Address and bytes of the memory for activations, at least what the profile needs.
        addresses: Of every tensor; empty for a context that is only asked for shapes.
        recorded: Whether its work is captured.

    Raises:
        BackendError: TensorRT refuses.
    """

    def __init__(
        self,
        trt: Binding,
        engine: Engine,
        cuda: Cuda,
        stream: Any,  # noqa: ANN401  # opaque
        profile: int,
        shape: Shape,
        activations: tuple[int, int],
        addresses: Mapping[str, int],
        *,
        recorded: bool,
    ) -> None:
        self._trt, self._cuda, self._stream = trt, cuda, stream
        self.shape = shape
        # TensorRT-RTX captures by itself: which kernels it has changes while it specializes them.
        self._recordable = recorded and not trt.rtx
        self._ran = False
        self._graph: Any = None
        self._profiler: Any = None
        self._context = self._created(engine, recorded=recorded)
        if self._context is None:
            raise BackendError(f"no execution context: {trt.errors()}", hint="the device may have no memory left")
        self._context.set_device_memory(*activations)
        self._must(self._context.set_optimization_profile_async(profile, int(stream)), f"set profile {profile}")
        cuda.synchronize(stream)
        self._must(self._context.set_input_shape(engine.inputs[0].name, shape), f"take the shape {shape}")
        try:
            missing = list(self._context.infer_shapes())
        except RuntimeError as error:
            raise InferenceError(f"TensorRT has no shapes for {shape}: {error}") from error
        if missing:
            raise InferenceError(f"TensorRT has no shapes for {shape}: those of {', '.join(missing)} are not known")
        for name, address in addresses.items():
            self._must(self._context.set_tensor_address(name, address), f"take the address of {name}")

    def shape_of(self, name: str) -> Shape:
        """Of a tensor.

        Raises:
            BackendError: It depends on what is in the pictures.
        """
        shape = tuple(int(size) for size in self._context.get_tensor_shape(name))
        if min(shape, default=1) < 0:
            raise BackendError(
                f"the shape {shape} of {name} depends on what is in the pictures", hint="export it fixed"
            )
        return shape

    def execute(self) -> None:
        """Queue the work: launched anew the first time, which settles what a context does lazily; then replayed."""
        if self._graph is None and self._recordable and self._ran:
            self._graph = self._recorded()
            self._recordable = self._graph is not None
        if self._graph is not None:
            self._cuda.launch(self._graph, self._stream)
        else:
            self._must(self._context.execute_async_v3(int(self._stream)), "execute")
        self._ran = True

    def profile(self, profiler: Any) -> None:  # noqa: ANN401  # an IProfiler
        """Have every layer's time reported; only where nothing is recorded."""
        self._profiler = profiler  # TensorRT holds no reference to it
        self._context.profiler = profiler

    def close(self) -> None:
        """Give graph and context back. Nothing of it may be running."""
        graph, self._graph = self._graph, None
        if graph is not None:
            self._cuda.destroy_graph(graph)
        self._context = None

    def _created(self, engine: Engine, *, recorded: bool) -> Any:  # noqa: ANN401  # an IExecutionContext
        """A context without memory of its own."""
        strategy = self._trt.module.ExecutionContextAllocationStrategy.USER_MANAGED
        if not self._trt.rtx:
            return engine.handle.create_execution_context(strategy)
        config = engine.handle.create_runtime_config()
        config.set_execution_context_allocation_strategy(strategy)
        kinds = self._trt.module.CudaGraphStrategy
        config.cuda_graph_strategy = kinds.WHOLE_GRAPH_CAPTURE if recorded else kinds.DISABLED
        return engine.handle.create_execution_context(config)

    def _recorded(self) -> Any:  # noqa: ANN401  # opaque
        """The work of one run as a graph; None where it cannot be one, and runs go on without."""
        self._cuda.synchronize(self._stream)
        taken = False
        self._cuda.begin_capture(self._stream)
        try:
            taken = self._context.execute_async_v3(int(self._stream))
        finally:
            graph = self._cuda.end_capture(self._stream)
        if taken and graph is not None:
            return graph
        if graph is not None:
            self._cuda.destroy_graph(graph)
        _log.warning("no CUDA graph for %s: %s", self.shape, self._trt.errors() or "no reason given")
        return None

    def _must(self, answer: bool, what: str) -> None:
        if not answer:
            raise InferenceError(f"TensorRT does not {what}: {self._trt.errors() or 'no reason given'}")
