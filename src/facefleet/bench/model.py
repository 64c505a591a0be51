"""A grid of settings for single networks, on any backend: latency, throughput, where the time goes, what is used.

Owns the grid, the order of the measurements and the threads that run batches. Every setting is measured once a round,
in another order each round, so that drift of the machine hits all alike.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from facefleet.backends import Runner, RunnerOptions, create_runner
from facefleet.backends.timing import COMPUTE, HOST, PARTS, TRANSFER_IN, TRANSFER_OUT, WAIT, Part, recording
from facefleet.bench.networks import Network
from facefleet.bench.sampler import Sampler, Use
from facefleet.bench.stats import Latencies, Repeated, distribution, latencies
from facefleet.errors import ConfigError
from facefleet.packs import Store
from facefleet.types import U8Array

Precision = Literal["fp32", "bf16", "fp16"]
_SEED = 20261201


@dataclass(frozen=True, slots=True)
class Cell:
    """One setting.

    Attributes:
        network: Its name.
        backend: What runs it.
        precision: In what.
        height: Of the input, in pixels.
        width: Of the input, in pixels.
        batch: Pictures a run.
        streams: Runs in progress at a time.
        graphs: Whether CUDA graphs are replayed.
        transfers: Whether pictures go to the device and results come back.
        spin: Whether the device is waited for by asking it again and again.
    """

    network: str
    backend: str
    precision: Precision
    height: int
    width: int
    batch: int
    streams: int
    graphs: bool = True
    transfers: bool = True
    spin: bool = True

    @property
    def key(self) -> str:
        """One line that names it; the same setting has the same key in every result."""
        extra = [
            word
            for word, on in (("no graphs", self.graphs), ("no transfers", self.transfers), ("blocking", self.spin))
            if not on
        ]
        text = (
            f"{self.network} {self.backend} {self.precision} {self.height}x{self.width} "
            f"batch {self.batch} streams {self.streams}"
        )
        return " ".join([text, *extra])


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """What is measured: every combination.

    Attributes:
        backends: Names.
        precisions: Names.
        sizes: Heights and widths in pixels; empty: each network's own.
        batches: Pictures a run.
        streams: Runs at a time.
        graphs: CUDA graphs on, off or both.
        transfers: Transfers on, off or both.
        spins: Spin waits on, off or both.
        device: ``cpu`` or ``cuda[:N]``.
        threads: Processor threads for all streams of a setting together.
        whole: Whether batches run as one; else as an engine would run them.
    """

    backends: tuple[str, ...]
    precisions: tuple[Precision, ...] = ("fp32",)
    sizes: tuple[tuple[int, int], ...] = ()
    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    streams: tuple[int, ...] = (1,)
    graphs: tuple[bool, ...] = (True,)
    transfers: tuple[bool, ...] = (True,)
    spins: tuple[bool, ...] = (True,)
    device: str = "cpu"
    threads: int = 1
    whole: bool = True

    def cells(self, networks: Sequence[Network]) -> list[Cell]:
        """Every setting; those that a backend does not have are left out.

        Raises:
            ConfigError: None is left.
        """
        found = [
            Cell(network.name, backend, precision, *size, batch, streams, *flags)
            for network in networks
            for backend, precision in itertools.product(self.backends, self.precisions)
            if backend != "onnxruntime" or precision == "fp32"
            for size in self.sizes or (network.size,)
            for batch, streams in itertools.product(self.batches, self.streams)
            for flags in itertools.product(self.graphs, self.transfers, self.spins)
            if all(flags) or (backend == "torch" and self.device.startswith("cuda"))
        ]
        if not found:
            raise ConfigError(
                "nothing to measure",
                hint="onnxruntime runs fp32 only; graphs, transfers and spin waits go off for torch on cuda only",
            )
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is measured.

    Attributes:
        rounds: Times that every setting is measured.
        seconds: Least duration of one measurement.
        iterations: Runs a stream and measurement instead of a duration; 0: the duration holds.
        warmup_s: Least time that a setting runs before its first measurement.
        profile: Whether parts of runs are told apart.
    """

    rounds: int = 3
    seconds: float = 1.0
    iterations: int = 0
    warmup_s: float = 0.3
    profile: bool = True


