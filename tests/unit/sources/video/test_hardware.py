"""NVDEC: chosen by name, never left silently. Decoding with it needs a GPU and is skipped without one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from facefleet.errors import BackendUnavailableError, ConfigError, CorruptVideoError
from facefleet.sources.video import LiveStream, StreamOptions, VideoFile
from tests.conftest import skip_without
from tests.unit.sources.video.make import squares, write_video
from tests.unit.sources.video.test_stream import wait_for


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_video(tmp_path_factory.mktemp("video") / "clip.mp4", squares(20))


def has_nvdec(path: Path) -> bool:
    try:
        with VideoFile(path, decoder="cuda"):
            return True
    except BackendUnavailableError:
        return False


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "CPU", ""])
def test_unknown_decoders_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="decoder"):
        VideoFile("clip.mp4", decoder=name)
    with pytest.raises(ConfigError, match="decoder"):
        StreamOptions(decoder=name)


def test_without_a_gpu_it_says_so_and_does_not_fall_back(clip: Path, tmp_path: Path) -> None:
    if has_nvdec(clip):
        pytest.skip("there is a GPU with NVDEC here")
    with pytest.raises(BackendUnavailableError, match="NVDEC") as caught, VideoFile(clip, decoder="cuda:0"):
        pass
    assert "decoder cpu" in caught.value.hint
    (tmp_path / "text.mp4").write_text("no video\n" * 50)
    with pytest.raises(CorruptVideoError), VideoFile(tmp_path / "text.mp4", decoder="cuda"):
        pass


def test_a_stream_says_so_without_its_password(clip: Path) -> None:
    if has_nvdec(clip):
        pytest.skip("there is a GPU with NVDEC here")
    stream = LiveStream("rtsp://ada:secret@127.0.0.1:1/x", StreamOptions(decoder="cuda", first_wait_s=0.05))
    try:
        assert wait_for(lambda: stream.status().failures >= 1)
        assert "secret" not in stream.status().error
    finally:
        stream.close()


def test_nvdec_gives_the_frames_of_the_cpu(clip: Path) -> None:
    if not has_nvdec(clip):
        skip_without("gpu", "no GPU with NVDEC")
    with VideoFile(clip) as video:
        expected = list(video)
    with VideoFile(clip, decoder="cuda") as video:
        frames = list(video)
    assert [(frame.pts, frame.cut) for frame in frames] == [(frame.pts, frame.cut) for frame in expected]
    for ours, theirs in zip(frames, expected, strict=True):
        assert np.abs(ours.image.pixels.astype(int) - theirs.image.pixels).mean() < 2  # chroma is stored otherwise
