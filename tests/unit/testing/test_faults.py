"""The testing tool itself: each fault does what it says."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from facefleet.errors import BadOutputError, DeviceLostError, InferenceError, OutOfMemoryError
from facefleet.testing import FakeRunner, Fault, FaultPlan, FaultyRunner
from facefleet.types import F32Array, U8Array

PICTURES = np.arange(4, dtype=np.uint8)[:, None, None, None] * np.ones((1, 2, 2, 3), np.uint8)


def first_pixel(pictures: U8Array) -> F32Array:
    return pictures[:, 0, 0, :1].astype(np.float32) + 1


def faulty(*faults: Fault) -> FaultyRunner:
    return FaultyRunner(FakeRunner({"out": first_pixel}), FaultPlan(dict(enumerate(faults))))


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault.RAISE, InferenceError),
        (Fault.MEMORY, OutOfMemoryError),
        (Fault.DEVICE_LOST, DeviceLostError),
        (Fault.NAN, BadOutputError),
        (Fault.SHORT, BadOutputError),
    ],
)
def test_faults_that_show(fault: Fault, error: type[Exception]) -> None:
    with faulty(fault) as runner:
        with pytest.raises(error):
            runner.run(PICTURES)
        assert runner.run(PICTURES)[0].ravel().tolist() == [1, 2, 3, 4]


def test_faults_that_do_not() -> None:
    with faulty(Fault.ZEROS, Fault.PERMUTED, Fault.SLEEP, Fault.LEAK) as runner:
        assert not runner.run(PICTURES)[0].any()
        assert runner.run(PICTURES)[0].ravel().tolist() == [4, 1, 2, 3]
        for _ in range(2):
            assert runner.run(PICTURES)[0].ravel().tolist() == [1, 2, 3, 4]


def test_memory_fits_one() -> None:
    with faulty(Fault.MEMORY) as runner:
        assert runner.run(PICTURES[:1])[0].tolist() == [[1.0]]


def test_exit_ends_the_process() -> None:
    code = "from facefleet.testing import Fault, FaultPlan; FaultPlan().strike(Fault.EXIT, 1)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 139


def test_a_seed_decides_and_rates_are_kept() -> None:
    rates = {Fault.RAISE: 0.2, Fault.NAN: 0.1}
    first, second, other = (FaultPlan(rates=rates, seed=seed) for seed in (1, 1, 2))
    drawn = [first.next() for _ in range(3000)]
    assert drawn == [second.next() for _ in range(3000)]
    assert drawn != [other.next() for _ in range(3000)]
    counts = Counter(drawn)
    assert counts[Fault.RAISE] == pytest.approx(600, rel=0.15)
    assert counts[Fault.NAN] == pytest.approx(300, rel=0.2)
    with pytest.raises(ValueError, match="probabilities"):
        FaultPlan(rates={Fault.RAISE: 0.7, Fault.NAN: 0.7})


def test_once_for_all_processes(tmp_path: Path) -> None:
    plans = [FaultPlan({0: Fault.RAISE, 1: Fault.RAISE}, once=str(tmp_path / "once")) for _ in range(2)]
    assert [plan.next() for plan in plans for _ in range(2)] == [Fault.RAISE, None, None, None]
