"""What stages did is told while somebody records, and only then."""

from __future__ import annotations

from pathlib import Path

import pytest

from facefleet import Engine, Settings
from facefleet.bench.pipeline import stage_figures
from facefleet.config.settings import BatchSettings
from facefleet.pipeline.observed import observed, recorded
from facefleet.pipeline.stages import Stages


def test_an_engine_opened_meanwhile_tells_everything(home: Path, astronaut_jpeg: bytes) -> None:
    settings = Settings(home=str(home), batch=BatchSettings(embed=4))
    with recorded() as recorder, Engine(settings) as engine:
        outcomes = list(engine.map([astronaut_jpeg] * 5))
    assert [len(outcome.unwrap()) for outcome in outcomes] == [1] * 5
    by_stage = {
        stage: [run for run in recorder.runs if run.stage == stage]
        for stage in ("load", "decode", "detect", "align", "embed")
    }
    assert [len(by_stage[stage]) for stage in ("load", "decode", "align")] == [5, 5, 5]
    for stage in ("detect", "embed"):
        photos = [photo for run in by_stage[stage] for photo in run.photos]
        assert sorted(photos) == [1, 2, 3, 4, 5]
        for run in by_stage[stage]:
            assert len(run.queued_s) == len(run.photos)
            assert all(at <= run.start_s + 1e-3 for at in run.queued_s)
            assert any(part.name == "compute" for part in run.parts)
    figures = stage_figures(recorder.runs)
    assert list(figures) == ["load", "decode", "detect", "align", "embed"]
    assert figures["embed"]["items"] == 5
    assert sum(int(size) * count for size, count in figures["embed"]["batches"].items()) == 5
    assert figures["detect"]["parts_ms"]["compute"] > 0


def test_failures_are_told_and_stay_failures(home: Path) -> None:
    with recorded() as recorder, Engine(Settings(home=str(home))) as engine:
        (outcome,) = engine.map([b"no picture"])
    assert not outcome.ok
    assert [run.stage for run in recorder.runs] == ["load"]


def test_nobody_records(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = object.__new__(Stages)
    assert observed(stages) is stages
