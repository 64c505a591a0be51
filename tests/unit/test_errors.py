"""The error tree, the values, and what importing does."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys

import numpy as np
import pytest

from facefleet import errors
from facefleet.errors import ConfigError, FacefleetError, InternalError, TruncatedImageError
from facefleet.types import Detections, Faces, Outcome, Quality

ALL = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, FacefleetError)]


def test_codes_are_unique_and_the_tree_is_drawn() -> None:
    assert len({c.code for c in ALL}) == len(ALL)
    for each in ALL:
        assert each.__name__ in (errors.__doc__ or ""), f"{each.__name__} is not in the drawing"
        assert each.__doc__


@pytest.mark.parametrize("kind", ALL)
def test_message_and_hint(kind: type[FacefleetError]) -> None:
    error = kind("what", hint="do this")
    assert str(error) == "what (do this)"
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (again.message, again.hint) == ("what", "do this")


def test_internal_error_stands_outside() -> None:
    assert not issubclass(InternalError, FacefleetError)
    assert InternalError("x").message == "x"
    assert not InternalError.retryable


class TestOutcome:
    def test_exactly_one(self) -> None:
        with pytest.raises(InternalError):
            Outcome()
        with pytest.raises(InternalError):
            Outcome(1, ConfigError("x"))

    def test_unwrap_and_map(self) -> None:
        assert Outcome(2).map(lambda v: v + 1).unwrap() == 3
        failed: Outcome[int] = Outcome(error=ConfigError("no"))
        assert not failed.ok
        with pytest.raises(ConfigError):
            failed.map(lambda v: v + 1).unwrap()

        def fail(_: int) -> int:
            raise TruncatedImageError("cut")

        assert isinstance(Outcome(1).map(fail).error, TruncatedImageError)


def test_shapes_are_checked_when_made() -> None:
    box, score = np.zeros((2, 4), np.float32), np.zeros(2, np.float32)
    with pytest.raises(InternalError, match=r"Detections\.boxes"):
        Detections(box[:1], None, score, 5, 5)
    with pytest.raises(InternalError, match="float32"):
        Detections(box.astype(np.float64), None, score, 5, 5)


def test_boxes_raw_and_clamped() -> None:
    """Fault 9: the float box as it is, an int box inside the frame."""
    one = np.ones(1, np.float32)
    faces = Faces(
        name="x",
        width=100,
        height=50,
        boxes=np.array([[-3.5, 10.2, 120.0, 49.5]], np.float32),
        landmarks=np.zeros((1, 5, 2), np.float32),
        scores=one,
        embeddings=np.zeros((1, 4), np.float32),
        norms=one,
        status=np.zeros(1, np.uint8),
        quality=Quality(one, one, one, one, one),
    )
    assert faces.boxes_int.tolist() == [[0, 10, 100, 50]]
    assert faces[0].box[0] == np.float32(-3.5)
    assert faces[-1].index == 0
    with pytest.raises(IndexError):
        faces[1]


def test_importing_does_nothing() -> None:
    """Fault 37: no thread, no device, no heavy library."""
    code = (
        "import sys, threading, facefleet, facefleet.config, facefleet.errors, facefleet.types;"
        "heavy = {'cv2', 'openvino', 'onnxruntime', 'onnx', 'pyarrow', 'PIL'} & set(sys.modules);"
        "print(heavy, threading.active_count()); sys.exit(bool(heavy) or threading.active_count() != 1)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_public_names_resolve() -> None:
    import facefleet

    for name in facefleet.__all__:
        assert getattr(facefleet, name).__doc__
    with pytest.raises(AttributeError, match="nothing"):
        _ = facefleet.nothing
    assert "Engine" in dir(facefleet)
