"""What a profile says about the queue, and whose processor time counts."""

from __future__ import annotations

import subprocess
import sys

import pytest

from facefleet.bench.sampler import Sampler
from facefleet.bench.tune.search import Measured, Tried
from facefleet.bench.tune.space import Choice, Layout
from facefleet.bench.tune.tune import Goal, places_within
from facefleet.telemetry.devices import processor_seconds


@pytest.mark.parametrize(
    ("layout", "in_flight", "expected"),
    [
        (Layout("cpu"), 2, 40),  # 100 a second, twice 0.2 s
        (Layout("cpu"), 64, 64),  # never fewer than were in flight
        (Layout("cpu:0,1", "data"), 2, 20),  # a device each
    ],
)
def test_twice_as_many_places_as_are_answered_within_the_target(layout: Layout, in_flight: int, expected: int) -> None:
    choice = Choice(layout, "fp32", 1, 4, 0.0, in_flight)
    best = Tried(choice, [Measured(100.0, 0.02, 0.05)])
    places = places_within(Goal(p99_s=0.2), best)
    assert choice.settings(2, places)["batch.max_images"] == expected
    assert choice.settings(2)["batch.max_images"] == -(-in_flight // (2 if "," in layout.devices else 1))


def test_the_processor_time_of_workers_counts() -> None:
    busy = "import sys, time\nwhile time.process_time() < 0.3: pass\nprint(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", busy]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        with Sampler(workers=lambda: [worker.pid]) as sampler:
            assert worker.stdout is not None
            worker.stdout.readline()
        assert processor_seconds(worker.pid) >= 0.25
        assert worker.stdin is not None
        worker.stdin.close()
    assert sampler.use.cpu * sampler.use.seconds >= 0.2
    assert processor_seconds(2**30) == 0.0
