"""A TensorRT and a CUDA that record what is asked of them and enforce the rules of their documentation.

Broken rules raise `BrokenRuleError`, so that a test fails even where the code under test would carry on.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np

from facefleet.backends.tensorrt.binding import Binding


class BrokenRuleError(AssertionError):
    """The API was used in a way that its documentation forbids."""


@dataclass
class FakeGraph:
    """Work that was recorded, with the context that recorded it and that context's state then."""

    work: list
    context: FakeContext | None = None
    state: int = 0
    alive: bool = True

    def check(self):
        if not self.alive:
            raise BrokenRuleError("a graph was destroyed")
        if self.context.state != self.state:
            raise BrokenRuleError("a graph whose context was changed after it was captured")


@dataclass
class FakeCuda:
    """Device memory as numpy arrays; work runs at once, except while it is recorded."""

    memory: dict[int, np.ndarray] = field(default_factory=dict)
    streams: set[int] = field(default_factory=set)
    recording: dict[int, FakeGraph] = field(default_factory=dict)
    graphs: list[FakeGraph] = field(default_factory=list)
    launched: int = 0
    allocations: int = 0
    made: int = 0
    limit: int = 1 << 40
    recordable: bool = True
    users: dict[int, int] = field(default_factory=dict)
    thread: threading.local = field(default_factory=threading.local)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def empty(self):
        """Whether everything was given back."""
        return not self.memory and not self.streams and not any(graph.alive for graph in self.graphs)

    def activate(self):
        self.thread.active = True

    def alloc(self, size):
        from facefleet.errors import OutOfMemoryError

        if sum(each.nbytes for each in self.memory.values()) + size > self.limit:
            raise OutOfMemoryError("the device has no memory left")
        self.allocations += 1
        address = 1024 + 10_240_000 * self.allocations
        self.memory[address] = np.zeros(size, np.uint8)
        return address

    def free(self, address):
        if address not in self.memory:
            raise BrokenRuleError(f"{address} is freed twice or was never allocated")
        del self.memory[address]

    def stream(self):
        with self.lock:
            self.made += 1
            self.streams.add(self.made)
            return self.made

    def destroy(self, stream):
        self.streams.remove(stream)

    def _at(self, address, size):
        if address not in self.memory or self.memory[address].nbytes < size:
            raise BrokenRuleError(f"{size} bytes at {address} were not allocated")
        return self.memory[address]

    def copy_in(self, address, source, size, stream):
        self._check(stream, copies=True)
        self._at(address, size)[:size] = np.frombuffer((ctypes.c_uint8 * size).from_address(source), np.uint8)

    def copy_out(self, target, address, size, stream):
        self._check(stream, copies=True)
        ctypes.memmove(target, self._at(address, size).ctypes.data, size)

    def synchronize(self, stream):
        self._check(stream)
        if stream in self.recording:
            raise BrokenRuleError("a stream must not be waited for while it is recorded")

    def begin_capture(self, stream):
        self._check(stream)
        if stream in self.recording:
            raise BrokenRuleError("a stream that is already being recorded")
        self.recording[stream] = FakeGraph([])

    def end_capture(self, stream):
        graph = self.recording.pop(stream)
        if not self.recordable:
            return None
        self.graphs.append(graph)
        return graph

    def destroy_graph(self, graph):
        if not graph.alive:
            raise BrokenRuleError("a graph is destroyed twice")
        graph.alive = False

    def launch(self, graph, stream):
        self._check(stream)
        graph.check()
        self.launched += 1
        for work in graph.work:
            work()

    def run(self, stream, context, work):
        self._check(stream)
        if stream not in self.recording:
            work()
            return
        if not context.settled:
            raise BrokenRuleError("captured before the context has run once with this shape")
        graph = self.recording[stream]
        graph.context, graph.state = context, context.state
        graph.work.append(work)

    def _check(self, stream, *, copies=False):
        if not getattr(self.thread, "active", False):
            raise BrokenRuleError("the device of this thread was not chosen")
        if stream not in self.streams:
            raise BrokenRuleError("a stream that was destroyed, or none")
        if copies and stream in self.recording:
            raise BrokenRuleError("a copy became part of a recording")


class FakeEngine:
    """The network: sums of the channels of each picture, and its first pixel.

    Args:
        cuda: The device.
        profiles: (min, opt, max) shapes of the pictures.
        refuse: The call that answers no.
        reads: Type and last dimension of the input.
        answers: Type of the outputs.
        missing: What `infer_shapes` says.
    """

    def __init__(self, cuda, profiles, refuse=None, *, reads=("UINT8", 3), answers="FLOAT", missing=()):
        self.cuda, self.profiles, self.refuse = cuda, profiles, refuse
        self.reads, self.answers, self.missing = reads, answers, missing
        self.num_optimization_profiles = len(profiles)
        self.num_io_tensors = 3
        self.contexts = []
        self.strategies = []
        self.rtx_graphs = []

    def get_tensor_name(self, index):
        return ("pictures", "sums", "pixels")[index]

    def get_tensor_mode(self, name):
        return "in" if name == "pictures" else "out"

    def get_tensor_dtype(self, name):
        return SimpleNamespace(name=self.reads[0] if name == "pictures" else self.answers)

    def get_tensor_shape(self, name):
        return (-1, -1, -1, self.reads[1]) if name == "pictures" else (-1, 3)

    def get_tensor_profile_shape(self, name, profile):
        assert name == "pictures"
        return self.profiles[profile]

    def get_device_memory_size_for_profile_v2(self, profile):
        return 512 * (profile + 1)

    def create_runtime_config(self):
        return FakeRuntimeConfig()

    def create_execution_context(self, how):
        if self.refuse == "context":
            return None
        if isinstance(how, FakeRuntimeConfig):
            self.rtx_graphs.append(how.cuda_graph_strategy)
            how = how.strategy
        self.strategies.append(how)
        self.contexts.append(FakeContext(self))
        return self.contexts[-1]


