"""A TensorRT and a CUDA that record what is asked of them and enforce the rules of their documentation.

Broken rules raise `BrokenRuleError`, so that a test fails even where the code under test would carry on.
"""

from __future__ import annotations

import ctypes
from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np

from facefleet.backends.tensorrt.binding import Binding


class BrokenRuleError(AssertionError):
    """The API was used in a way that its documentation forbids."""


@dataclass
class FakeCuda:
    """Device memory as numpy arrays; work runs at once, except while it is recorded."""

    memory: dict[int, np.ndarray] = field(default_factory=dict)
    streams: set[int] = field(default_factory=set)
    recording: dict[int, list] = field(default_factory=dict)
    launched: int = 0
    allocations: int = 0
    limit: int = 1 << 40

    def alloc(self, size):
        from facefleet.errors import OutOfMemoryError

        if sum(each.nbytes for each in self.memory.values()) + size > self.limit:
            raise OutOfMemoryError("the device has no memory left")
        self.allocations += 1
        address = 1000 + 10_000_000 * self.allocations
        self.memory[address] = np.zeros(size, np.uint8)
        return address

    def free(self, address):
        if address not in self.memory:
            raise BrokenRuleError(f"{address} is freed twice or was never allocated")
        del self.memory[address]

    def stream(self):
        self.streams.add(len(self.streams) + 1)
        return len(self.streams)

    def destroy(self, stream):
        self.streams.remove(stream)

    def _at(self, address, size):
        if address not in self.memory or self.memory[address].nbytes < size:
            raise BrokenRuleError(f"{size} bytes at {address} were not allocated")
        return self.memory[address]

    def copy_in(self, address, source, size, stream):
        self._check(stream)
        self._at(address, size)[:size] = np.frombuffer((ctypes.c_uint8 * size).from_address(source), np.uint8)

    def copy_out(self, target, address, size, stream):
        self._check(stream)
        ctypes.memmove(target, self._at(address, size).ctypes.data, size)

    def synchronize(self, stream):
        self._check(stream)
        if stream in self.recording:
            raise BrokenRuleError("a stream must not be waited for while it is recorded")

    def begin_capture(self, stream):
        self._check(stream)
        self.recording[stream] = []

    def end_capture(self, stream):
        return self.recording.pop(stream)

    def launch(self, graph, stream):
        self._check(stream)
        self.launched += 1
        for work in graph:
            work()

    def run(self, stream, work):
        self._check(stream)
        if stream in self.recording:
            self.recording[stream].append(work)
        else:
            work()

    def _check(self, stream):
        if stream not in self.streams:
            raise BrokenRuleError("a stream that was destroyed, or none")


class FakeEngine:
    """The network: sums of the channels of each picture, and its first pixel."""

    def __init__(self, cuda, profiles, refuse=None):
        self.cuda, self.profiles, self.refuse = cuda, profiles, refuse
        self.num_optimization_profiles = len(profiles)
        self.num_io_tensors = 3
        self.taken: set[int] = set()
        self.contexts = 0

    def get_tensor_name(self, index):
        return ("pictures", "sums", "pixels")[index]

    def get_tensor_mode(self, name):
        return "in" if name == "pictures" else "out"

    def get_tensor_profile_shape(self, name, profile):
        assert name == "pictures"
        return self.profiles[profile]

    def create_execution_context(self):
        if self.refuse == "context":
            return None
        self.contexts += 1
        return FakeContext(self)


class FakeContext:
    def __init__(self, engine):
        self.engine, self.profile, self.shape = engine, None, None
        self.addresses: dict[str, int] = {}

    def set_optimization_profile_async(self, profile, stream):
        self.engine.cuda._check(stream)
        if profile in self.engine.taken:
            raise BrokenRuleError(f"two contexts on profile {profile}")
        self.engine.taken.add(profile)
        self.profile = profile
        return self.engine.refuse != "profile"

    def set_input_shape(self, name, shape):
        if self.profile is None:
            raise BrokenRuleError("a shape before a profile")
        low, _, high = self.engine.profiles[self.profile]
        inside = all(a <= size <= b for a, size, b in zip(low, shape, high, strict=True))
        if inside:
            self.shape = tuple(shape)
        return inside and self.engine.refuse != "shape"

    def infer_shapes(self):
        return []

    def get_tensor_shape(self, name):
        if self.shape is None:
            raise BrokenRuleError("an output has no shape before the input has one")
        return self.shape if name == "pictures" else (self.shape[0], 3)

    def set_tensor_address(self, name, address):
        if address not in self.engine.cuda.memory:
            raise BrokenRuleError("the address was not allocated")
        self.addresses[name] = address
        return True

    def execute_async_v3(self, stream):
        if missing := {"pictures", "sums", "pixels"} - self.addresses.keys():
            raise BrokenRuleError(f"executed before {missing} have addresses")
        if self.engine.refuse == "execute":
            return False
        shape, addresses, memory = self.shape, dict(self.addresses), self.engine.cuda.memory

        def work():
            count = int(np.prod(shape))
            pictures = memory[addresses["pictures"]][:count].reshape(shape).astype(np.float32)
            for name, value in (("sums", pictures.sum((1, 2))), ("pixels", pictures[:, 0, 0])):
                flat = np.ascontiguousarray(value, np.float32).view(np.uint8).ravel()
                memory[addresses[name]][: flat.size] = flat

        self.engine.cuda.run(stream, work)
        return True


def fake_binding(engine) -> Binding:
    """A binding whose runtime gives `engine`, whatever the plan."""
    logger = SimpleNamespace(kept=deque(["kernel is missing"]))
    module = SimpleNamespace(
        TensorIOMode=SimpleNamespace(INPUT="in", OUTPUT="out"),
        Runtime=lambda logger: SimpleNamespace(
            deserialize_cuda_engine=lambda plan: engine if plan == b"plan" else None
        ),
    )
    return Binding(module, False, "0.fake", logger)
