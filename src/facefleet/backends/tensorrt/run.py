"""Plans on a device: one context, one stream and one set of buffers an instance, every answer of the API checked.

Owns the engine and the slots; a slot serves one run at a time. Batches above the profile's largest are split and
joined. A shape that is run for the second time is captured as a CUDA graph and replayed from then on.
"""

from __future__ import annotations

import queue
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from facefleet.backends.base import Runner
from facefleet.backends.pictures import with_picture_input
from facefleet.backends.tensorrt.binding import Binding, load_binding
from facefleet.backends.tensorrt.build import TensorRtOptions, build_plan
from facefleet.backends.tensorrt.cuda import Cuda, CudaRuntime
from facefleet.errors import BackendError, InferenceError
from facefleet.types import F32Array, U8Array

_PICTURES, _PLAN = "pictures", "network.plan"


class TensorRtRunner(Runner):
    """A plan whose input is ``pictures``, (n, h, w, 3) uint8; see `Runner`.

    The plan is read from `RunnerOptions.engine`, or built when it is opened, with as many profiles as instances.
    `binding` and `cuda` may be replaced for tests before it is opened.
    """

    binding: Binding | None = None
    cuda: Cuda | None = None
    _names: tuple[str, ...] = ()

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the outputs in the order of the model."""
        return self._names

    def _open_impl(self) -> None:
        trt = self.binding or load_binding()
        index = int(self.options.device.partition(":")[2] or 0)
        cuda = self.cuda or CudaRuntime(index)
        self._plan = self._read_or_build(trt)
        self._runtime = trt.module.Runtime(trt.logger)
        self._engine = self._runtime.deserialize_cuda_engine(self._plan)
        if self._engine is None:
            raise BackendError(
                f"the plan of {self.model.name} is none for TensorRT {trt.version} and this device: {trt.errors()}",
                hint="build it again on this machine with `facefleet build`",
            )
        engine, mode = self._engine, trt.module.TensorIOMode
        names = [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]
        self._names = tuple(name for name in names if engine.get_tensor_mode(name) == mode.OUTPUT)
        inputs = [name for name in names if engine.get_tensor_mode(name) == mode.INPUT]
        if inputs != [_PICTURES]:
            raise BackendError(f"{self.model.name} has inputs {inputs}, not {_PICTURES!r}", hint="build it again")
        profiles = engine.num_optimization_profiles
        if profiles < self.options.instances:
            raise BackendError(
                f"{self.model.name} has {profiles} profiles for {self.options.instances} instances",
                hint="contexts must not share a profile: build it with as many profiles as instances",
            )
        self._slots: queue.SimpleQueue[_Slot] = queue.SimpleQueue()
        self._all = [_Slot(trt, engine, cuda, profile, self._names) for profile in range(self.options.instances)]
        for slot in self._all:
            self._slots.put(slot)

    def _read_or_build(self, trt: Binding) -> bytes:
        if self.options.engine is not None:
            return (self.options.engine / _PLAN).read_bytes()
        if not self.options.profile:
            raise BackendError("TensorRT builds for a profile and none is given", hint="use `facefleet build`")
        with tempfile.TemporaryDirectory(prefix="facefleet-") as folder:
            graph = Path(folder) / self.model.name
            graph.write_bytes(with_picture_input(self.model, self.contract, cast_first=True))
            least, usual, most = self.options.profile
            profiles = ({_PICTURES: (least, usual, most)},) * self.options.instances
            options = TensorRtOptions(
                profiles=profiles,
                pools=self.options.pools,
                hardware_compatible=self.options.hardware_compatible,
            )
            return build_plan(graph, options, trt)

    def _save_impl(self, folder: Path) -> None:
        (folder / _PLAN).write_bytes(self._plan)

    def _close_impl(self) -> None:
        for slot in self._all:
            slot.close()
        self._all = []
        del self._engine, self._runtime

    def _run_impl(self, pictures: U8Array) -> tuple[F32Array, ...]:
        slot = self._slots.get()
        try:
            parts = [
                slot.run(pictures[start : start + slot.max_batch]) for start in range(0, len(pictures), slot.max_batch)
            ]
        finally:
            self._slots.put(slot)
        return parts[0] if len(parts) == 1 else tuple(np.concatenate(each) for each in zip(*parts, strict=True))


@dataclass(slots=True)
class _Output:
    """An output's memory on the device and on the host."""

    address: int
    host: F32Array