@dataclass(slots=True)
class Shot:
    """One measurement of one setting.

    Attributes:
        seconds: Latency of every run.
        images_per_s: All streams together.
        parts: Of every run, by stream.
        rows: Rows run, padding included; 0 where the backend does not pad.
        use: What was used.
    """

    seconds: list[float] = field(default_factory=list)
    images_per_s: float = 0.0
    parts: list[tuple[int, list[Part]]] = field(default_factory=list)
    rows: int = 0
    use: Use = field(default_factory=Use)


@dataclass(slots=True)
class CellResult:
    """A setting and all its measurements."""

    cell: Cell
    shots: list[Shot] = field(default_factory=list)

    @property
    def images_per_s(self) -> Repeated:
        """Throughput, a round each."""
        return Repeated(tuple(shot.images_per_s for shot in self.shots))

    @property
    def latency(self) -> Latencies:
        """Of the runs of all rounds."""
        return latencies(self._seconds())

    def _seconds(self) -> list[float]:
        return [each for shot in self.shots for each in shot.seconds]

    def parts_ms(self) -> dict[str, float]:
        """Mean milliseconds a run, by part; what no part accounts for is ``other``."""
        seconds = self._seconds()
        totals = dict.fromkeys(PARTS, 0.0)
        for shot in self.shots:
            for _, parts in shot.parts:
                for each in parts:
                    totals[each.name] += each.seconds
        if not any(totals.values()):
            return {}
        means = {name: 1000 * total / len(seconds) for name, total in totals.items()}
        other = 1000 * sum(seconds) / len(seconds) - sum(means.values())
        return {name: round(value, 4) for name, value in {**means, "other": max(other, 0.0)}.items()}

    def padding_waste(self) -> float:
        """Share of the rows that were run that held no picture."""
        rows = sum(shot.rows for shot in self.shots)
        return 0.0 if not rows else 1 - self.cell.batch * len(self._seconds()) / rows

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        cell = self.cell
        used = [shot.use for shot in self.shots]
        busy = [use.device_busy for use in used if use.device_busy is not None]
        held = [use.device_memory_peak_bytes for use in used if use.device_memory_peak_bytes is not None]
        return {
            "key": cell.key,
            **{name: getattr(cell, name) for name in Cell.__slots__},
            "runs": len(self._seconds()),
            "images_per_s": self.images_per_s.as_json(),
            "latency": self.latency.as_json(),
            "parts_ms": self.parts_ms(),
            "padding_waste": round(self.padding_waste(), 4),
            "cpu": round(sum(use.cpu for use in used) / len(used), 3),
            "memory_peak_bytes": max(use.memory_peak_bytes for use in used),
            "device_busy": max(busy) if busy else None,
            "device_memory_peak_bytes": max(held) if held else None,
            "cdf": distribution(sorted(self._seconds())),
        }


Progress = Callable[[str], None]


def measure(
    networks: Sequence[Network], grid: Grid, effort: Effort, store: Store, *, progress: Progress = lambda _: None
) -> list[CellResult]:
    """Measure a grid.

    Args:
        networks: What is run.
        grid: How.
        effort: How much.
        store: Where prepared graphs are.
        progress: Is told, in words, what happens next.

    Returns:
        A result a setting, in the order of the grid.

    Raises:
        BackendError: A backend is missing or refuses.
        ConfigError: There is nothing to measure.
    """
    cells = grid.cells(networks)
    results = {cell: CellResult(cell) for cell in cells}
    with contextlib.ExitStack() as stack:
        runners: dict[object, Runner] = {}
        prepared = {network.name: network for network in networks}
        for cell in cells:
            key = _runner_key(cell, grid)
            if key not in runners:
                progress(f"opening {cell.key}")
                runners[key] = stack.enter_context(_runner(cell, grid, prepared[cell.network], store))
        order = random.Random(_SEED)  # noqa: S311  # an order, no secret
        for number in range(effort.rounds + 1):
            shuffled = order.sample(cells, len(cells))
            for done, cell in enumerate(shuffled):
                runner = runners[_runner_key(cell, grid)]
                if number == 0:
                    progress(f"warm-up {done + 1}/{len(cells)}")
                    run_cell(runner, cell, Effort(seconds=effort.warmup_s, iterations=0, profile=False), "cpu")
                else:
                    progress(f"round {number}/{effort.rounds}, {done + 1}/{len(cells)}: {cell.key}")
                    results[cell].shots.append(run_cell(runner, cell, effort, grid.device))
    return list(results.values())


