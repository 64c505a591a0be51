"""The grid, its order, its threads and its figures; real networks in `test_bench_cli`."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from facefleet.backends import InputContract, Runner, RunnerOptions
from facefleet.backends.timing import COMPUTE, HOST, note_rows, part
from facefleet.bench import model as model_module
from facefleet.bench.advice import stream_advice
from facefleet.bench.model import Cell, CellResult, Effort, Grid, Shot, largest_bucket, measure, run_cell
from facefleet.bench.networks import Network
from facefleet.bench.sampler import Use
from facefleet.errors import ConfigError, InferenceError
from facefleet.packs import Store
from facefleet.types import F32Array, U8Array

HALF = (127.5, 127.5, 127.5)
CONTRACT = InputContract("rgb", HALF, HALF)
CELL = Cell("net", "fake", "fp32", 8, 6, 4, 2)
NET = Network("net", "embedder", (8, 6), CONTRACT)


class Quick(Runner):
    """Sleeps a little; pads to 8 rows."""

    together = most = calls = 0
    fail_at = -1
    lock = threading.Lock()

    @property
    def output_names(self) -> tuple[str, ...]:
        return ("output",)

    def _open_impl(self) -> None:
        pass

    def _close_impl(self) -> None:
        pass

    def _run_impl(self, pictures: U8Array) -> tuple[F32Array, ...]:
        with self.lock:
            self.calls += 1
            self.together += 1
            self.most = max(self.most, self.together)
            if self.calls == self.fail_at:
                raise InferenceError("on purpose")
        note_rows(8)
        with part(HOST):
            time.sleep(0.0005)
        with part(COMPUTE):
            time.sleep(0.002)
        with self.lock:
            self.together -= 1
        return (np.zeros((len(pictures), 3), np.float32),)


def opened() -> Quick:
    runner = Quick(Path("x.onnx"), CONTRACT, RunnerOptions())
    runner.open()
    return runner


class TestRunCell:
    def test_as_many_threads_as_streams_and_as_many_runs_as_asked(self) -> None:
        runner = opened()
        shot = run_cell(runner, CELL, Effort(iterations=5), "cpu")
        assert len(shot.seconds) == runner.calls == 10
        assert runner.most == 2
        assert min(shot.seconds) >= 0.0025
        assert shot.images_per_s == pytest.approx(4 * 10 / sum(shot.seconds) * 2, rel=0.3)

    def test_the_duration_is_the_least(self) -> None:
        started = time.perf_counter()
        shot = run_cell(opened(), CELL, Effort(seconds=0.05), "cpu")
        assert time.perf_counter() - started >= 0.05
        assert len(shot.seconds) >= 2
        assert run_cell(opened(), CELL, Effort(seconds=0.0), "cpu").seconds  # a slow network runs once at least

    def test_parts_padding_and_use(self) -> None:
        result = CellResult(CELL, [run_cell(opened(), CELL, Effort(iterations=6), "cpu")])
        parts = result.parts_ms()
        assert parts[COMPUTE] > parts[HOST] >= 0.5
        assert result.padding_waste() == pytest.approx(0.5)
        assert result.shots[0].use.memory_peak_bytes > 0
        entry = result.as_json()
        assert entry["key"] == "net fake fp32 8x6 batch 4 streams 2"
        assert entry["latency"]["count"] == 12
        assert entry["device_busy"] is None

    def test_without_profiling_no_parts(self) -> None:
        shot = run_cell(opened(), CELL, Effort(iterations=2, profile=False), "cpu")
        assert not shot.parts
        assert CellResult(CELL, [shot]).parts_ms() == {}

    def test_a_failing_run_ends_the_measurement(self) -> None:
        runner = opened()
        runner.fail_at = 3
        with pytest.raises(InferenceError, match="on purpose"):
            run_cell(runner, CELL, Effort(iterations=50), "cpu")


class TestGrid:
    def test_every_combination(self) -> None:
        grid = Grid(backends=("openvino", "onnxruntime"), precisions=("fp32", "bf16"), batches=(1, 2), streams=(1, 2))
        keys = [cell.key for cell in grid.cells([NET])]
        assert len(keys) == len(set(keys)) == 12  # ONNX Runtime has no bf16
        assert sum("onnxruntime" in key for key in keys) == 4

    def test_flags_show_in_the_key(self) -> None:
        cell = replace(CELL, graphs=False, transfers=False, spin=False)
        assert cell.key.endswith("streams 2 no graphs no transfers blocking")

    def test_what_a_backend_cannot_switch_off_is_left_out(self) -> None:
        both = Grid(backends=("openvino", "torch"), batches=(1,), transfers=(True, False), spins=(False, True))
        assert len(both.cells([NET])) == 2
        assert len(replace(both, device="cuda:0").cells([NET])) == 1 + 4
        with pytest.raises(ConfigError, match="nothing to measure"):
            replace(both, spins=(False,)).cells([NET])

    def test_nothing_left(self) -> None:
        with pytest.raises(ConfigError, match="nothing to measure"):
            Grid(backends=("onnxruntime",), precisions=("bf16",)).cells([NET])

    @pytest.mark.parametrize(("batch", "bucket"), [(1, 1), (3, 4), (64, 64), (200, 256), (400, 256)])
    def test_buckets(self, batch: int, bucket: int) -> None:
        assert largest_bucket(batch) == bucket


class TestMeasure:
    def test_rounds_are_interleaved_and_warmed_up(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        ran: list[tuple[str, bool]] = []

        def fake(runner: Runner, cell: Cell, effort: Effort, device: str) -> Shot:
            ran.append((cell.key, effort.profile))
            return Shot([0.01], 100.0, [], 0, Use())

        monkeypatch.setattr(model_module, "run_cell", fake)
        monkeypatch.setattr(model_module, "_runner", lambda *_: Quick(Path("x.onnx"), CONTRACT, RunnerOptions()))
        grid = Grid(backends=("openvino",), batches=(1, 2, 4), streams=(1, 2))
        results = measure([NET], grid, Effort(rounds=3), Store(tmp_path))
        keys = [cell.key for cell in grid.cells([NET])]
        assert [result.cell.key for result in results] == keys
        rounds = [[key for key, _ in ran[start : start + 6]] for start in range(0, 24, 6)]
        assert len(ran) == 24
        assert all(sorted(each) == sorted(keys) for each in rounds)
        assert len({tuple(each) for each in rounds}) == 4  # another order each time
        assert [profiled for _, profiled in ran] == [False] * 6 + [True] * 18
        assert all(len(result.shots) == 3 for result in results)


class TestAdvice:
    def result(self, streams: int, *rates: float) -> CellResult:
        return CellResult(replace(CELL, streams=streams), [Shot([0.01], rate) for rate in rates])

    def test_the_fewest_streams_that_are_as_fast(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("facefleet.bench.advice.available_threads", lambda: 4)
        results = [self.result(1, 50, 51), self.result(2, 98, 100), self.result(4, 99, 102)]
        (advice,) = stream_advice(results, "cpu", {})
        assert (advice.rule, advice.units, advice.fits) == (4, 4, None)
        assert (advice.measured, advice.tied) == (2, (2, 4))
        assert advice.gain == pytest.approx(1.0)

    def test_memory_bounds_the_rule(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("facefleet.bench.advice.available_threads", lambda: 64)
        monkeypatch.setattr("facefleet.bench.advice.memory_total_bytes", lambda: 1000)
        results = [self.result(1, 50, 51), self.result(2, 98, 100)]
        (advice,) = stream_advice(results, "cpu", {results[0].cell.key: 300})
        assert (advice.fits, advice.rule) == (3, 3)

    def test_one_number_of_streams_gives_no_advice(self) -> None:
        assert stream_advice([self.result(1, 50, 51)], "cpu", {}) == []
