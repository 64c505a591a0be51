"""How many streams: the rule of thumb beside what was measured.

The rule is min(multiprocessors x 2, batches that fit into memory); on a CPU, where nothing is a multiprocessor, its
counterpart is one stream a processor. It knows nothing of the network, which is why it stands beside the measurement.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from facefleet.bench.model import CellResult
from facefleet.bench.stats import Repeated, tied_with_best
from facefleet.config import available_threads
from facefleet.telemetry.devices import memory_total_bytes, read_devices


@dataclass(frozen=True, slots=True)
class Advice:
    """For one network at one batch.

    Attributes:
        network: Its name.
        backend: What runs it.
        precision: In what.
        size: Height and width.
        batch: Pictures a run.
        units: What the rule counts: twice the multiprocessors, or processors.
        fits: Batches that fit into memory at a time; None where their memory is not known.
        rule: What the rule says.
        measured: The fewest streams that are as fast as the fastest.
        tied: All that are.
        gain: Their throughput over that of the rule's nearest measured number.
    """

    network: str
    backend: str
    precision: str
    size: tuple[int, int]
    batch: int
    units: int
    fits: int | None
    rule: int
    measured: int
    tied: tuple[int, ...]
    gain: float

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def multiprocessors(device: str) -> int | None:
    """Multiprocessors of a CUDA device; None for a CPU."""
    if not device.startswith("cuda") or importlib.util.find_spec("torch") is None:
        return None
    import torch

    return int(torch.cuda.get_device_properties(int(device.partition(":")[2] or 0)).multi_processor_count)


def stream_advice(results: Sequence[CellResult], device: str, batch_bytes: Mapping[str, int]) -> list[Advice]:
    """The rule and the measured best, for every batch that was measured with several numbers of streams.

    Args:
        results: A grid.
        device: It ran on.
        batch_bytes: Key of a cell -> bytes that one batch in progress holds, as far as known.
    """
    count = multiprocessors(device)
    units = available_threads() if count is None else 2 * count
    memory = _memory(device)
    groups: dict[tuple[object, ...], list[CellResult]] = {}
    for result in results:
        cell = result.cell
        key = (cell.network, cell.backend, cell.precision, cell.height, cell.width, cell.batch, cell.graphs)
        groups.setdefault((*key, cell.transfers, cell.spin), []).append(result)
    return [_advice(group, units, memory, batch_bytes) for group in groups.values() if len(group) > 1]


def _advice(group: list[CellResult], units: int, memory: int, batch_bytes: Mapping[str, int]) -> Advice:
    cell = group[0].cell
    figures: dict[str, Repeated] = {str(result.cell.streams): result.images_per_s for result in group}
    tied = tuple(sorted(int(name) for name in tied_with_best(figures)))
    held = max((batch_bytes.get(result.cell.key, 0) for result in group), default=0)
    fits = memory // held if held and memory else None
    rule = max(1, units if fits is None else min(units, fits))
    nearest = min(figures, key=lambda name: abs(int(name) - rule))
    best = max(figure.median for figure in figures.values())
    return Advice(
        cell.network,
        cell.backend,
        cell.precision,
        (cell.height, cell.width),
        cell.batch,
        units,
        fits,
        rule,
        tied[0],
        tied,
        round(best / figures[nearest].median, 4),
    )


def _memory(device: str) -> int:
    if not device.startswith("cuda"):
        return memory_total_bytes()
    number = device.partition(":")[2] or "0"
    return next((load.memory_total_bytes or 0 for load in read_devices() if load.device == f"cuda:{number}"), 0)
