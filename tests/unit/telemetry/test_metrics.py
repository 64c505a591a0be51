"""Metrics: what is recorded is what is shown, alone and folded over worker processes."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import REGISTRY, Counter, Gauge
from prometheus_client.parser import text_string_to_metric_families

from facefleet.errors import (
    CancelledError,
    ClosedError,
    CorruptImageError,
    DeadlineError,
    FacefleetError,
    InferenceError,
    InternalError,
    QueueFullError,
)
from facefleet.telemetry.devices import DeviceLoad
from facefleet.telemetry.metrics import DECLARATIONS, OUTCOMES, WORKER_STATES, markdown_table
from facefleet.telemetry.record import (
    Answers,
    Batcher,
    Bound,
    Cache,
    Stage,
    WorkerPlace,
    engine_rebuilt,
    outcome_of,
    record_devices,
)
from facefleet.telemetry.registry import Metrics

ROOT = Path(__file__).parents[3]


def shown(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """What a Prometheus server would read."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return shown(metrics).get((name, tuple(sorted(labels.items()))))


class TestDeclarations:
    def test_names_and_texts(self) -> None:
        assert len({declared.name for declared in DECLARATIONS}) == len(DECLARATIONS)
        for declared in DECLARATIONS:
            assert declared.name.startswith("facefleet_")
            assert (declared.kind == "counter") == declared.name.endswith("_total")
            assert declared.help.endswith(".")
            assert declared.tune
            assert bool(declared.buckets) == (declared.kind == "histogram")
            assert list(declared.buckets) == sorted(set(declared.buckets))
            if any(word in declared.name for word in ("_duration", "_wait", "_age")):
                assert declared.name.endswith("_seconds")

    def test_documentation_is_of_these_declarations(self) -> None:
        assert markdown_table() in (ROOT / "docs" / "metrics.md").read_text()

    def test_every_metric_is_shown_with_type_and_help(self) -> None:
        families = {family.name: family for family in text_string_to_metric_families(Metrics().render().decode())}
        for declared in DECLARATIONS:
            family = families[declared.name.removesuffix("_total")]
            assert (family.type, family.documentation) == (declared.kind, declared.help)

    def test_undeclared(self) -> None:
        with pytest.raises(InternalError, match="declared"):
            Metrics().instrument("facefleet_nothing", Gauge)
        with pytest.raises(InternalError, match="no gauge"):
            Metrics().instrument("facefleet_images_total", Gauge)


