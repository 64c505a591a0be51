"""A worker's handler whose answers are known, so that a lost, doubled or swapped answer shows."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from facefleet.errors import InputError
from facefleet.testing.faults import Fault, FaultPlan
from facefleet.types import Outcome
from facefleet.workers import BatchHandler, Payload


def known_answer(data: bytes) -> str:
    """What `KnownAnswers` answers to `data`."""
    return hashlib.sha256(data).hexdigest()


class KnownAnswers(BatchHandler):
    """Answers each payload with the digest of its bytes, and the bytes themselves reversed.

    A payload whose meta is ``poison`` ends the process; ``hang`` never returns; ``bad`` fails alone.

    Args:
        plan: Faults, by batch.
        service_s: Seconds a batch takes: a fixed part, and one for each item.
        start_s: Seconds it takes to become ready.
        name: Given back with the facts.
    """

    def __init__(
        self,
        plan: FaultPlan | None = None,
        *,
        service_s: tuple[float, float] = (0.0, 0.0),
        start_s: float = 0.0,
        name: str = "",
    ) -> None:
        self._plan = plan or FaultPlan()
        self._plan.seed = self._plan.seed * 1009 + os.getpid()  # each process fails at times of its own
        self._service_s = service_s
        self._start_s = start_s
        self._name = name
        self._largest = 0

    def open(self) -> Mapping[str, Any]:
        """Ready after `start_s`."""
        time.sleep(self._start_s)
        return {"name": self._name}

    def close(self) -> None:
        """Nothing to give back."""

    def facts(self) -> Mapping[str, Any]:
        """The largest batch so far."""
        return {"largest_batch": self._largest}

    def run(self, batch: Sequence[Payload]) -> Sequence[Outcome[Payload]]:
        """See the class."""
        self._largest = max(self._largest, len(batch))
        kinds = [payload.meta for payload in batch]
        if "poison" in kinds:
            os._exit(139)
        if "hang" in kinds:
            threading.Event().wait()
        fault = self._plan.next()
        self._plan.strike(fault, len(batch))
        fixed, each = self._service_s
        if fixed or each:
            time.sleep(fixed + each * len(batch))
        answers = [self._answer(payload) for payload in batch]
        return answers[:-1] if fault is Fault.SHORT else answers

    def _answer(self, payload: Payload) -> Outcome[Payload]:
        if payload.meta == "bad":
            return Outcome(error=InputError("bad on purpose"))
        data = b"".join(bytes(buffer) for buffer in payload.buffers)
        return Outcome(Payload(known_answer(data), (data[::-1],)))
