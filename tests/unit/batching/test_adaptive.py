from __future__ import annotations

from collections.abc import Callable

import pytest

from facefleet.batching import BatchPolicy
from facefleet.batching.adaptive import ModelBased
from facefleet.batching.halving import HalvingRule, RecentLatency
from facefleet.batching.latency import LatencyCurve

BUCKETS = (1, 2, 4, 8, 16, 32, 64)
TARGET_S = 0.1


def overhead(size: int) -> float:
    return 0.008 + 0.001 * size


def linear(size: int) -> float:
    return 0.005 * size


def curve(seconds: Callable[[int], float] = overhead) -> LatencyCurve:
    made = LatencyCurve(BUCKETS)
    for bucket in BUCKETS:
        made.seed(bucket, seconds(bucket))
    return made


def feed(control: ModelBased, rate: float, until: float, *, start: float = 0.0) -> list[BatchPolicy]:
    """Even arrivals; the policies of every 20 ms."""
    seen = []
    owed = 0.0
    for step in range(round(start / 0.002), round(until / 0.002)):
        now = step * 0.002
        owed += rate * 0.002
        control.observe_arrivals(int(owed), now)
        owed -= int(owed)
        if step % 10 == 0:
            seen.append(control.policy(now))
    return seen


class TestRecentLatency:
    def test_nearest_rank(self) -> None:
        recent = RecentLatency(10.0)
        assert recent.p99_s(0.0) == 0.0
        recent.add([float(value) for value in range(1, 101)], 0.0)
        assert recent.p99_s(0.0) == 99.0

    def test_old_ones_are_forgotten(self) -> None:
        recent = RecentLatency(10.0)
        recent.add([5.0], 0.0)
        recent.add([1.0], 9.0)
        assert recent.p99_s(9.5) == 5.0
        assert recent.p99_s(10.5) == 1.0
        recent.clear()
        assert len(recent) == 0


class TestHalvingRule:
    def rule(self, size: int = 8) -> HalvingRule:
        rule = HalvingRule(BatchPolicy(size, 0.005), target_s=TARGET_S, max_batch=32, period_s=1.0)
        assert rule.policy(0.0).max_batch == size
        return rule

    @pytest.mark.parametrize(("latency", "size"), [(0.069, 16), (0.071, 8), (0.089, 8), (0.091, 4)])
    def test_seventy_and_ninety_percent(self, latency: float, size: int) -> None:
        rule = self.rule()
        rule.observe_batch(8, 0.01, [latency] * 8, 0.5)
        assert rule.policy(0.9).max_batch == 8
        assert rule.policy(1.0) == BatchPolicy(size, 0.005)

    @pytest.mark.parametrize(("start", "latency"), [(32, 0.001), (1, 1.0)])
    def test_it_stays_within_its_bounds(self, start: int, latency: float) -> None:
        rule = self.rule(start)
        rule.observe_batch(1, 0.01, [latency], 0.5)
        assert rule.policy(1.0).max_batch == start

    def test_silence_changes_nothing(self) -> None:
        rule = self.rule()
        assert [rule.policy(float(now)).max_batch for now in range(5)] == [8] * 5

    def test_after_a_step_the_old_latencies_do_not_count(self) -> None:
        rule = self.rule()
        rule.observe_batch(8, 0.01, [0.5], 0.99)
        assert rule.policy(1.0).max_batch == 4
        assert rule.policy(2.0).max_batch == 4


class TestModelBased:
    def test_without_a_measurement_the_base_holds(self) -> None:
        base = BatchPolicy(7, 0.003)
        control = ModelBased(LatencyCurve(BUCKETS), target_s=TARGET_S, base=base)
        control.observe_arrivals(5, 0.0)
        assert control.policy(0.0) is base
        control.observe_batch(4, 0.01, [0.02] * 4, 0.1)
        assert control.policy(0.2) is not base

    def test_before_any_arrival_the_bound_is_the_largest_that_fits_the_target(self) -> None:
        """A full batch that just misses a device: 2 x 40 ms for 32, 2 x 72 ms for 64."""
        policy = ModelBased(curve(), target_s=TARGET_S).policy(0.0)
        assert policy.max_batch == 32
        assert policy.max_delay_s == 0.0

    def test_other_fields_are_those_of_the_base(self) -> None:
        base = BatchPolicy(1, 0.0, preferred=(1, 4), max_cost=9.0, bulk_penalty_s=2.0)
        policy = ModelBased(curve(), target_s=TARGET_S, base=base).policy(0.0)
        assert (policy.preferred, policy.max_cost, policy.bulk_penalty_s) == ((1, 4), 9.0, 2.0)

    def test_where_batches_gain_nothing_it_runs_items_alone(self) -> None:
        control = ModelBased(curve(linear), target_s=TARGET_S)
        assert {policy.max_batch for policy in feed(control, 100, 3.0)} == {1}

    def test_a_delay_is_spent_where_it_saves_device_time(self) -> None:
        control = ModelBased(curve(), target_s=TARGET_S)
        policy = feed(control, 100, 4.0)[-1]
        assert 0 < policy.max_delay_s <= 0.4 * TARGET_S

    def test_no_delay_where_it_saves_nothing(self) -> None:
        control = ModelBased(curve(linear), target_s=TARGET_S)
        assert {policy.max_delay_s for policy in feed(control, 100, 3.0)} == {0.0}

    def test_under_overload_capacity_does_not_fall(self) -> None:
        """More arrives than any bound can serve: the measured latency is bad, and smaller batches would be worse."""
        control = ModelBased(curve(), target_s=TARGET_S)
        sizes = []
        for step in range(1000):
            now = step * 0.01
            control.observe_arrivals(20, now)
            if step % 4 == 3:
                control.observe_batch(32, overhead(32), [1.0 + now] * 32, now)
            sizes.append(control.policy(now, pending=10 * step).max_batch)
        assert min(sizes) >= 32
        assert sizes[-1] == 64

    def test_a_queue_is_answered_with_capacity_before_the_next_forecast(self) -> None:
        control = ModelBased(curve(), target_s=TARGET_S)
        before = feed(control, 100, 4.0)[-1]
        after = control.policy(4.06, pending=900)
        assert after.max_batch > 32 >= before.max_batch
        assert after.max_delay_s == 0.0

    def test_devices_that_slow_down_get_smaller_batches(self) -> None:
        control = ModelBased(curve(), target_s=TARGET_S)
        before = control.policy(0.0).max_batch
        for step in range(80):
            control.observe_batch(8, 2.5 * overhead(8), [0.05] * 8, step * 0.01)
        after = control.policy(1.0)
        assert after.max_batch < before
        assert 2.5 * 2 * overhead(after.max_batch) <= TARGET_S

    def test_even_arrivals_do_not_make_it_waver(self) -> None:
        control = ModelBased(curve(), target_s=TARGET_S)
        policies = feed(control, 400, 12.0)[300:]
        assert len({(policy.max_batch, policy.max_delay_s) for policy in policies}) == 1

    @pytest.mark.parametrize("target_s", [0.0, -1.0, float("inf"), float("nan")])
    def test_a_target_must_be_one(self, target_s: float) -> None:
        with pytest.raises(ValueError, match="target"):
            ModelBased(curve(), target_s=target_s)
        with pytest.raises(ValueError, match="target"):
            HalvingRule(BatchPolicy(1, 0.0), target_s=target_s, max_batch=2)

    def test_there_must_be_a_device(self) -> None:
        with pytest.raises(ValueError, match="devices"):
            ModelBased(curve(), target_s=TARGET_S, devices=0)
