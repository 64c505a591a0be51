"""Every file of the data folder's videos: the demuxer's times, upright, in right colors, or a typed error."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from facefleet.errors import CorruptVideoError, EmptyInputError, FacefleetError, InputError
from facefleet.sources.video import Sampling, VideoFile
from tests.conftest import need_video, skip_without

BROKEN = {
    "empty.mp4": EmptyInputError,
    "text.mp4": CorruptVideoError,
    "face_trunc_tail.mp4": CorruptVideoError,  # its index is at the end, which is missing
    "hamilton_trunc60.mp4": CorruptVideoError,
}
DAMAGED = {"face_bitflip.mp4", "face_faststart_trunc60.mp4", "face_trunc_tail.avi", "face_trunc_tail.webm"}
BT709, BT601 = (0.2126, 0.0722), (0.299, 0.114)


@pytest.fixture(autouse=True, scope="module")
def _video() -> None:
    need_video()


@pytest.fixture(scope="module")
def videos(data_dir: Path) -> list[Path]:
    found = [path for path in sorted((data_dir / "videos").rglob("*")) if path.is_file()]
    assert len(found) >= 25
    return found


@pytest.fixture(scope="module")
def ffprobe() -> str:
    command = shutil.which("ffprobe")
    if command is None:
        skip_without("ffprobe", "ffprobe is not installed; on Debian: apt install ffmpeg")
    assert command
    return command


def probed(ffprobe: str, path: Path, stream: int) -> list[int]:
    """Timestamps of every frame, as ffprobe lists them."""
    fields = ["-select_streams", str(stream), "-show_entries", "frame=pts", "-of", "json"]
    command = [ffprobe, "-v", "quiet", "-threads", "1", *fields, str(path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return [frame["pts"] for frame in json.loads(done.stdout)["frames"]]


def test_every_file_gives_ffprobes_times_or_a_typed_error(videos: list[Path], ffprobe: str) -> None:
    for path in videos:
        if path.name in BROKEN:
            with pytest.raises(BROKEN[path.name]), VideoFile(path):
                pass
            continue
        with VideoFile(path) as video:
            frames = [(frame.pts, frame.time_s, frame.image.pixels.shape) for frame in video]
            damaged = bool(video.damage)
            stream, (above, below) = video.info.stream, video.info.time_base
            size = (video.info.height, video.info.width, 3)
        assert [pts for pts, _, _ in frames] == probed(ffprobe, path, stream), path.name
        assert all(time_s == pytest.approx(pts * above / below) for pts, time_s, _ in frames), path.name
        assert {shape for _, _, shape in frames} == {size}, path.name
        assert damaged == (path.name in DAMAGED), (path.name, damaged)


def test_sampling_never_invents_a_frame(videos: list[Path]) -> None:
    for path in videos:
        if path.name in BROKEN or path.name in DAMAGED:
            continue
        with VideoFile(path) as video:
            whole = [frame.pts for frame in video]
        for sampling in (Sampling(every=7), Sampling(fps=5), Sampling(keyframes=True), Sampling(end_s=0.5)):
            with VideoFile(path, sampling) as video:
                got = [frame.pts for frame in video]
            assert got, (path.name, sampling)
            assert set(got) <= set(whole)
            assert got == sorted(got)
            if sampling.every == 7:
                assert got == whole[::7], path.name


def pixels(path: Path) -> list[np.ndarray]:
    with VideoFile(path) as video:
        return [frame.image.pixels for frame in video]


@pytest.mark.parametrize(("degrees", "turns"), [(90, 3), (180, 2), (270, 1)])
def test_rotation_is_applied_exactly_once(data_dir: Path, degrees: int, turns: int) -> None:
    """``rotN``: upright pixels marked as turned; ``phone_rotN``: turned pixels marked so, as phones record them."""
    folder = data_dir / "videos/derived"
    upright = pixels(folder / "face_320x180.mp4")
    marked = pixels(folder / f"face_rot{degrees}.mp4")
    assert len(marked) == len(upright)
    for ours, expected in zip(marked, upright, strict=True):
        assert np.array_equal(ours, np.rot90(expected, turns))
    for ours, expected in zip(pixels(folder / f"face_phone_rot{degrees}.mp4"), upright, strict=True):
        assert ours.shape == expected.shape
        assert np.abs(ours.astype(int) - expected).mean() < 6  # it was encoded once more


def test_turned_videos_have_the_faces_of_the_upright_one(data_dir: Path, engine: object) -> None:
    folder = data_dir / "videos/derived"

    def faces(name: str) -> list[np.ndarray]:
        with VideoFile(folder / name, Sampling(every=15)) as video:
            return [engine.analyze(frame.image).boxes for frame in video]  # type: ignore[attr-defined]

    expected = faces("face_320x180.mp4")
    assert sum(map(len, expected)) >= 4
    for degrees in (90, 180, 270):
        got = faces(f"face_phone_rot{degrees}.mp4")
        near = [np.abs(one[:, None] - other[None]).max(axis=2) for one, other in zip(expected, got, strict=True)]
        matched = sum(int((each.min(axis=1) < 6).sum()) for each in near if each.size)
        assert matched >= 0.8 * sum(map(len, expected)), degrees


@pytest.mark.parametrize(
    ("name", "matrix", "full"),
    [
        ("torchcodec_bt709_full_range.mp4", BT709, True),
        ("torchcodec_nasa_13013.mp4", BT709, False),
        ("facenet_pytorch_video.mp4", BT709, False),  # names no matrix: high definition
        ("derived/face_320x180.mp4", BT601, False),  # names no matrix: below
        ("derived/face_mjpeg.avi", BT601, True),
        ("torchcodec_h264_10bits.mp4", BT601, False),
    ],
)
def test_colors(data_dir: Path, name: str, matrix: tuple[float, float], full: bool) -> None:
    """Against the equations of ITU-R BT.601 / BT.709, computed here in floating point from the decoder's planes.

    Flat blocks of 8 x 8 pixels are compared, so that how chroma is enlarged does not matter. Tolerance: rounding, and
    libswscale's arithmetic, which is biased by up to one step.
    """
    import av

    path = data_dir / "videos" / name
    with av.open(str(path)) as container:
        frame = next(container.decode(container.streams.best("video")))
        planes, height, width = frame.to_ndarray().astype(float), frame.height, frame.width
        planes /= 2 ** (frame.format.components[0].bits - 8)
    count = (height // 2) * (width // 2)
    y, chroma = planes[:height], planes[height:].reshape(-1)
    u, v = (chroma[part * count :][:count].reshape(height // 2, width // 2) - 128 for part in (0, 1))
    u, v = (plane.repeat(2, 0).repeat(2, 1) for plane in (u, v))
    if not full:
        y, u, v = (y - 16) * 255 / 219, u * 255 / 224, v * 255 / 224
    red, blue = matrix
    green = 1 - red - blue
    rgb = [y + 2 * (1 - red) * v, y - 2 * (blue * (1 - blue) * u + red * (1 - red) * v) / green, y + 2 * (1 - blue) * u]
    expected = np.clip(np.stack(rgb, axis=-1), 0, 255)
    with VideoFile(path) as video:
        ours = next(iter(video)).image.pixels.astype(float)

    def blocks(picture: np.ndarray) -> np.ndarray:
        h, w = height // 8, width // 8
        return picture[: 8 * h, : 8 * w].reshape(h, 8, w, 8, -1).swapaxes(1, 2)

    flat = blocks(np.stack([y, u, v], axis=-1)).std(axis=(2, 3)).max(axis=2) < 2
    assert flat.sum() >= 20
    # The middle of each block: at its edge chroma of the next one is mixed in.
    inner = [blocks(picture)[:, :, 2:6, 2:6].mean(axis=(2, 3)) for picture in (ours, expected)]
    difference = np.abs(inner[0] - inner[1])[flat]
    assert difference.mean() < 1.5
    assert difference.max() < 4


def test_errors_name_the_file(videos: list[Path]) -> None:
    for path in videos:
        if path.name in BROKEN:
            with pytest.raises(InputError) as caught, VideoFile(path):
                pass
            assert isinstance(caught.value, FacefleetError)
            assert path.name in caught.value.message
