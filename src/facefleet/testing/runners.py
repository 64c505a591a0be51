"""Runners for tests: a network whose answers are known, and a wrapper that makes any runner fail."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from facefleet.backends import InputContract, Runner, RunnerOptions
from facefleet.testing.faults import Fault, FaultPlan
from facefleet.types import F32Array, U8Array

_PLAIN = InputContract("rgb", (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


class FakeRunner(Runner):
    """A network that exists in the test only.

    Args:
        outputs: Name -> function of (n, h, w, 3) uint8 pictures to a float32 array of n rows.
        service_s: Seconds a run takes: a fixed part, and one for each picture.
    """

    def __init__(
        self, outputs: Mapping[str, Callable[[U8Array], F32Array]], *, service_s: tuple[float, float] = (0.0, 0.0)
    ) -> None:
        super().__init__(Path("fake.onnx"), _PLAIN, RunnerOptions())
        self._outputs = dict(outputs)
        self._service_s = service_s

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names as they were given."""
        return tuple(self._outputs)

    def _open_impl(self) -> None:
        return

    def _close_impl(self) -> None:
        return

    def _run_impl(self, pictures: U8Array) -> tuple[F32Array, ...]:
        fixed, each = self._service_s
        if fixed or each:
            time.sleep(fixed + each * len(pictures))
        return tuple(function(pictures) for function in self._outputs.values())


class FaultyRunner(Runner):
    """Another runner, with faults.

    Args:
        inner: What really runs; opened and closed with this one.
        plan: Which fault happens in which run.
    """

    def __init__(self, inner: Runner, plan: FaultPlan) -> None:
        super().__init__(inner.model, inner.contract, inner.options)
        self.inner = inner
        self.plan = plan

    @property
    def output_names(self) -> tuple[str, ...]:
        """As the inner runner's."""
        return self.inner.output_names

    def _open_impl(self) -> None:
        self.inner.open()

    def _close_impl(self) -> None:
        self.inner.close()

    def _run_impl(self, pictures: U8Array) -> tuple[F32Array, ...]:
        fault = self.plan.next()
        self.plan.strike(fault, len(pictures))
        return tuple(_spoiled(output, fault) for output in self.inner.run_unchecked(pictures))


def _spoiled(output: F32Array, fault: Fault | None) -> F32Array:
    if fault is Fault.NAN:
        return np.full_like(output, np.nan)
    if fault is Fault.ZEROS:
        return np.zeros_like(output)
    if fault is Fault.PERMUTED:
        return np.roll(output, 1, axis=0)
    if fault is Fault.SHORT:
        return output[:-1]
    return output