class FakeRuntimeConfig:
    """How a context of TensorRT-RTX is made."""

    strategy, cuda_graph_strategy = "static", "disabled"

    def set_execution_context_allocation_strategy(self, strategy):
        self.strategy = strategy


class FakeContext:
    def __init__(self, engine):
        self.engine, self.profile, self.shape = engine, None, None
        self.addresses: dict[str, int] = {}
        self.memory: tuple[int, int] | None = None
        self.state = 0  # counts what was changed: a graph is bound to it
        self.settled = False
        self.profiler = None

    def _changed(self):
        self.state += 1
        self.settled = False

    def set_device_memory(self, address, size):
        if self.engine.cuda.memory.get(address, np.zeros(0)).nbytes < size or address % 256:
            raise BrokenRuleError("activation memory that was not allocated")
        self.memory = address, size
        self._changed()

    def set_optimization_profile_async(self, profile, stream):
        self.engine.cuda._check(stream)
        self.profile = profile
        self._changed()
        return self.engine.refuse != "profile"

    def set_input_shape(self, name, shape):
        if self.profile is None:
            raise BrokenRuleError("a shape before a profile")
        low, _, high = self.engine.profiles[self.profile]
        inside = all(a <= size <= b for a, size, b in zip(low, shape, high, strict=True))
        if inside:
            self.shape = tuple(shape)
            self._changed()
        return inside and self.engine.refuse != "shape"

    def infer_shapes(self):
        if self.engine.refuse == "infer":
            raise RuntimeError("shapes contradict each other")
        return list(self.engine.missing)

    def get_tensor_shape(self, name):
        if self.shape is None:
            raise BrokenRuleError("an output has no shape before the input has one")
        if name == "pictures":
            return self.shape
        return (-1, 3) if self.engine.refuse == "size" else (self.shape[0], 3)

    def set_tensor_address(self, name, address):
        if address not in self.engine.cuda.memory:
            raise BrokenRuleError("the address was not allocated")
        self.addresses[name] = address
        self._changed()
        return self.engine.refuse != "address"

    def execute_async_v3(self, stream):
        if missing := {"pictures", "sums", "pixels"} - self.addresses.keys():
            raise BrokenRuleError(f"executed before {missing} have addresses")
        if self.memory is None:
            raise BrokenRuleError("a context without memory of its own, and none was given to it")
        if self.memory[1] < self.engine.get_device_memory_size_for_profile_v2(self.profile):
            raise BrokenRuleError("less activation memory than the profile needs")
        recorded = stream in self.engine.cuda.recording
        if self.profiler is not None:
            if recorded:
                raise BrokenRuleError("recorded with a profiler")
            for number, name in enumerate(("conv1 + relu1", "gemm")):
                self.profiler.report_layer_time(name, 0.25 * (number + 1))
        if self.engine.refuse == "execute" or (self.engine.refuse == "recording" and recorded):
            return False
        shape, addresses, memory = self.shape, dict(self.addresses), self.engine.cuda.memory
        activations, users = self.memory[0], self.engine.cuda.users

        def work():
            if activations not in memory:
                raise BrokenRuleError("activation memory was freed")
            if users.setdefault(activations, stream) != stream:
                raise BrokenRuleError("activation memory is used in two streams")
            if freed := [name for name, address in addresses.items() if address not in memory]:
                raise BrokenRuleError(f"memory of {freed} was freed")
            count = int(np.prod(shape))
            pictures = memory[addresses["pictures"]][:count].reshape(shape).astype(np.float32)
            for name, value in (("sums", pictures.sum((1, 2))), ("pixels", pictures[:, 0, 0])):
                flat = np.ascontiguousarray(value, np.float32).view(np.uint8).ravel()
                memory[addresses[name]][: flat.size] = flat

        self.engine.cuda.run(stream, self, work)
        self.settled = True
        return True


def fake_binding(engine, *, rtx=False) -> Binding:
    """A binding whose runtime gives `engine`, whatever the plan."""
    logger = SimpleNamespace(kept=deque())

    def deserialize(plan):
        if plan == b"plan":
            logger.kept.append("kernel is missing")
            return engine
        return None

    module = SimpleNamespace(
        IProfiler=object,
        TensorIOMode=SimpleNamespace(INPUT="in", OUTPUT="out"),
        ExecutionContextAllocationStrategy=SimpleNamespace(STATIC="static", USER_MANAGED="user"),
        CudaGraphStrategy=SimpleNamespace(DISABLED="disabled", WHOLE_GRAPH_CAPTURE="whole"),
        Runtime=lambda logger: SimpleNamespace(deserialize_cuda_engine=deserialize),
    )
    return Binding(module, rtx, "0.fake", logger)
