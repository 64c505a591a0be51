"""Plans on a device: as many slots as instances, each with contexts, a stream and buffers of its own.

Owns the choice of the plan, what it must look like, and the slots. May be called from many threads; a call waits for a
free slot.
"""

from __future__ import annotations

import queue
import tempfile
from contextlib import ExitStack
from pathlib import Path

from facefleet.backends.base import Runner
from facefleet.backends.pictures import with_picture_input
from facefleet.backends.tensorrt.binding import Binding, load_binding
from facefleet.backends.tensorrt.build import TensorRtOptions, build_plan
from facefleet.backends.tensorrt.cuda import Cuda, CudaRuntime
from facefleet.backends.tensorrt.engine import Engine, load_engine
from facefleet.backends.tensorrt.slot import Slot
from facefleet.errors import BackendError, BackendUnavailableError
from facefleet.types import F32Array, U8Array

_PICTURES, _PLAN = "pictures", "network.plan"


class TensorRtRunner(Runner):
    """A plan whose input is ``pictures``, (n, h, w, 3) uint8; see `Runner`.

    The plan is read from `RunnerOptions.engine`, or built when it is opened, with all profiles in it.
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
        kind, _, number = self.options.device.partition(":")
        if kind != "cuda":
            raise BackendUnavailableError(
                f"backend tensorrt runs on CUDA devices, not on {self.options.device!r}", hint="use device=cuda"
            )
        trt = self.binding or load_binding()
        cuda = self.cuda or CudaRuntime(int(number or 0))
        self._plan = self._read_or_build(trt)
        engine = load_engine(self._plan, trt)
        self._check(engine)
        self._names = tuple(output.name for output in engine.outputs)
        with ExitStack() as held:
            slots = []
            for _ in range(self.options.instances):
                slots.append(Slot(trt, engine, cuda, recorded=self.options.cuda_graphs))
                held.callback(slots[-1].close)
                slots[-1].warm()
            self._held = held.pop_all()
        self._slots: queue.SimpleQueue[Slot] = queue.SimpleQueue()
        for slot in slots:
            self._slots.put(slot)

    def _check(self, engine: Engine) -> None:
        """Whether it is a network of pictures."""
        inputs = [(each.name, each.dtype, len(each.shape), each.shape[-1:]) for each in engine.inputs]
        if inputs != [(_PICTURES, "uint8", 4, (3,))]:
            found = ", ".join(f"{each.name} {each.dtype} {each.shape}" for each in engine.inputs)
            raise BackendError(
                f"{self.model.name} reads {found}, not {_PICTURES} uint8 (n, h, w, 3)", hint="build it again"
            )
        if wrong := [f"{each.name} {each.dtype}" for each in engine.outputs if each.dtype != "float32"]:
            raise BackendError(
                f"{self.model.name} answers in {', '.join(wrong)}",
                hint="outputs must be float32: cast them in the graph",
            )

    def _read_or_build(self, trt: Binding) -> bytes:
        if self.options.engine is not None:
            try:
                return (self.options.engine / _PLAN).read_bytes()
            except OSError as error:
                raise BackendError(f"no plan in {self.options.engine}: {error}", hint="build it again") from error
        if not self.options.profiles:
            raise BackendError("TensorRT builds for a profile and none is given", hint="use `facefleet build`")
        with tempfile.TemporaryDirectory(prefix="facefleet-") as folder:
            graph = Path(folder) / self.model.name
            graph.write_bytes(with_picture_input(self.model, self.contract))
            options = TensorRtOptions(
                profiles=tuple({_PICTURES: shapes} for shapes in self.options.profiles),
                pools=self.options.pools,
                hardware_compatible=self.options.hardware_compatible,
            )
            return build_plan(graph, options, trt)

    def _save_impl(self, folder: Path) -> None:
        (folder / _PLAN).write_bytes(self._plan)

    def _close_impl(self) -> None:
        del self._slots, self._plan
        self._held.close()

    def layer_milliseconds(self, picture: U8Array) -> dict[str, float]:
        """See `Runner`."""
        slot = self._slots.get()
        try:
            return slot.layer_milliseconds(picture)
        finally:
            self._slots.put(slot)

    def _run_impl(self, pictures: U8Array) -> tuple[F32Array, ...]:
        slot = self._slots.get()
        try:
            return slot.run(pictures)
        finally:
            self._slots.put(slot)
