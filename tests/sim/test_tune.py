"""The tuner on a simulated machine, against measuring everything."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from facefleet.bench.tune.forecast import forecast
from facefleet.bench.tune.search import Forecast, Measured, Tried, pareto, search
from facefleet.bench.tune.space import Choice
from tests.sim.tune_simulation import SPACE, THREADS, Machine, costs, simulate


@pytest.fixture(scope="module")
def truth() -> dict[Choice, tuple[float, float]]:
    """Throughput and p99 of every configuration: medians of three runs each."""
    found = {}
    for choice in SPACE.choices():
        runs = [simulate(choice, random.Random(seed)) for seed in range(3)]
        rate = statistics.median(run.images_per_s for run in runs)
        found[choice] = rate, statistics.median(run.p99_s for run in runs)
    return found


def expected(choice: Choice) -> Forecast:
    return forecast(choice, costs(), threads=THREADS, accelerated=False)


class TestAgainstExhaustiveSearch:
    @pytest.mark.parametrize("target_s", [0.04, 0.1, 0.2])
    @pytest.mark.parametrize("seed", [1, 2, 3])
    def test_reaches_the_best_with_few_measurements(
        self, truth: dict[Choice, tuple[float, float]], target_s: float, seed: int
    ) -> None:
        machine = Machine(seed)
        budget = int(0.3 * len(truth))
        found = search(list(truth), expected, machine.measure, target_s=target_s, budget=budget)
        assert machine.runs == found.measurements <= budget
        assert found.best is not None
        best = max(rate for rate, p99 in truth.values() if p99 <= target_s)
        rate, p99 = truth[found.best.choice]
        assert p99 <= target_s
        assert rate >= 0.97 * best

    def test_a_fifth_of_that_comes_near(self, truth: dict[Choice, tuple[float, float]]) -> None:
        machine = Machine(5)
        found = search(list(truth), expected, machine.measure, target_s=0.1, budget=24)
        best = max(rate for rate, p99 in truth.values() if p99 <= 0.1)
        assert found.best is not None
        assert truth[found.best.choice][0] >= 0.9 * best

    def test_the_forecast_alone_is_worse_than_the_search(self, truth: dict[Choice, tuple[float, float]]) -> None:
        held = [choice for choice in truth if expected(choice).p99_s <= 0.2]
        blind = max(held, key=lambda choice: expected(choice).images_per_s)
        best = max(rate for rate, p99 in truth.values() if p99 <= 0.2)
        rate, p99 = truth[blind]
        assert p99 > 0.2 or rate < 0.97 * best


class TestSearch:
    def test_the_same_seed_gives_the_same_search(self) -> None:
        ways = []
        for _ in range(2):
            found = search(SPACE.choices(), expected, Machine(7).measure, target_s=0.1, budget=30)
            ways.append([each.choice.key for each in found.tried])
        assert ways[0] == ways[1]

    def test_no_configuration_holds_an_impossible_target(self) -> None:
        found = search(SPACE.choices(), expected, Machine(1).measure, target_s=0.001, budget=20)
        assert found.best is None
        assert 8 <= found.measurements <= 20

    def test_memory_is_a_limit(self) -> None:
        machine = Machine(2)

        def hungry(choice: Choice) -> Measured:
            seen = machine.measure(choice)
            return Measured(seen.images_per_s, seen.p50_s, seen.p99_s, choice.embed * 2**28)

        found = search(SPACE.choices(), expected, hungry, target_s=0.2, budget=60, memory_bytes=2**30)
        assert found.best is not None
        assert found.best.choice.embed <= 4

    def test_what_fails_is_left_out_and_taught_to_the_model(self) -> None:
        machine = Machine(3)

        def failing(choice: Choice) -> Measured:
            if choice.precision == "fast":
                return Measured(0.0, 0.0, 0.0, error="no such precision here")
            return machine.measure(choice)

        found = search(SPACE.choices(), expected, failing, target_s=0.2, budget=60)
        assert found.best is not None
        assert found.best.choice.precision == "fp32"
        failed = [each for each in found.tried if each.failed]
        assert failed
        assert len(failed) < len(found.tried) / 2

    @pytest.mark.parametrize(("count", "budget"), [(0, 20), (10, 7)])
    def test_too_little_to_search(self, count: int, budget: int) -> None:
        with pytest.raises(ValueError, match="configurations"):
            search(SPACE.choices()[:count], expected, Machine(1).measure, target_s=0.1, budget=budget)

    def test_fewer_configurations_than_measurements(self) -> None:
        found = search(SPACE.choices()[:5], expected, Machine(1).measure, target_s=10.0, budget=40)
        assert found.best is not None
        assert len(found.tried) == 5


class TestPareto:
    def test_front(self) -> None:
        def tried(rate: float, p99: float, error: str = "") -> Tried[Choice]:
            return Tried(SPACE.choices()[0], [Measured(rate, p99 / 2, p99, error=error)])

        points = [tried(10, 0.1), tried(30, 0.3), tried(20, 0.3), tried(5, 0.2), tried(99, 0.01, "broken")]
        assert [each.images_per_s for each in pareto(points)] == [10, 30]
        assert math.isinf(points[-1].p99_s)