def run_cell(runner: Runner, cell: Cell, effort: Effort, device: str) -> Shot:
    """One measurement: as many threads as streams, each runs one batch after the other.

    Args:
        runner: Open.
        cell: What is run.
        effort: How long.
        device: Watched meanwhile.

    Raises:
        BackendError: A run failed.
    """
    shot = Shot()
    batches = [_pictures(cell, stream) for stream in range(cell.streams)]
    barrier = threading.Barrier(cell.streams)
    lock = threading.Lock()
    errors: list[BaseException] = []

    def work(stream: int) -> None:
        seconds, parts, rows = [], [], 0
        try:
            barrier.wait()
            started = time.perf_counter()
            for each, found, ran in _runs(runner, batches[stream], effort, started):
                seconds.append(each)
                rows += ran
                if found:
                    parts.append((stream, found))
            took = time.perf_counter() - started
            with lock:
                shot.seconds += seconds
                shot.parts += parts
                shot.rows += rows
                shot.images_per_s += cell.batch * len(seconds) / took
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    with Sampler(device) as sampler:
        threads = [threading.Thread(target=work, args=(stream,), daemon=True) for stream in range(cell.streams)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if errors:
        raise next((error for error in errors if not isinstance(error, threading.BrokenBarrierError)), errors[0])
    shot.use = sampler.use
    return shot


def _runs(runner: Runner, pictures: U8Array, effort: Effort, started: float) -> Iterator[tuple[float, list[Part], int]]:
    """Latency, parts and rows of one run after the other."""
    for number in itertools.count():
        if effort.iterations:
            if number >= effort.iterations:
                return
        elif number and time.perf_counter() - started >= effort.seconds:
            return
        if not effort.profile:
            before = time.perf_counter()
            runner.run_unchecked(pictures)
            yield time.perf_counter() - before, [], 0
            continue
        with recording() as record:
            before = time.perf_counter()
            runner.run_unchecked(pictures)
            seconds = time.perf_counter() - before
        yield seconds, record.parts, record.rows


def _pictures(cell: Cell, stream: int) -> U8Array:
    noise = np.random.default_rng(_SEED + stream)
    return noise.integers(0, 256, (cell.batch, cell.height, cell.width, 3), np.uint8)


def _runner_key(cell: Cell, grid: Grid) -> object:
    """Settings with the same key share a runner."""
    key: tuple[object, ...] = (cell.network, cell.backend, cell.precision, cell.height, cell.width)
    flags = (cell.graphs, cell.transfers, cell.spin)
    if cell.backend == "openvino":
        return (*key, cell.streams, cell.batch if grid.whole else 0)
    if cell.backend == "onnxruntime":
        return (*key, cell.streams)
    return (*key, *flags)


def _runner(cell: Cell, grid: Grid, network: Network, store: Store) -> Runner:
    shared = cell.backend not in ("openvino", "onnxruntime")
    size = (cell.height, cell.width)
    largest = max(grid.batches)
    instances = max(grid.streams) if shared else cell.streams
    file = network.prepared(store, cell.backend, cell.precision)
    return create_runner(
        cell.backend,
        Path(file.path),
        network.contract,
        RunnerOptions(
            device=grid.device,
            precision=cell.precision,
            instances=instances,
            threads=max(grid.threads, instances),
            warm=(size,),
            chunk=cell.batch if grid.whole else 1,
            whole_batches=grid.whole,
            max_batch=max(16, largest) if not shared else largest_bucket(largest),
            profiles=(((1, *size, 3), (largest, *size, 3), (largest, *size, 3)),),
            cuda_graphs=cell.graphs,
            spin_wait=cell.spin,
            transfers=cell.transfers,
        ),
    )


def largest_bucket(batch: int) -> int:
    """The power of two that holds a batch, at most 256."""
    return min(1 << (batch - 1).bit_length(), 256)


HOST_PARTS = (HOST, "other")
DEVICE_PARTS = (TRANSFER_IN, COMPUTE, TRANSFER_OUT)
QUEUE_PARTS = (WAIT,)
