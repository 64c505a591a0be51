"""Batches that follow a latency target."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from facefleet import Engine, Settings
from facefleet.batching import Batcher, BatchPolicy, LatencyCurve
from facefleet.config import BatchSettings, RuntimeSettings
from facefleet.pipeline.adapting import Adapter, buckets_up_to, measured_curve
from facefleet.pipeline.local import LocalEngine


def test_buckets() -> None:
    assert buckets_up_to(1) == (1,)
    assert buckets_up_to(16) == (1, 2, 4, 8, 16)
    assert buckets_up_to(24) == (1, 2, 4, 8, 16, 24)


def test_every_bucket_is_measured_the_largest_first() -> None:
    ran: list[int] = []
    curve = measured_curve(ran.append, 8)
    assert ran == [8] * 4 + [4] * 4 + [2] * 4 + [1] * 4
    assert curve.known


def test_batches_grow_when_more_comes_than_small_ones_can_do() -> None:
    curve = LatencyCurve((1, 2, 4, 8, 16))
    for bucket in curve.buckets:
        curve.seed(bucket, 0.010 + 0.0005 * bucket)
    batcher: Batcher[int] = Batcher(BatchPolicy(16, 0.25))
    adapter = Adapter(batcher, curve, 0.1, 1)
    now = 0.0
    for step in range(400):  # 800 a second: 95 a second is what batches of one can do
        now += 0.01
        adapter.arrived(8, now)
        adapter.ran([now - 0.02] * 8, 0.014, now)
        del step
    assert batcher.policy.max_batch >= 8
    assert batcher.policy.max_delay_s <= 0.1


def test_an_engine_with_a_target_gives_the_same_answers(home: Path, engine: Engine, astronaut: np.ndarray) -> None:
    settings = Settings(
        home=str(home),
        batch=BatchSettings(detect=4, embed=8, target_p99_ms=500.0),
        runtime=RuntimeSettings(backend="openvino"),
    )
    with Engine(settings) as opened:
        running = opened._running
        assert isinstance(running, LocalEngine)
        assert set(running.scheduler._adapters) == {"detect", "embed"}
        for faces in opened.map([astronaut] * 24):
            assert np.array_equal(faces.unwrap().embeddings, engine.analyze(astronaut).embeddings)
        assert running.scheduler._embed.policy.max_batch <= 8
