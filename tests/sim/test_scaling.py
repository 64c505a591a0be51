"""The real dispatcher on devices whose service times are made up, under a clock of the simulation's own."""

from __future__ import annotations

import pytest

from facefleet.workers.placement import Placement
from scaling import automatic_split, data_parallel_rate, stage_rate

FEEDER_S = 4e-5


@pytest.fixture(scope="module")
def single() -> float:
    return data_parallel_rate([1.0], feeder_s=FEEDER_S, seconds=2.0)


@pytest.mark.parametrize("devices", [2, 8, 32])
def test_equal_devices_scale(single: float, devices: int) -> None:
    rate = data_parallel_rate([1.0] * devices, feeder_s=FEEDER_S, seconds=2.0)
    assert rate >= 0.95 * devices * single


def test_beyond_the_feeder_nothing_is_gained_and_nothing_lost(single: float) -> None:
    rate = data_parallel_rate([1.0] * 64, feeder_s=1e-4, seconds=1.0)
    assert rate == pytest.approx(1e4, rel=0.02)


def test_a_slow_device_does_not_hold_the_others_up(single: float) -> None:
    """Fault 39: least outstanding work, where round robin would run at a third."""
    rate = data_parallel_rate([1.0] * 7 + [4.0], feeder_s=FEEDER_S, seconds=2.0)
    assert rate >= 0.95 * 7.25 * single


@pytest.mark.parametrize("faces", [1, 4, 20])
def test_the_automatic_split_is_as_good_as_the_best(faces: int) -> None:
    rates = {split: stage_rate(Placement(split, 8 - split), faces, 2.0) for split in range(1, 8)}
    assert rates[automatic_split(8, faces).detect] >= 0.95 * max(rates.values())
