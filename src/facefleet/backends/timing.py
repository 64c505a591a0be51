"""Where the time of a run goes, for whoever measures: waiting, transfers and computing apart.

A thread that measures opens `recording`; runners name their parts with `part`, which costs a look-up where nobody
records. Each thread records its own runs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

WAIT, TRANSFER_IN, COMPUTE, TRANSFER_OUT, HOST = "wait", "transfer_in", "compute", "transfer_out", "host"
PARTS = (WAIT, HOST, TRANSFER_IN, COMPUTE, TRANSFER_OUT)
"""Waiting for a free instance, copies within the host, host to device, the network, device to host."""
_NOTHING: AbstractContextManager[None] = nullcontext()
_OWN = threading.local()


@dataclass(frozen=True, slots=True)
class Part:
    """One part of one run.

    Attributes:
        name: One of `PARTS`.
        start_s: When it began, by `time.perf_counter`.
        seconds: How long it took.
        lane: Stream or instance it ran on.
    """

    name: str
    start_s: float
    seconds: float
    lane: int = 0


@dataclass(slots=True)
class Record:
    """What runs of this thread told.

    Attributes:
        parts: In the order in which they ended.
        rows: Rows that were run, padding included; 0 where a backend does not pad.
    """

    parts: list[Part] = field(default_factory=list)
    rows: int = 0


@contextmanager
def recording() -> Iterator[Record]:
    """Collect the parts of all runs that this thread makes inside the ``with`` block."""
    before = active()
    _OWN.record = record = Record()
    try:
        yield record
    finally:
        _OWN.record = before


def active() -> Record | None:
    """The record of this thread; None where nobody measures."""
    record: Record | None = getattr(_OWN, "record", None)
    return record


def part(name: str, lane: int = 0) -> AbstractContextManager[None]:
    """A part of a run, around a ``with`` block; nothing where nobody measures."""
    record = active()
    return _NOTHING if record is None else _timed(record, name, lane)


@contextmanager
def _timed(record: Record, name: str, lane: int) -> Iterator[None]:
    started = time.perf_counter()
    try:
        yield
    finally:
        record.parts.append(Part(name, started, time.perf_counter() - started, lane))


def note(name: str, start_s: float, seconds: float, lane: int = 0) -> None:
    """A part that was timed otherwise, such as by the events of a device."""
    record = active()
    if record is not None:
        record.parts.append(Part(name, start_s, seconds, lane))


def note_rows(rows: int) -> None:
    """A batch ran with so many rows, padding included."""
    record = active()
    if record is not None:
        record.rows += rows
