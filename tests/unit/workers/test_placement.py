"""Splits of devices, and when they move."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from facefleet.batching import LinearTime
from facefleet.errors import ConfigError
from facefleet.workers.placement import Placement, Rebalance, StageCosts, data_parallel, first_split, stage_parallel


@given(st.integers(2, 16), st.floats(1e-4, 1), st.floats(1e-4, 1), st.floats(0, 50))
def test_no_split_is_better(devices: int, detect_s: float, embed_s: float, faces: float) -> None:
    costs = StageCosts(detect_s, embed_s, faces)
    best = stage_parallel(devices, costs)
    assert best.detect + best.embed == devices
    for detect in range(1, devices):
        assert costs.images_per_s(Placement(detect, devices - detect)) <= costs.images_per_s(best)
    # Doing everything everywhere is never slower on paper.
    assert costs.images_per_s(data_parallel(devices)) >= costs.images_per_s(best) * (1 - 1e-12)


def test_a_split_needs_two_devices() -> None:
    with pytest.raises(ConfigError, match="two devices"):
        first_split(1)
    assert [first_split(3).stage_of(number) for number in range(3)] in (
        ["detect", "detect", "embed"],
        ["detect", "embed", "embed"],
    )


def test_it_moves_when_the_faces_do_and_not_at_once() -> None:
    balance = Rebalance(Placement(4, 4), patience=3)
    few, many = StageCosts(0.004, 0.001, 1.0), StageCosts(0.004, 0.001, 20.0)
    assert [balance.look(few) for _ in range(3)] == [None, None, Placement(6, 2)]
    assert balance.look(few) is None
    assert [balance.look(many), balance.look(few), balance.look(many), balance.look(many)] == [None] * 4
    moved = balance.look(many)
    assert moved == balance.placement
    assert moved is not None
    assert moved.embed > 4


def test_times_fit_a_line() -> None:
    times = LinearTime()
    assert times.item_s(8) == 0.0
    times.add(4, 0.1)
    assert times.item_s(8) == pytest.approx(0.025)  # one size only: the mean
    for size in (1, 2, 8, 16):
        times.add(size, 0.02 + 0.02 * size)
    assert times.item_s(10) == pytest.approx(0.022)
    half = LinearTime(*times.sums())
    assert (times + half - half).sums() == pytest.approx(times.sums())
