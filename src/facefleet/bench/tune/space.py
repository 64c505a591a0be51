"""What can be tuned: every combination of layout, precision, batch bounds, delay and photos in flight.

Pure. A layout is which devices do what, with how many instances.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layout:
    """Where work is done.

    Attributes:
        devices: As in ``runtime.devices``.
        placement: As in ``runtime.placement``.
        instances: As in ``runtime.instances``.
    """

    devices: str = "auto"
    placement: str = "auto"
    instances: int = 0

    @property
    def name(self) -> str:
        """Short."""
        where = self.devices if self.placement == "auto" else f"{self.devices} {self.placement}"
        return f"{where} x{self.instances}" if self.instances else where


@dataclass(frozen=True, slots=True)
class Choice:
    """One configuration.

    Attributes:
        layout: Where work is done.
        precision: As in ``runtime.precision``.
        detect: Most pictures a detector batch.
        embed: Most faces an embedder batch.
        delay_ms: The longest that a part-filled batch waits.
        in_flight: Photos inside at a time.
    """

    layout: Layout
    precision: str
    detect: int
    embed: int
    delay_ms: float
    in_flight: int

    @property
    def key(self) -> str:
        """One line that names it."""
        return (
            f"{self.layout.name}, {self.precision}, detect {self.detect}, embed {self.embed}, "
            f"delay {self.delay_ms:g} ms, {self.in_flight} in flight"
        )

    @property
    def levels(self) -> dict[str, str]:
        """Factor -> its level here, for the model of the search."""
        return {
            "layout": self.layout.name,
            "precision": self.precision,
            "detect": str(self.detect),
            "embed": str(self.embed),
            "delay": f"{self.delay_ms:g}",
            "in_flight": str(self.in_flight),
        }

    def settings(self, threads: int, places: int = 0) -> dict[str, object]:
        """Dotted setting -> value; an engine of several devices takes so many photos for each of them.

        Args:
            threads: Processors.
            places: Photos that may be inside, where that is more than are in flight: callers that come at random need
                room to wait.
        """
        devices = 1 if self.layout.placement == "auto" else self.layout.devices.count(",") + 1
        return {
            "runtime.devices": self.layout.devices,
            "runtime.placement": self.layout.placement,
            "runtime.precision": self.precision,
            "runtime.threads": threads,
            "runtime.instances": self.layout.instances,
            "batch.detect": self.detect,
            "batch.embed": self.embed,
            "batch.max_delay_ms": self.delay_ms,
            "batch.max_images": min(-(-max(self.in_flight, places) // devices), 65536),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """All configurations that are considered.

    Attributes:
        layouts: Where work is done.
        precisions: Names.
        detects: Bounds of detector batches.
        embeds: Bounds of embedder batches.
        delays_ms: Delays.
        in_flights: Photos inside.
    """

    layouts: Sequence[Layout]
    precisions: Sequence[str]
    detects: Sequence[int]
    embeds: Sequence[int]
    delays_ms: Sequence[float]
    in_flights: Sequence[int]

    def choices(self) -> list[Choice]:
        """Every combination, always in the same order."""
        return [
            Choice(*values)
            for values in itertools.product(
                self.layouts, self.precisions, self.detects, self.embeds, self.delays_ms, self.in_flights
            )
        ]


def cpu_space(threads: int, processors: Sequence[int], precisions: Sequence[str]) -> Space:
    """What makes sense on processors: batches gain little there, instances and photos in flight decide.

    Args:
        threads: Processors that may be used.
        processors: Their numbers.
        precisions: Names.
    """
    layouts = [Layout("cpu", "auto", count) for count in sorted({1, max(1, threads // 2), threads})]
    if len(processors) > 1:
        devices = "cpu:" + ",".join(map(str, processors))
        layouts.append(Layout(devices, "data"))
        half = len(processors) // 2
        layouts.append(Layout(devices, f"stage:{len(processors) - half}+{half}"))
    inside = [threads * factor for factor in (1, 2, 4, 8, 16)]
    return Space(
        layouts=layouts,
        precisions=precisions,
        detects=(1, 4),
        embeds=(1, 4, 16),
        delays_ms=(0.0, 25.0),
        in_flights=inside,
    )


def cuda_space(devices: Sequence[str], precisions: Sequence[str]) -> Space:
    """What makes sense on graphics cards: batches decide.

    Args:
        devices: Names with numbers.
        precisions: Names.
    """
    named = "cuda:" + ",".join(name.partition(":")[2] for name in devices)
    layouts = [Layout(named, "data" if len(devices) > 1 else "auto", count) for count in (1, 2, 4)]
    if len(devices) > 1:
        half = len(devices) // 2
        layouts.append(Layout(named, f"stage:{len(devices) - half}+{half}", 2))
    return Space(
        layouts=layouts,
        precisions=precisions,
        detects=(1, 8, 32),
        embeds=(16, 64, 256),
        delays_ms=(0.0, 5.0, 25.0),
        in_flights=(16, 64, 256, 1024),
    )