class TestRecording:
    def test_batches(self) -> None:
        metrics = Metrics()
        stage = Bound(Stage, metrics)["detect"]
        stage.batch(5, 8, 0.045)
        stage.batch(8, 8, 0.003)
        stage.took(0.004)
        assert value(metrics, "facefleet_stage_batch_size_sum", stage="detect") == 13
        assert value(metrics, "facefleet_stage_batch_size_count", stage="detect") == 2
        assert value(metrics, "facefleet_stage_batch_size_bucket", stage="detect", le="4.0") == 0
        assert value(metrics, "facefleet_stage_batch_size_bucket", stage="detect", le="8.0") == 2
        assert value(metrics, "facefleet_stage_padding_rows_total", stage="detect") == 3
        assert value(metrics, "facefleet_stage_duration_seconds_count", stage="detect") == 3
        assert value(metrics, "facefleet_stage_duration_seconds_sum", stage="detect") == pytest.approx(0.052)

    def test_queues(self) -> None:
        metrics = Metrics()
        stages = Bound(Stage, metrics)
        stages["embed"].queue(7, 0.25)
        stages["embed"].waited(0.03)
        stages["embed"].requeued(3)
        stages["embed"].quarantined()
        assert stages["embed"] is stages["embed"]
        assert value(metrics, "facefleet_stage_queue_depth", stage="embed") == 7
        assert value(metrics, "facefleet_stage_queue_age_seconds", stage="embed") == 0.25
        assert value(metrics, "facefleet_stage_queue_wait_seconds_sum", stage="embed") == 0.03
        assert value(metrics, "facefleet_requeues_total", stage="embed") == 3
        assert value(metrics, "facefleet_quarantined_total", stage="embed") == 1

    @pytest.mark.parametrize(
        ("error", "outcome"),
        [
            (DeadlineError("late"), "expired"),
            (CancelledError("taken back"), "cancelled"),
            (QueueFullError("full"), "rejected"),
            (ClosedError("closed"), "rejected"),
            (InferenceError("a run failed"), "failed_retryable"),
            (CorruptImageError("damaged"), "failed_permanent"),
            (InternalError("a bug"), "failed_permanent"),
            (ZeroDivisionError(), "failed_permanent"),
        ],
    )
    def test_outcome_of_an_error(self, error: Exception, outcome: str) -> None:
        metrics = Metrics()
        assert outcome_of(error) == outcome
        Answers(metrics).answered(error, seconds=0.5)
        code = error.code if isinstance(error, (FacefleetError, InternalError)) else "internal"
        assert value(metrics, "facefleet_outcomes_total", outcome=outcome, code=code) == 1
        assert value(metrics, "facefleet_images_total") == 0
        assert value(metrics, "facefleet_image_duration_seconds_count") == 1

    def test_answers(self) -> None:
        metrics = Metrics()
        answers = Answers(metrics)
        answers.answered(None, faces=3, seconds=0.061)
        answers.answered(None)
        assert value(metrics, "facefleet_outcomes_total", outcome="ok", code="") == 1
        assert value(metrics, "facefleet_outcomes_total", outcome="no_face", code="") == 1
        assert value(metrics, "facefleet_images_total") == 2
        assert value(metrics, "facefleet_faces_total") == 3
        assert value(metrics, "facefleet_image_duration_seconds_count") == 1
        for outcome in OUTCOMES:  # so that a rate over them has a beginning
            assert value(metrics, "facefleet_outcomes_total", outcome=outcome, code="") is not None

    def test_worker_states(self) -> None:
        metrics = Metrics()
        place = Bound(WorkerPlace, metrics)["cpu:0"]

        def states() -> dict[str, str]:
            return {
                dict(labels)["state"]: dict(labels)["role"]
                for (name, labels), found in shown(metrics).items()
                if name == "facefleet_worker_state" and found == 1
            }

        place.state("photo", "starting")
        place.state("photo", "ready")
        place.restarted()
        assert states() == {"ready": "photo"}
        place.state("embed", "draining")
        assert states() == {"draining": "embed"}
        place.gone()
        assert states() == {}
        assert value(metrics, "facefleet_worker_restarts_total", worker="cpu:0") == 1
        with pytest.raises(InternalError, match="warming"):
            place.state("embed", "happy")

    def test_states_are_those_of_workers(self) -> None:
        from facefleet.workers.worker import WorkerState

        assert {state.value for state in WorkerState} == set(WORKER_STATES)

    def test_batcher_is_shown_while_it_runs(self) -> None:
        metrics = Metrics()
        batcher = Bound(Batcher, metrics)["fleet"]
        name = "facefleet_batcher_tick_age_seconds"
        assert value(metrics, name, batcher="fleet") is None
        batcher.tick()
        first = value(metrics, name, batcher="fleet")
        second = value(metrics, name, batcher="fleet")
        assert first is not None
        assert second is not None
        assert 0 <= first < second
        batcher.stopped()
        batcher.stopped()
        assert value(metrics, name, batcher="fleet") is None

    def test_caches_devices_engines(self) -> None:
        metrics = Metrics()
        cache = Bound(Cache, metrics)["features"]
        cache.hit()
        cache.miss()
        cache.miss()
        engine_rebuilt("openvino", metrics)
        record_devices([DeviceLoad("cuda:0", "H", 0.5, 3, 8, 61.0), DeviceLoad("cpu:0")], metrics)
        assert value(metrics, "facefleet_cache_hits_total", cache="features") == 1
        assert value(metrics, "facefleet_cache_misses_total", cache="features") == 2
        assert value(metrics, "facefleet_engine_rebuilds_total", backend="openvino") == 1
        assert value(metrics, "facefleet_device_memory_used_bytes", device="cuda:0") == 3
        assert value(metrics, "facefleet_device_memory_limit_bytes", device="cuda:0") == 8
        assert value(metrics, "facefleet_device_utilization_ratio", device="cuda:0") == 0.5
        assert value(metrics, "facefleet_device_temperature_celsius", device="cuda:0") == 61
        assert value(metrics, "facefleet_device_utilization_ratio", device="cpu:0") is None

    def test_threads_lose_nothing(self) -> None:
        metrics = Metrics()
        stages, answers = Bound(Stage, metrics), Answers(metrics)

        def work() -> None:
            for _ in range(500):
                stages["detect"].batch(3, 4, 0.01)
                answers.answered(None, faces=2)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert value(metrics, "facefleet_stage_batch_size_sum", stage="detect") == 12000
        assert value(metrics, "facefleet_stage_padding_rows_total", stage="detect") == 4000
        assert value(metrics, "facefleet_faces_total") == 8000


