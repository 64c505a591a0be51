"""One worker on a device: a stream, a set of buffers, and a context with a recorded graph for every shape it runs.

Owns the order of the calls, and checks every answer. Serves one run at a time, in any thread.
"""

from __future__ import annotations

import logging
import math
import statistics
from collections import OrderedDict
from contextlib import ExitStack
from typing import Any

import numpy as np

from facefleet.backends.buckets import buckets_within, cut
from facefleet.backends.tensorrt.binding import Binding
from facefleet.backends.tensorrt.build import Shape, Shapes
from facefleet.backends.tensorrt.context import BoundContext
from facefleet.backends.tensorrt.cuda import Cuda
from facefleet.backends.tensorrt.engine import Engine
from facefleet.backends.timing import COMPUTE, HOST, note_rows, part
from facefleet.errors import InferenceError
from facefleet.types import F32Array, U8Array

_log = logging.getLogger(__name__)
_SHAPES = 32
"""Contexts that are kept; the one that was not used for longest goes first."""


class Slot:
    """A worker on an engine with one uint8 (n, h, w, 3) input and float32 outputs.

    Batches are padded up to the buckets of the profile that takes them, so that few shapes are ever run. Each has a
    context of its own, whose graph is captured once and stays good, for nothing of that context changes any more. The
    contexts share one block of activation memory, which is safe because they run one after the other in one stream.

    Args:
        trt: TensorRT.
        engine: The network.
        cuda: The device.
        recorded: Whether graphs are captured.

    Raises:
        BackendError: TensorRT refuses, or an output's size depends on what is in the pictures.
        OutOfMemoryError: Buffers for the largest shape do not fit.
    """

    def __init__(self, trt: Binding, engine: Engine, cuda: Cuda, *, recorded: bool = True) -> None:
        self._trt, self._cuda, self._engine = trt, cuda, engine
        self._recorded = recorded
        self._profiles: tuple[Shapes, ...] = engine.inputs[0].profiles
        self._buckets = [buckets_within([(least[0], most[0])]) for least, _, most in self._profiles]
        self._contexts: OrderedDict[Shape, BoundContext] = OrderedDict()
        with ExitStack() as held:
            self._stream = cuda.stream()
            held.callback(cuda.destroy, self._stream)
            # The largest of all profiles: a context may have any of them.
            sizes = [int(engine.handle.get_device_memory_size_for_profile_v2(i)) for i in range(len(self._profiles))]
            self._activations = (cuda.alloc(max(1, *sizes)), max(1, *sizes))
            held.callback(cuda.free, self._activations[0])
            self._addresses: dict[str, int] = {}
            self._host: dict[str, Any] = {}
            self._allocate(held)
            held.callback(self._drop_all)
            self._held = held.pop_all()

    def warm(self) -> None:
        """Make every bucket of every profile ready, at the size it is tuned for; the largest first."""
        for number, (_, usual, _) in enumerate(self._profiles):
            for bucket in reversed(self._buckets[number]):
                self.run(np.zeros((bucket, *usual[1:]), np.uint8))

    def run(self, pictures: U8Array) -> tuple[F32Array, ...]:
        """Run pictures of one size, as many batches as it takes.

        Args:
            pictures: (n, h, w, 3) uint8.

        Returns:
            The outputs, n rows each, owned by the caller.

        Raises:
            InferenceError: A size is outside of every profile, or TensorRT or the device refuses.
        """
        self._cuda.activate()
        height, width = pictures.shape[1:3]
        usable = self._taking(height, width)
        buckets = sorted({bucket for number in usable for bucket in self._buckets[number]})
        parts, start = [], 0
        for count, bucket in cut(len(pictures), buckets):
            context = self._context((bucket, height, width, 3), usable)
            parts.append(self._run_batch(context, pictures[start : start + count]))
            start += count
        return parts[0] if len(parts) == 1 else tuple(np.concatenate(each) for each in zip(*parts, strict=True))

    def layer_milliseconds(self, pictures: U8Array, runs: int = 6) -> dict[str, float]:
        """Median time of every layer, by TensorRT's names, which say what it fused; in a context made for it."""
        times: dict[str, list[float]] = {}
        base = self._trt.module.IProfiler

        class Profiler(base):  # type: ignore[misc,valid-type]  # the binding has no types
            def __init__(self) -> None:
                base.__init__(self)

            def report_layer_time(self, layer_name: str, ms: float) -> None:
                times.setdefault(layer_name, []).append(ms)

        self._cuda.activate()
        usable = self._taking(*pictures.shape[1:3])
        number = next((each for each in usable if len(pictures) in self._buckets[each]), usable[0])
        shape = (max(len(pictures), self._buckets[number][0]), *pictures.shape[1:])
        context = self._bound(number, shape, recorded=False)
        try:
            profiler = Profiler()  # TensorRT holds no reference to it
            context.profile(profiler)
            for _ in range(runs):
                self._run_batch(context, pictures)
        finally:
            context.close()
        return {name: statistics.median(each[1:] or each) for name, each in times.items()}

    def close(self) -> None:
        """Give everything back, also where a part of it fails. No run may be in progress."""
        with self._held:
            self._cuda.activate()
            self._cuda.synchronize(self._stream)

    def _taking(self, height: int, width: int) -> list[int]:
        """Profiles that take pictures of this size."""
        found = [
            number
            for number, (least, _, most) in enumerate(self._profiles)
            if least[1] <= height <= most[1] and least[2] <= width <= most[2]
        ]
        if not found:
            spans = " or ".join(
                f"height {least[1]} to {most[1]} and width {least[2]} to {most[2]}" for least, _, most in self._profiles
            )
            raise InferenceError(
                f"pictures of {height} x {width} are outside of every profile",
                hint=f"it was built for {spans} pixels; build it for these sizes",
            )
        return found

    def _context(self, shape: Shape, usable: list[int]) -> BoundContext:
        """The context of a shape, on the profile that is tuned for the nearest batch."""
        if shape in self._contexts:
            self._contexts.move_to_end(shape)
            return self._contexts[shape]
        taking = [number for number in usable if shape[0] in self._buckets[number]]
        number = min(taking, key=lambda each: abs(math.log(self._profiles[each][1][0] / shape[0])))
        made = self._bound(number, shape, recorded=self._recorded)
        self._contexts[shape] = made
        if len(self._contexts) > _SHAPES:
            self._contexts.popitem(last=False)[1].close()
        return made

    def _bound(self, number: int, shape: Shape, *, recorded: bool) -> BoundContext:
        return BoundContext(
            self._trt,
            self._engine,
            self._cuda,
            self._stream,
            number,
            shape,
            self._activations,
            self._addresses,
            recorded=recorded,
        )

    def _allocate(self, held: ExitStack) -> None:
        """Memory for every tensor at its largest, on the device and on the host."""
        needed: dict[str, int] = {}
        for number, (_, _, most) in enumerate(self._profiles):
            probe = BoundContext(
                self._trt, self._engine, self._cuda, self._stream, number, most, self._activations, {}, recorded=False
            )
            for tensor in (*self._engine.inputs, *self._engine.outputs):
                size = math.prod(probe.shape_of(tensor.name))
                needed[tensor.name] = max(needed.get(tensor.name, 0), size)
            probe.close()
        for tensor in (*self._engine.inputs, *self._engine.outputs):
            kind = np.uint8 if tensor in self._engine.inputs else np.float32
            self._host[tensor.name] = np.empty(needed[tensor.name], kind)
            self._addresses[tensor.name] = self._cuda.alloc(self._host[tensor.name].nbytes)
            held.callback(self._cuda.free, self._addresses[tensor.name])

    def _run_batch(self, context: BoundContext, pictures: U8Array) -> tuple[F32Array, ...]:
        """Run at most as many pictures as the shape of the context has; fewer are padded."""
        note_rows(context.shape[0])
        name = self._engine.inputs[0].name
        with part(HOST):
            view = self._host[name][: math.prod(context.shape)].reshape(context.shape)
            view[: len(pictures)] = pictures
            view[len(pictures) :] = 0
        with part(COMPUTE):  # copies included: they are queued, and end with it
            self._cuda.copy_in(self._addresses[name], view.ctypes.data, view.nbytes, self._stream)
            context.execute()
            results = []
            for output in self._engine.outputs:
                shape = context.shape_of(output.name)
                rows = self._host[output.name][: math.prod(shape)].reshape(shape)
                self._cuda.copy_out(rows.ctypes.data, self._addresses[output.name], rows.nbytes, self._stream)
                results.append(rows)
            self._cuda.synchronize(self._stream)
        with part(HOST):
            return tuple(rows[: len(pictures)].copy() for rows in results)

    def _drop_all(self) -> None:
        while self._contexts:
            self._contexts.popitem()[1].close()
