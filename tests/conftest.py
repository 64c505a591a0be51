"""What all tests share: the data folder, a store of their own, small pictures, engines."""

from __future__ import annotations

import importlib.util
import io
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as PILImage

REQUIRED = frozenset(filter(None, os.environ.get("FACEFLEET_REQUIRE", "").split(",")))


# A shell starts what runs in its background with SIGINT ignored, and so would every command that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def skip_without(what: str, reason: str) -> None:
    """Skip, unless `FACEFLEET_REQUIRE` names `what`: then fail."""
    if what in REQUIRED:
        pytest.fail(f"{what} is required: {reason}")
    pytest.skip(reason)


def need_video() -> None:
    """Skip where the extra ``[video]`` is not installed."""
    for module in ("av", "lap", "matplotlib"):
        if importlib.util.find_spec(module) is None:
            skip_without("video", f'{module} is not installed: pip install "facefleet[video]"')


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder with real pictures, labels and models."""
    folder = os.environ.get("FACEFLEET_DATA")
    if not folder or not Path(folder).is_dir():
        skip_without("data", "FACEFLEET_DATA does not name the folder with test data")
    assert folder
    return Path(folder).resolve()


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that prepared models are kept in for the whole run."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """No setting of the machine's user gets into a test."""
    for name in list(os.environ):
        if name.startswith("FACEFLEET_") and name not in ("FACEFLEET_DATA", "FACEFLEET_REQUIRE"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("FACEFLEET_HOME", str(home))


@pytest.fixture(scope="session")
def astronaut() -> np.ndarray:
    """(512, 512, 3) uint8 RGB: NASA's portrait of Eileen Collins, one face, from scikit-image."""
    from skimage import data

    return np.ascontiguousarray(data.astronaut())


@pytest.fixture(scope="session")
def astronaut_jpeg(astronaut: np.ndarray) -> bytes:
    """The same as a JPEG."""
    return encode(astronaut, "JPEG", quality=95)


@pytest.fixture(scope="session")
def engine(home: Path) -> Iterator[object]:
    """The default pack on the default backend, shared by tests that only read from it."""
    from facefleet import Engine, Settings

    with Engine(Settings(home=str(home))) as opened:
        yield opened


def encode(pixels: np.ndarray, format_name: str, **options: object) -> bytes:
    """Encode an array with Pillow."""
    stream = io.BytesIO()
    PILImage.fromarray(pixels).save(stream, format_name, **options)
    return stream.getvalue()


def smooth_picture(height: int = 64, width: int = 48, *, seed: int = 0) -> np.ndarray:
    """(h, w, 3) uint8: a smooth random picture without symmetry, which JPEG keeps well."""
    import cv2

    coarse = np.random.default_rng(seed).integers(0, 256, (4, 4, 3)).astype(np.uint8)
    return cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
