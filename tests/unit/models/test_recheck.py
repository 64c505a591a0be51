"""A detector in a lower precision asks the same network in fp32 about what it is not sure of."""

from __future__ import annotations

import numpy as np
import pytest

from facefleet import Engine, Settings
from facefleet.config import DetectSettings
from facefleet.models.detectors import Candidates, Detector
from facefleet.models.drawn import drawn_scene


class FakeRunner:
    """Remembers what it was asked."""

    output_names = ("score",)

    def __init__(self):
        self.asked, self.open = [], False

    class options:  # noqa: N801
        warm = ((32, 32),)

    def __enter__(self):
        self.open = True
        return self

    def __exit__(self, *_):
        self.open = False

    def run(self, pictures):
        self.asked.append([int(picture[0, 0, 0]) for picture in pictures])
        return (np.zeros((len(pictures), 1, 1), np.float32),)

    def read(self, pictures, reader, passed_on=frozenset()):
        outputs = self.run(pictures)
        return [reader(outputs, row) for row in range(len(pictures))]


class FakeSpec:
    family, nms = "scrfd", 0.4


BOX = [0, 0, 10, 10]
ANSWERS = {
    1: [(BOX, 0.9)],
    2: [(BOX, 0.65)],
    3: [(BOX, 0.9), ([1, 0, 11, 10], 0.6)],  # another anchor on a face that is sure
    4: [(BOX, 0.9), ([20, 20, 30, 30], 0.6)],
    5: [],
    6: [([5, 5, 5, 9], 0.6)],  # no area: no face
    7: [(BOX, 0.9), ([1, 0, 11, 10], 0.899)],  # rounding decides which anchor it is
    8: [(BOX, 0.9), ([20, 20, 30, 30], 0.9)],  # as sure as another face
    9: [([0, 0, 300, 300], 0.72)],
    10: [([0, 0, 300, 300], 0.78)],
}


@pytest.fixture
def detector(monkeypatch):
    import facefleet.models.detectors.detector as module

    class Head:
        passed_on: frozenset[str] = frozenset()
        surer, tie = 0.05, 0.002

        def candidates(self, outputs, row, width, height, threshold):
            found = ANSWERS[asked[-1].asked[-1][row]] if asked[-1].asked[-1][row] else []
            boxes = np.array([box for box, _ in found], np.float32).reshape(-1, 4)
            return Candidates(boxes, None, np.array([score for _, score in found], np.float32), 0.0)

    asked = []

    class Watched(FakeRunner):
        def run(self, pictures):
            asked.append(self)
            return super().run(pictures)

    monkeypatch.setattr(module, "create_head", lambda family, outputs: Head())
    fast, exact = Watched(), Watched()
    with Detector(fast, FakeSpec(), exact=exact, recheck=0.7) as made:
        fast.asked.clear()
        exact.asked.clear()
        yield made, fast, exact
    assert not fast.open
    assert not exact.open


def batch(*numbers):
    return np.stack([np.full((32, 32, 3), number, np.uint8) for number in numbers])


def test_only_what_is_not_sure_is_asked_again(detector):
    made, fast, exact = detector
    found = made.infer(batch(1, 2, 3, 4, 5, 6), 0.5)
    assert fast.asked == [[1, 2, 3, 4, 5, 6]]
    assert exact.asked == [[2, 4]]
    assert [len(each.scores) for each in found] == [1, 1, 2, 2, 0, 1]


def test_a_tie_of_two_anchors_is_asked_again(detector):
    made, _, exact = detector
    made.infer(batch(7, 8), 0.5)
    assert exact.asked == [[7]]


def test_a_large_face_has_to_be_surer(detector):
    made, _, exact = detector
    made.infer(batch(9, 10, 9), 0.5, [1.0, 1.0, 2.0])  # the last is 150 pixels of its picture
    assert exact.asked == [[9]]


def test_nothing_is_asked_where_all_is_sure(detector):
    made, _, exact = detector
    made.infer(batch(1, 3, 5), 0.5)
    assert exact.asked == []


def test_the_engine_answers_as_in_fp32_where_it_is_not_sure(home):
    """With every face below the bound the boxes are those of fp32, to the last bit."""
    from facefleet.backends import registry
    from facefleet.config import RuntimeSettings

    if not registry._cpu_has_bf16():
        pytest.skip("this CPU has no bf16")
    scene = drawn_scene(640, 640)
    boxes = []
    for precision, recheck in (("fp32", 0.7), ("bf16", 1.0), ("bf16", 0.0)):
        runtime = RuntimeSettings(backend="openvino", precision=precision)
        settings = Settings(home=str(home), runtime=runtime, detect=DetectSettings(recheck=recheck))
        with Engine(settings) as engine:
            boxes.append(engine.analyze(scene).boxes)
    assert np.array_equal(boxes[0], boxes[1])
    assert not np.array_equal(boxes[0], boxes[2])
