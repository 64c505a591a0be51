"""What every backend offers: a runner that takes a batch of pictures and returns a batch of arrays.

Owns the interface and the checks on what comes back. Knows tensors only, no faces. A runner may be called from many
threads at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, TypeAlias, TypeVar

import numpy as np

from facefleet.errors import BackendError, BadOutputError, ClosedError, InternalError
from facefleet.types import F32Array, U8Array

ANY_SIZE = (-1, -1)
"""Among `RunnerOptions.warm`: the plan for sizes that have none of their own."""

T = TypeVar("T")
Outputs: TypeAlias = tuple[F32Array, ...]
Shape4: TypeAlias = tuple[int, int, int, int]
ProfileShapes: TypeAlias = tuple[Shape4, Shape4, Shape4]
"""(min, opt, max)."""


@dataclass(frozen=True, slots=True)
class InputContract:
    """How the uint8 RGB pictures that a runner is given become the network's input.

    Attributes:
        color: Channel order the network wants.
        mean: Subtracted per channel, in the network's order, from values 0..255.
        std: Divisor per channel after that.
    """

    color: Literal["rgb", "bgr"]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class RunnerOptions:
    """How to run.

    Attributes:
        device: ``cpu``.
        precision: What is really run in, never a wish.
        instances: Runs that may be in progress at a time, each on its own share of the threads.
        threads: Processor threads for all instances together.
        fp32_layers: In a lower precision, nodes of the graph (by name, or else by first output) that still run in fp32,
            with the activation behind them; for backends that take their precision from here, not from the graph.
        warm: Input sizes (height, width) in pixels that get a plan of their own when the runner is opened; other
            sizes run through a plan for any size, a few per cent slower.
        chunk: Pictures of a warm size that may be run at once, where a backend gains by it and the answers are the same
            to the last bit.
        engine: A folder that `Runner.save` wrote for the same model, contract and options: opened instead of
            compiling.
        max_batch: Largest batch that is run at once, where a backend has buckets; larger ones are split.
        profiles: For each (min, opt, max) shapes of the pictures, (n, h, w, 3), for backends that build for them.
        pools: Memory pool -> bytes, for backends that have them.
        hardware_compatible: Whether what is built runs on other devices of the kind too, where a backend has that.
        eager: Run as imported, where a backend would compile for long: for trying answers.
        whole_batches: Run every batch as one, also where a backend is faster, or the same to the last bit, picture by
            picture: for measuring. OpenVINO then has a plan for batches of `chunk` only.
        cuda_graphs: Replay recorded work, where a device can; else it is launched anew each time.
        spin_wait: Wait for a device by asking it again and again: quicker, and a processor is busy with it.
        compiling: How a network becomes kernels, where that is done here: ``tune`` tries several for each layer where
            that pays, ``fuse`` takes the first for each fused step, ``none`` runs the library's own, layer by layer.
        transfers: False: pictures are not copied to the device nor results back, and what a run returns says nothing:
            for measuring the network alone.
    """

    device: str = "cpu"
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    instances: int = 1
    threads: int = 1
    fp32_layers: frozenset[str] = frozenset()
    warm: tuple[tuple[int, int], ...] = ()
    chunk: int = 1
    engine: Path | None = None
    max_batch: int = 16
    profiles: tuple[ProfileShapes, ...] = ()
    pools: Mapping[str, int] = field(default_factory=dict)
    hardware_compatible: bool = False
    eager: bool = False
    whole_batches: bool = False
    cuda_graphs: bool = True
    spin_wait: bool = True
    compiling: Literal["tune", "fuse", "none"] = "tune"
    transfers: bool = True


class Runner(ABC):
    """One network on one device. The device is untouched until it is opened: ``with runner: ...``.

    Args:
        model: An ONNX file with a free batch dimension and one float32 NCHW input.
        contract: How pictures become its input.
        options: How to run it.
    """

    def __init__(self, model: Path, contract: InputContract, options: RunnerOptions) -> None:
        self.model = model
        self.contract = contract
        self.options = options
        self._opened = False

    @property
    @abstractmethod
    def output_names(self) -> tuple[str, ...]:
        """Names of the outputs in the order of the model; known once opened."""

    def open(self) -> None:
        """Load the network onto the device; opening twice is a bug.

        Raises:
            BackendError: The runtime or the device is missing, or refuses the network.
        """
        if self._opened:
            raise InternalError(f"{type(self).__name__} opened twice")
        self._open_impl()
        self._opened = True

    def close(self) -> None:
        """Give the device back; closing twice is harmless. No run may be in progress."""
        if self._opened:
            self._opened = False
            self._close_impl()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(self, pictures: U8Array) -> tuple[F32Array, ...]:
        """Run a batch.

        Args:
            pictures: (n, h, w, 3) uint8 RGB, n >= 1; read only during the call.

        Returns:
            One float32 array an output, first dimension n, owned by the caller.

        Raises:
            ClosedError: The runner is not open.
            InferenceError: The runtime failed.
            OutOfMemoryError: The batch did not fit.
            BadOutputError: An output has the wrong number of rows or is not finite.
        """
        outputs = self.run_unchecked(pictures)
        for name, output in zip(self.output_names, outputs, strict=True):
            _check(name, output, len(pictures))
        return outputs

    def run_unchecked(self, pictures: U8Array) -> tuple[F32Array, ...]:
        """As `run`, whatever comes back: for the parity gate, which says more exactly what is wrong with it."""
        self._require(pictures)
        return self._run_impl(np.ascontiguousarray(pictures))

    def read(
        self, pictures: U8Array, reader: Callable[[Outputs, int], T], passed_on: frozenset[str] = frozenset()
    ) -> list[T]:
        """Run a batch, and read the answer of each picture where the runtime left it, without a copy of the outputs.

        Args:
            pictures: As for `run`.
            reader: Given the outputs of some pictures and the row of one of them; they are valid during the call only.
            passed_on: Names of outputs that may be anything: what is not finite in them shows in the others.

        Returns:
            What `reader` returned for each picture.

        Raises:
            As `run`.
        """
        self._require(pictures)

        def read_checked(outputs: Outputs, rows: int) -> list[T]:
            for name, output in zip(self.output_names, outputs, strict=True):
                if name not in passed_on:
                    _check(name, output, rows)
            return [reader(outputs, row) for row in range(rows)]

        return self._read_impl(np.ascontiguousarray(pictures), read_checked)

    def layer_milliseconds(self, picture: U8Array) -> dict[str, float]:
        """Time of every layer for one (1, h, w, 3) picture, by the name of its node; empty where it is not measured."""
        del picture
        return {}

    def save(self, folder: Path) -> None:
        """Write what opening compiled into `folder`, so that `RunnerOptions.engine` opens it in a moment.

        Raises:
            BackendError: This backend has nothing to save.
        """
        if not self._opened:
            raise ClosedError("the runner is not open", hint="use it inside `with runner:`")
        self._save_impl(folder)

    def _save_impl(self, folder: Path) -> None:
        raise BackendError(f"{type(self).__name__} has no engines to save in {folder}")

    @abstractmethod
    def _open_impl(self) -> None: ...

    @abstractmethod
    def _close_impl(self) -> None: ...

    @abstractmethod
    def _run_impl(self, pictures: U8Array) -> Outputs: ...

    def _read_impl(self, pictures: U8Array, take: Callable[[Outputs, int], list[T]]) -> list[T]:
        """Give outputs and their number of rows to `take`, at once or in parts; for backends that can save copies."""
        return take(self._run_impl(pictures), len(pictures))

    def _require(self, pictures: U8Array) -> None:
        if not self._opened:
            raise ClosedError("the runner is not open", hint="use it inside `with runner:`")
        if pictures.ndim != 4 or pictures.shape[3] != 3 or pictures.dtype != np.uint8 or not len(pictures):
            raise InternalError(f"a runner takes (n, h, w, 3) uint8, got {pictures.dtype} {pictures.shape}")


def _check(name: str, output: F32Array, rows: int) -> None:
    if output.ndim < 1 or len(output) != rows:
        raise BadOutputError(
            f"output {name!r} has shape {output.shape} for a batch of {rows}",
            hint="the graph has a fixed batch and has to be converted first",
        )
    # A sum is finite unless an element is not (or it overflows, which float32 outputs of a network never should).
    if not np.isfinite(output.sum(dtype=np.float32)):
        raise BadOutputError(f"output {name!r} is not finite", hint="run with precision=fp32")
