"""One worker on a device: a context on a profile of its own, a stream, a set of buffers, at most one recorded graph.

Owns the order of the calls, and checks every answer. Serves one run at a time, in any thread.
"""

from __future__ import annotations

import logging
import math
import statistics
from contextlib import ExitStack
from typing import Any

import numpy as np

from facefleet.backends.tensorrt.binding import Binding
from facefleet.backends.tensorrt.build import Shape
from facefleet.backends.tensorrt.cuda import Cuda
from facefleet.backends.tensorrt.engine import Engine
from facefleet.backends.timing import COMPUTE, HOST, note_rows, part
from facefleet.errors import BackendError, InferenceError
from facefleet.types import F32Array, U8Array

_log = logging.getLogger(__name__)


class Slot:
    """A worker on one profile of an engine with one uint8 (n, h, w, 3) input and float32 outputs.

    A captured graph is bound to the shapes of its context and must not run once they have changed. So there is one,
    of the present shape: captured at the second run in a row of that shape, given up when another one comes.

    Args:
        trt: TensorRT.
        engine: The network.
        cuda: The device.
        profile: Number of a profile that no other slot has.

    Raises:
        BackendError: TensorRT refuses, or an output's size depends on what is in the pictures.
        OutOfMemoryError: Buffers for the largest shape do not fit.
    """

    def __init__(self, trt: Binding, engine: Engine, cuda: Cuda, profile: int) -> None:
        self._trt, self._cuda, self._engine = trt, cuda, engine
        self._least, _, self._most = engine.inputs[0].profiles[profile]
        self._input = engine.inputs[0].name
        self._shape: Shape = ()
        self._runs, self._recordable = 0, True
        self._graph: Any = None
        self._profiler: Any = None  # TensorRT holds no reference to it
        with ExitStack() as held:
            self._stream = cuda.stream()
            held.callback(cuda.destroy, self._stream)
            self._context = engine.handle.create_execution_context()
            if self._context is None:
                raise BackendError(f"no execution context: {trt.errors()}", hint="the device may have no memory left")
            self._must(self._context.set_optimization_profile_async(profile, int(self._stream)), "set the profile")
            cuda.synchronize(self._stream)
            self._take(self._most)
            self._address, self._host = self._buffer(held, self._input, np.dtype(np.uint8))
            self._outputs = {each.name: self._buffer(held, each.name, np.dtype(np.float32)) for each in engine.outputs}
            self._held = held.pop_all()

    @property
    def max_batch(self) -> int:
        """Largest batch of one run."""
        return self._most[0]

    def run(self, pictures: U8Array) -> tuple[F32Array, ...]:
        """Run at most `max_batch` pictures; fewer than the profile's least are padded.

        Args:
            pictures: (n, h, w, 3) uint8.

        Returns:
            The outputs, n rows each, owned by the caller.

        Raises:
            InferenceError: A size is outside of the profile, or TensorRT or the device refuses.
        """
        sizes = (pictures.shape[1], pictures.shape[2])
        if not all(
            low <= size <= high for low, size, high in zip(self._least[1:], sizes, self._most[1:], strict=False)
        ):
            raise InferenceError(
                f"pictures of {sizes[0]} x {sizes[1]} are outside of the profile",
                hint=f"it was built for {self._least[1:3]} to {self._most[1:3]} pixels; build it for these sizes",
            )
        self._cuda.activate()
        self._take((max(len(pictures), self._least[0]), *pictures.shape[1:]))
        note_rows(self._shape[0])
        with part(HOST):
            view = self._host[: math.prod(self._shape)].reshape(self._shape)
            view[: len(pictures)] = pictures
            view[len(pictures) :] = 0
        with part(COMPUTE):  # copies included: they are queued, and end with it
            self._cuda.copy_in(self._address, view.ctypes.data, view.nbytes, self._stream)
            self._execute()
            results = []
            for name, (address, host) in self._outputs.items():
                shape = self._shape_of(name)
                rows = host[: math.prod(shape)].reshape(shape)
                self._cuda.copy_out(rows.ctypes.data, address, rows.nbytes, self._stream)
                results.append(rows)
            self._cuda.synchronize(self._stream)
        with part(HOST):
            return tuple(rows[: len(pictures)].copy() for rows in results)

    def layer_milliseconds(self, pictures: U8Array, runs: int = 6) -> dict[str, float]:
        """Median time of every layer, by TensorRT's names, which say what it fused.

        The context has a profiler from then on, with which nothing can be recorded: for measuring only.
        """
        times: dict[str, list[float]] = {}
        base = self._trt.module.IProfiler

        class Profiler(base):  # type: ignore[misc,valid-type]  # the binding has no types
            def __init__(self) -> None:
                base.__init__(self)

            def report_layer_time(self, layer_name: str, ms: float) -> None:
                times.setdefault(layer_name, []).append(ms)

        self._forget_graph()
        self._recordable = False
        self._context.profiler = self._profiler = Profiler()
        for _ in range(runs):
            self.run(pictures)
        return {name: statistics.median(each[1:] or each) for name, each in times.items()}

    def close(self) -> None:
        """Give everything back, also where a part of it fails. No run may be in progress."""
        with self._held:
            self._cuda.activate()
            self._cuda.synchronize(self._stream)
            self._forget_graph()
            self._context = None

    def _take(self, shape: Shape) -> None:
        """Make `shape` the present one."""
        if shape == self._shape:
            return
        self._forget_graph()
        self._shape, self._runs = (), 0
        self._must(self._context.set_input_shape(self._input, shape), f"take the shape {shape}")
        try:
            missing = list(self._context.infer_shapes())
        except RuntimeError as error:
            raise InferenceError(f"TensorRT has no shapes for {shape}: {error}") from error
        if missing:
            raise InferenceError(f"TensorRT has no shapes for {shape}: those of {', '.join(missing)} are not known")
        self._shape = shape

    def _buffer(self, held: ExitStack, name: str, dtype: np.dtype[Any]) -> tuple[int, Any]:
        """Memory for a tensor at its largest, on the device and on the host."""
        shape = self._shape_of(name)
        if min(shape, default=1) < 0:
            raise BackendError(
                f"the shape {shape} of {name} depends on what is in the pictures", hint="export it fixed"
            )
        host = np.empty(math.prod(shape), dtype)
        address = self._cuda.alloc(host.nbytes)
        held.callback(self._cuda.free, address)
        self._must(self._context.set_tensor_address(name, address), f"take the address of {name}")
        return address, host

    def _shape_of(self, name: str) -> Shape:
        return tuple(int(size) for size in self._context.get_tensor_shape(name))

    def _execute(self) -> None:
        # The first run of a shape settles what the context does lazily; a capture must not have to.
        self._runs += 1
        if self._graph is None and self._recordable and self._runs > 1:
            self._graph = self._recorded()
            self._recordable = self._graph is not None
        if self._graph is not None:
            self._cuda.launch(self._graph, self._stream)
        else:
            self._must(self._context.execute_async_v3(int(self._stream)), "execute")

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
        _log.warning("no CUDA graph: %s", self._trt.errors() or "no reason given")
        return None

    def _forget_graph(self) -> None:
        graph, self._graph = self._graph, None
        if graph is not None:
            self._cuda.destroy_graph(graph)

    def _must(self, answer: bool, what: str) -> None:
        if not answer:
            raise InferenceError(f"TensorRT does not {what}: {self._trt.errors() or 'no reason given'}")
