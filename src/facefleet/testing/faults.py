"""Which fault happens when: by a script, or at random with a seed.

Owns the choice and what faults do to the process itself; runners and handlers do to their results what is theirs.
"""

from __future__ import annotations

import enum
import os
import random
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from facefleet.errors import DeviceLostError, InferenceError, OutOfMemoryError


class Fault(enum.Enum):
    """What goes wrong in a call."""

    SLEEP = "sleep"
    """It takes `FaultPlan.sleep_s` longer."""
    RAISE = "raise"
    """It fails with an `InferenceError`."""
    MEMORY = "memory"
    """It fails with an `OutOfMemoryError`, unless the batch is one item."""
    NAN = "nan"
    """Its results are not finite."""
    ZEROS = "zeros"
    """Its results are zeros."""
    PERMUTED = "permuted"
    """Results of a batch belong to other items: turned by one place."""
    SHORT = "short"
    """One result too few."""
    DEVICE_LOST = "device_lost"
    """It fails with a `DeviceLostError`."""
    LEAK = "leak"
    """It keeps `FaultPlan.leak_bytes` for ever."""
    HANG = "hang"
    """It never returns."""
    EXIT = "exit"
    """The process ends at once, as by a segmentation fault."""


_kept: list[bytes] = []


@dataclass(slots=True)
class FaultPlan:
    """Decides about each call in turn; safe in several threads, and picklable before its first use.

    Attributes:
        script: Number of a call, from 0 -> what happens in it.
        rates: Fault -> probability, for calls that the script does not name.
        once: Path of a file that does not exist. Then the script happens once in all processes: in the one that
            makes the file.
        seed: Of the random choice.
        sleep_s: For `Fault.SLEEP`.
        leak_bytes: For `Fault.LEAK`.
    """

    script: Mapping[int, Fault] = field(default_factory=dict)
    rates: Mapping[Fault, float] = field(default_factory=dict)
    once: str = ""
    seed: int = 0
    sleep_s: float = 0.05
    leak_bytes: int = 1 << 20
    _calls: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        if sum(self.rates.values()) > 1 or any(rate < 0 for rate in self.rates.values()):
            raise ValueError(f"rates must be probabilities that add up to at most 1: {dict(self.rates)}")

    def next(self) -> Fault | None:
        """What happens in the next call."""
        with _lock:
            call, self._calls = self._calls, self._calls + 1
        if call in self.script and self._first():
            return self.script[call]
        draw = random.Random(self.seed * 1_000_003 + call).random()  # noqa: S311  # not for secrets
        for fault, rate in self.rates.items():
            if draw < rate:
                return fault
            draw -= rate
        return None

    def _first(self) -> bool:
        if not self.once:
            return True
        try:
            Path(self.once).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def strike(self, fault: Fault | None, batch: int) -> None:
        """Do what a fault does to the call or the process, before there are results.

        Args:
            fault: What `next` said.
            batch: Items in the call.

        Raises:
            InferenceError: As the fault says.
            OutOfMemoryError: Likewise.
            DeviceLostError: Likewise.
        """
        if fault is Fault.SLEEP:
            time.sleep(self.sleep_s)
        elif fault is Fault.RAISE:
            raise InferenceError("a fault on purpose")
        elif fault is Fault.MEMORY and batch > 1:
            raise OutOfMemoryError("out of memory on purpose")
        elif fault is Fault.DEVICE_LOST:
            raise DeviceLostError("the device is lost on purpose")
        elif fault is Fault.LEAK:
            _kept.append(bytes(self.leak_bytes))
        elif fault is Fault.HANG:
            threading.Event().wait()
        elif fault is Fault.EXIT:
            os._exit(139)


_lock = threading.Lock()