class TestWorkers:
    def test_parent_shows_the_sum(self) -> None:
        parent, workers = Metrics(), [Metrics(), Metrics()]
        Bound(Stage, parent)["detect"].batch(1, 1, 0.01)
        for number, worker in enumerate(workers):
            Bound(Stage, worker)["detect"].batch(8, 8, 0.01)
            Bound(Stage, worker)["detect"].queue(4, 0.5 + number)
            snapshot = json.loads(json.dumps(worker.snapshot()))
            parent.fold(f"cpu:{number}", 1, snapshot)
            parent.fold(f"cpu:{number}", 1, snapshot)  # the same again changes nothing
        assert value(parent, "facefleet_stage_batch_size_sum", stage="detect") == 17
        assert value(parent, "facefleet_stage_batch_size_bucket", stage="detect", le="1.0") == 1
        assert value(parent, "facefleet_stage_batch_size_bucket", stage="detect", le="+Inf") == 3
        assert value(parent, "facefleet_stage_queue_depth", stage="detect") == 8
        assert value(parent, "facefleet_stage_queue_age_seconds", stage="detect") == 1.5

    def test_older_and_late_snapshots_are_left_out(self) -> None:
        parent, worker = Metrics(), Metrics()
        count = worker.instrument("facefleet_faces_total", Counter).inc
        count(5)
        old = worker.snapshot()
        count(5)
        parent.fold("cpu:0", 1, worker.snapshot())
        parent.fold("cpu:0", 1, old)
        assert value(parent, "facefleet_faces_total") == 10
        parent.retire("cpu:0", 1)
        parent.retire("cpu:0", 1)
        count(5)
        parent.fold("cpu:0", 1, worker.snapshot())
        assert value(parent, "facefleet_faces_total") == 10

    def test_gauges_end_with_their_process(self) -> None:
        parent, worker = Metrics(), Metrics()
        Bound(Stage, worker)["embed"].queue(9, 3.0)
        parent.fold("cpu:0", 1, worker.snapshot())
        assert value(parent, "facefleet_stage_queue_depth", stage="embed") == 9
        parent.retire("cpu:0", 1)
        assert value(parent, "facefleet_stage_queue_depth", stage="embed") is None

    @pytest.mark.parametrize(
        "snapshot",
        [{}, {"version": 2, "number": 1, "samples": []}, {"version": 1, "number": 1, "samples": [["a"]]}, [], None],
    )
    def test_what_is_no_snapshot(self, snapshot: object) -> None:
        parent, worker = Metrics(), Metrics()
        worker.instrument("facefleet_faces_total", Counter).inc(4)
        parent.fold("cpu:0", 1, worker.snapshot())
        with pytest.raises(InternalError, match="cpu:0"):
            parent.fold("cpu:0", 1, snapshot)  # type: ignore[arg-type]
        assert value(parent, "facefleet_faces_total") == 4

    @settings(max_examples=60, deadline=None)
    @given(
        st.lists(
            st.tuples(st.sampled_from(["count", "fold", "late", "retire", "replace", "reload"]), st.integers(0, 2)),
            max_size=40,
        )
    )
    def test_totals_never_fall_and_end_exact(self, steps: list[tuple[str, int]]) -> None:
        """Workers count, report, die and are replaced in any order: what was reported stays counted."""
        parent = Metrics()
        generation, processes = [1, 1, 1], [Metrics() for _ in range(3)]
        reported: dict[tuple[int, int], float] = {}
        dead: set[tuple[int, int]] = set()
        counts: dict[tuple[int, int], float] = {}
        total = 0.0
        last: list[dict[str, object] | None] = [None] * 3
        for step, place in steps:
            key = (place, generation[place])
            if step == "count":
                Bound(Stage, processes[place])["detect"].batch(2, 2, 0.01)
                counts[key] = counts.get(key, 0) + 2
            elif step == "fold":
                last[place] = processes[place].snapshot()
                parent.fold(f"cpu:{place}", generation[place], last[place])
                if key not in dead:
                    reported[key] = counts.get(key, 0)
            elif step == "late" and last[place] is not None:
                parent.fold(f"cpu:{place}", generation[place], last[place])
            elif step == "retire":
                parent.retire(f"cpu:{place}", generation[place])
                dead.add(key)
            elif step in ("replace", "reload"):
                if step == "replace":
                    parent.retire(f"cpu:{place}", generation[place])
                generation[place] += 1
                processes[place] = Metrics()
                last[place] = None
            now = value(parent, "facefleet_stage_batch_size_sum", stage="detect") or 0.0
            assert now >= total
            assert now == sum(reported.values())
            total = now


class TestProcess:
    def test_importing_is_cheap_and_starts_nothing(self) -> None:
        code = (
            "import sys, threading, facefleet, facefleet.telemetry\n"
            "heavy = {'prometheus_client', 'opentelemetry', 'pynvml', 'psutil', 'rich'} & set(sys.modules)\n"
            "import facefleet.telemetry.record\n"
            "print(sorted(heavy), threading.active_count())"
        )
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert ended.stdout.split("\n")[0] == "[] 1"

    def test_global_registry_is_left_alone(self) -> None:
        import facefleet.telemetry.record  # noqa: F401

        names = {family.name for family in REGISTRY.collect()}
        assert not any(name.startswith("facefleet") for name in names)
