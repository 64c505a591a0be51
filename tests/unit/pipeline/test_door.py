"""The way into a pipeline: what is counted of who goes in and out."""

from __future__ import annotations

import pytest

from facefleet.errors import QueueFullError
from facefleet.pipeline.door import Door
from facefleet.pipeline.photo import Photo
from facefleet.telemetry.record import Answers
from facefleet.telemetry.registry import Metrics
from facefleet.types import Outcome
from tests.unit.telemetry.test_metrics import value


def test_a_probe_takes_its_place_but_is_not_counted() -> None:
    metrics = Metrics()
    door = Door(max_images=1, max_bytes=1 << 20, answers=Answers(metrics))
    probe, photo = Photo(b"", keep_chips=False, counted=False), Photo(b"", keep_chips=False)
    door.enter(probe, wait=False)
    assert door.inside == 1
    with pytest.raises(QueueFullError):
        door.enter(photo, wait=False)
    door.leave(probe, Outcome(error=QueueFullError("any")))
    assert door.inside == 0
    assert value(metrics, "facefleet_outcomes_total", outcome="rejected", code="queue_full") == 1
    assert value(metrics, "facefleet_image_duration_seconds_count") == 0
    door.enter(photo, wait=False)
    door.leave(photo, Outcome(error=QueueFullError("any")))
    assert value(metrics, "facefleet_image_duration_seconds_count") == 1
