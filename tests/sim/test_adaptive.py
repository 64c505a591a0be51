"""The controllers with the real batcher on devices whose service times are made up, under a simulated clock.

Seeded, so the figures are the same on every machine. The search here tries fewer delays than the benchmark.
"""

from __future__ import annotations

import pytest

from adaptive_simulation import (
    DEVICES,
    JITTER,
    Result,
    best_fixed,
    fixed,
    halving,
    loads,
    model_based,
    simulate,
)

SECONDS = 8.0
LOADS = loads(SECONDS)


def model_run(device: str, load: str, seed: int = 0) -> Result:
    return simulate(DEVICES[device], LOADS[load], model_based(DEVICES[device], seed), seed)


@pytest.mark.parametrize("device", list(DEVICES))
@pytest.mark.parametrize(
    "load", ["poisson 0.8", "poisson 0.9", "bursty", "bursty, over", "ramp", "ramp, over", "drift"]
)
def test_the_target_is_held_and_nothing_is_lost_against_the_best_fixed_setting(device: str, load: str) -> None:
    _, best, holds = best_fixed(DEVICES[device], LOADS[load], delays=(0.0,))
    model = model_run(device, load)
    if holds:
        assert model.p99_s <= 1.1 * DEVICES[device].target_s
    assert model.throughput >= 0.95 * best.throughput


@pytest.mark.parametrize("load", ["poisson 0.3", "poisson 0.6"])
@pytest.mark.parametrize("device", list(DEVICES))
def test_light_loads_are_held_with_no_more_device_time_than_without_a_delay(device: str, load: str) -> None:
    eager = simulate(DEVICES[device], LOADS[load], fixed(DEVICES[device], DEVICES[device].buckets[-1], 0.0))
    model = model_run(device, load)
    assert model.p99_s <= DEVICES[device].target_s
    assert model.item_ms <= 1.03 * eager.item_ms


def test_the_halving_rule_takes_overload_for_slow_batches() -> None:
    """What it is the baseline for: it ends at a batch of one, and most of the load waits."""
    rule = simulate(DEVICES["overhead"], LOADS["poisson 0.8"], halving(DEVICES["overhead"]))
    model = model_run("overhead", "poisson 0.8")
    assert rule.policies[-1][1] == 1
    assert rule.p99_s > 10 * model.p99_s
    assert rule.throughput < 0.5 * model.throughput


def test_every_item_is_answered_or_turned_away_once() -> None:
    load = LOADS["ramp, over"]
    arrived = len(load.arrivals(DEVICES["overhead"].rate, 3))
    result = model_run("overhead", "ramp, over", seed=3)
    assert len(result.latencies_s) + result.refused == arrived
    assert min(result.latencies_s) >= DEVICES["overhead"].seconds(1) * (1 - 5 * JITTER)


def test_a_seed_gives_the_same_run() -> None:
    one, two = model_run("gpu", "bursty", seed=5), model_run("gpu", "bursty", seed=5)
    assert one.latencies_s == two.latencies_s
    assert one.policies == two.policies
    assert model_run("gpu", "bursty", seed=6).latencies_s != one.latencies_s
