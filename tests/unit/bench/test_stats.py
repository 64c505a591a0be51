from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from facefleet.bench.stats import Repeated, compared, distribution, latencies, quantile, tied_with_best


class TestLatencies:
    def test_nearest_ranks(self) -> None:
        found = latencies([index / 1000 for index in range(100, 0, -1)])
        assert (found.p50, found.p90, found.p95, found.p99, found.max) == (0.05, 0.09, 0.095, 0.099, 0.1)
        assert found.count == 100
        assert found.mean == pytest.approx(0.0505)

    def test_one_run_is_every_percentile(self) -> None:
        found = latencies([0.2])
        assert found.p50 == found.p99 == found.max == 0.2
        assert found.as_json()["p99_ms"] == 200.0

    def test_none(self) -> None:
        with pytest.raises(ValueError, match="no latencies"):
            latencies([])

    def test_a_percentile_is_never_interpolated(self) -> None:
        assert quantile([1.0, 2.0, 3.0, 1000.0], 75) == 3.0
        assert quantile([1.0, 2.0, 3.0, 1000.0], 76) == 1000.0

    def test_distribution_ends_with_the_slowest(self) -> None:
        points = distribution([index / 1000 for index in range(1, 1001)])
        assert points[-1] == (1000.0, 1.0)
        assert points[-3:-1] == [(995.0, 0.995), (999.0, 0.999)]
        assert [share for _, share in points] == sorted(share for _, share in points)


class TestRepeated:
    def test_median_and_spread(self) -> None:
        figure = Repeated((90.0, 100.0, 120.0))
        assert (figure.median, figure.spread) == (100.0, 30.0)
        assert figure.as_json() == {"median": 100.0, "spread": 30.0, "rounds": [90.0, 100.0, 120.0]}

    def test_sigma_from_the_range_is_about_that_of_the_median(self) -> None:
        draw = np.random.default_rng(1)
        for count in (3, 5, 9, 15):
            samples = draw.normal(100, 5, (4000, count))
            real = statistics.stdev(float(np.median(row)) for row in samples)
            seen = statistics.fmean(Repeated(tuple(row)).sigma for row in samples)
            assert seen == pytest.approx(real, rel=0.15)

    def test_one_round_says_nothing_about_noise(self) -> None:
        assert math.isinf(Repeated((5.0,)).sigma)

    def test_ties(self) -> None:
        wide, near, far = (
            Repeated((95.0, 100.0, 105.0)),
            Repeated((107.0, 108.0, 109.0)),
            Repeated((119.0, 120.0, 121.0)),
        )
        assert wide.ties(near)
        assert near.ties(wide)
        assert not wide.ties(far)
        assert tied_with_best({"near": near, "far": far, "wide": wide}) == {"far"}
        assert tied_with_best({"near": near, "wide": wide}) == {"near", "wide"}
        assert tied_with_best({}) == set()


class TestCompared:
    def test_a_clear_change(self) -> None:
        change = compared(Repeated((99.0, 100.0, 101.0)), Repeated((119.0, 120.0, 121.0)))
        assert change.verdict == "faster"
        assert change.ratio == pytest.approx(1.2)
        assert compared(Repeated((119.0, 120.0, 121.0)), Repeated((99.0, 100.0, 101.0))).verdict == "slower"

    def test_lower_may_be_better(self) -> None:
        assert compared(Repeated((9.9, 10.0)), Repeated((5.0, 5.1)), higher_is_better=False).verdict == "faster"

    def test_within_noise(self) -> None:
        change = compared(Repeated((80.0, 100.0, 120.0)), Repeated((90.0, 112.0, 130.0)))
        assert change.verdict == "no difference"
        assert change.noise > 0.12

    def test_the_floor_holds_for_quiet_measurements(self) -> None:
        assert compared(Repeated((100.0, 100.0)), Repeated((101.5, 101.5))).verdict == "no difference"
        assert compared(Repeated((100.0, 100.0)), Repeated((101.5, 101.5)), floor=0.01).verdict == "faster"

    def test_single_rounds_are_not_judged(self) -> None:
        assert compared(Repeated((100.0,)), Repeated((200.0,))).verdict == "unknown"

    def test_the_same_machine_is_seldom_called_different(self) -> None:
        draw = np.random.default_rng(2)
        verdicts = [
            compared(Repeated(tuple(draw.normal(100, 4, 5))), Repeated(tuple(draw.normal(100, 4, 5)))).verdict
            for _ in range(1000)
        ]
        assert verdicts.count("no difference") >= 970