class _Slot:
    """A context on a profile of its own, its stream and its buffers."""

    def __init__(self, trt: Binding, engine: Any, cuda: Cuda, profile: int, names: tuple[str, ...]) -> None:  # noqa: ANN401
        self._trt, self._cuda, self._names = trt, cuda, names
        self._stream = cuda.stream()
        self._context = engine.create_execution_context()
        if self._context is None:
            raise BackendError(f"no execution context: {trt.errors()}", hint="the device may have no memory left")
        self._must(self._context.set_optimization_profile_async(profile, int(self._stream)), "set the profile")
        cuda.synchronize(self._stream)
        least, _, most = engine.get_tensor_profile_shape(_PICTURES, profile)
        self.min_batch, self.max_batch = int(least[0]), int(most[0])
        self._sides = tuple(zip(tuple(least)[1:3], tuple(most)[1:3], strict=True))
        self._must(self._context.set_input_shape(_PICTURES, tuple(most)), "set the largest shape")
        self._input = cuda.alloc(int(np.prod(tuple(most))))
        self._host = np.empty(int(np.prod(tuple(most))), np.uint8)
        self._must(self._context.set_tensor_address(_PICTURES, self._input), "set the address of the input")
        self._outputs: dict[str, _Output] = {}
        for name in names:
            size = int(np.prod(self._shape(name)))
            self._outputs[name] = _Output(cuda.alloc(4 * size), np.empty(size, np.float32))
            self._must(
                self._context.set_tensor_address(name, self._outputs[name].address), f"set the address of {name}"
            )
        self._graphs: dict[tuple[int, ...], Any] = {}
        self._current: tuple[int, ...] = ()

    def run(self, pictures: U8Array) -> tuple[F32Array, ...]:
        """A batch of at most `max_batch`; one below the least batch is padded."""
        count, padded = len(pictures), max(len(pictures), self.min_batch)
        for side, (low, high) in zip(pictures.shape[1:3], self._sides, strict=True):
            if not low <= side <= high:
                raise InferenceError(
                    f"pictures of {pictures.shape[1]} x {pictures.shape[2]} are outside of the profile",
                    hint=f"it was built for {self._sides}; build it for these sizes",
                )
        shape = (padded, *pictures.shape[1:])
        if shape != self._current:
            self._must(self._context.set_input_shape(_PICTURES, shape), f"take the shape {shape}")
            if missing := list(self._context.infer_shapes()):
                raise InferenceError(f"shapes of {missing} are not known")
            self._current = shape
        view = self._host[: int(np.prod(shape))].reshape(shape)
        view[:count] = pictures
        view[count:] = 0
        self._cuda.copy_in(self._input, view.ctypes.data, view.nbytes, self._stream)
        self._execute(shape)
        results = []
        for name, output in self._outputs.items():
            rows = self._shape(name)
            host = output.host[: int(np.prod(rows))].reshape(rows)
            self._cuda.copy_out(host.ctypes.data, output.address, host.nbytes, self._stream)
            results.append(host)
        self._cuda.synchronize(self._stream)
        return tuple(host[:count].copy() for host in results)

    def close(self) -> None:
        """Give everything back."""
        self._cuda.synchronize(self._stream)
        self._graphs.clear()
        del self._context
        self._cuda.free(self._input)
        for output in self._outputs.values():
            self._cuda.free(output.address)
        self._cuda.destroy(self._stream)

    def _execute(self, shape: tuple[int, ...]) -> None:
        graph = self._graphs.get(shape)
        if graph is not None:
            self._cuda.launch(graph, self._stream)
            return
        # The first run of a shape lets the context settle what it prepares lazily; only then is it recorded.
        self._must(self._context.execute_async_v3(int(self._stream)), "execute")
        self._cuda.synchronize(self._stream)
        self._cuda.begin_capture(self._stream)
        self._must(self._context.execute_async_v3(int(self._stream)), "execute while it is recorded")
        self._graphs[shape] = self._cuda.end_capture(self._stream)

    def _shape(self, name: str) -> tuple[int, ...]:
        return tuple(int(size) for size in self._context.get_tensor_shape(name))

    def _must(self, answer: bool, what: str) -> None:
        if not answer:
            raise InferenceError(f"TensorRT does not {what}: {self._trt.errors() or 'no reason given'}")
