from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from facefleet.backends.timing import COMPUTE, HOST, TRANSFER_IN, TRANSFER_OUT, WAIT, Part
from facefleet.bench.timeline import Trace, summary_lines
from facefleet.pipeline.observed import StageRun


def events(trace: Trace) -> list[dict[str, Any]]:
    document = json.loads(trace.as_json())
    assert document["displayTimeUnit"] == "ms"
    found = document["traceEvents"]
    assert isinstance(found, list)
    return found


def run(at: float, lane: int = 0) -> list[Part]:
    """10 ms on the host, 5 ms in, 20 ms of kernel, 5 ms out."""
    return [
        Part(HOST, at, 0.01, lane),
        Part(TRANSFER_IN, at + 0.01, 0.005, lane),
        Part(COMPUTE, at + 0.015, 0.02, lane),
        Part(TRANSFER_OUT, at + 0.035, 0.005, lane),
    ]


class TestRuns:
    def test_every_part_is_a_slice_on_its_stream(self) -> None:
        trace = Trace()
        trace.run("net", 0, 1, run(100.0))
        found = events(trace)
        slices = [event for event in found if event["ph"] == "X"]
        assert [event["name"] for event in slices] == [
            "run 1", "host", "transfer to device", "kernel", "transfer to host",
        ]  # fmt: skip
        assert slices[0]["ts"] == 0.0
        assert slices[0]["dur"] == pytest.approx(40_000)
        assert slices[3]["ts"] == pytest.approx(15_000)
        names = {(e["pid"], e["tid"]): e["args"]["name"] for e in found if e["name"] == "thread_name"}
        assert names[slices[0]["pid"], slices[0]["tid"]] == "host 0"
        assert names[slices[3]["pid"], slices[3]["tid"]] == "stream 0"

    def test_an_arrow_from_the_host_to_the_kernel(self) -> None:
        trace = Trace()
        for number in range(3):
            trace.run("net", number % 2, number, run(number * 0.1))
        arrows = [event for event in events(trace) if event["ph"] in "sf"]
        assert Counter(event["id"] for event in arrows) == {1: 2, 2: 2, 3: 2}
        assert all(event["bp"] == "e" for event in arrows if event["ph"] == "f")

    def test_nothing_measured_nothing_drawn(self) -> None:
        trace = Trace()
        trace.run("net", 0, 1, [])
        assert events(trace) == []
        assert trace.summary() == {}


class TestSummary:
    def test_gaps_copies_and_no_overlap_on_one_stream(self) -> None:
        trace = Trace()
        trace.run("net", 0, 1, run(0.0))
        trace.run("net", 0, 2, run(0.05))
        found = trace.summary()["net"]
        assert (found.runs, found.streams) == (2, 1)
        assert found.seconds == pytest.approx(0.09)
        assert found.gap_p50_ms == pytest.approx(30)
        assert found.gap_share == pytest.approx(0.03 / 0.07)
        assert found.copy_share == pytest.approx(20 / 60)
        assert found.copies_hidden == 0.0
        assert found.overlap == pytest.approx(1.0)

    def test_overlap_of_two_streams(self) -> None:
        trace = Trace()
        trace.run("net", 0, 1, run(0.0))
        trace.run("net", 1, 2, run(0.01))
        found = trace.summary()["net"]
        # Kernels 15-35 and 25-45 ms: 40 ms of work in 30 ms.
        assert found.overlap == pytest.approx(40 / 30)
        # Copies 10-15, 35-40 (under the second kernel), 20-25 (under the first) and 45-50.
        assert found.copies_hidden == pytest.approx(10 / 20)

    def test_waits_for_an_instance(self) -> None:
        trace = Trace()
        trace.run("net", 0, 1, [Part(WAIT, 0.0, 0.004), Part(COMPUTE, 0.004, 0.01)])
        trace.run("net", 0, 2, [Part(WAIT, 0.02, 0.000001), Part(COMPUTE, 0.03, 0.01)])
        found = trace.summary()["net"]
        assert found.waits == 1
        assert found.wait_ms == pytest.approx(4.0)
        (line,) = summary_lines(trace.summary())
        assert "2 runs on 1 lanes" in line
        assert "1 waits for an instance, 4.00 ms each" in line


class TestStages:
    def test_requests_queues_and_arrows_that_follow_a_photo(self) -> None:
        trace = Trace()
        trace.stages(
            [
                StageRun("load", "a", 0.0, 0.001, (1,)),
                StageRun("decode", "a", 0.001, 0.004, (1,)),
                StageRun("decode", "b", 0.001, 0.004, (2,)),
                StageRun("detect", "a", 0.006, 0.01, (1, 2), (0.005, 0.0055), (Part(COMPUTE, 0.006, 0.009),)),
                StageRun("embed", "b", 0.02, 0.01, (1, 1, 2), (0.017, 0.017, 0.018)),
            ]
        )
        found = events(trace)
        slices = Counter(event["name"] for event in found if event["ph"] == "X")
        assert slices == {"load": 1, "decode": 2, "detect x2": 1, "embed x3": 1, "kernel": 1}
        first = [event["ph"] for event in found if event.get("cat") == "flow" and event["id"] == 1_000_001]
        assert first == ["s", "t", "t", "f"]
        queues = [event for event in found if event["name"] == "queue embed"]
        assert Counter(event["ph"] for event in queues) == {"b": 3, "e": 3}
        photo = [event for event in found if event["name"] == "photo 1"]
        assert [event["ph"] for event in photo] == ["b", "e"]
        assert photo[1]["ts"] == pytest.approx(30_000)
        assert trace.summary()["networks"].runs == 1
