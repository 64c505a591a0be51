"""Video files as frames: times, ranges, going on, orientation, what is no video."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from facefleet.decode import ffmpeg
from facefleet.errors import (
    BackendUnavailableError,
    CorruptVideoError,
    EmptyInputError,
    FacefleetError,
    ImageTooLargeError,
    SourceError,
    StreamError,
    StreamTimeoutError,
    UnsupportedFormatError,
)
from facefleet.sources.video import Sampling, VideoFile
from facefleet.sources.video.picture import change, upright
from facefleet.sources.video.plan import Plan
from tests.unit.sources.video.make import squares, write_video

SMALL = np.zeros((18, 32), np.uint8)
UNEVEN = [250, 290, 330, 900, 910, 950, 2000, 2040, 2041, 2300, 2340, 2400, 3000, 3100, 3140, 3150, 3190, 3200]


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("video") / "uneven.mp4"
    return write_video(path, squares(len(UNEVEN)), UNEVEN, gop=5)


def times(path: Path, sampling: Sampling | None = None) -> list[int]:
    with VideoFile(path, sampling) as video:
        return [round(frame.time_s * 1000) for frame in video]


def test_times_are_those_of_the_demuxer(uneven: Path) -> None:
    assert times(uneven) == UNEVEN


def test_frames_are_numbered_and_upright_rgb(uneven: Path) -> None:
    with VideoFile(uneven) as video:
        frames = list(video)
        assert (video.info.width, video.info.height, video.info.frames) == (240, 160, len(UNEVEN))
        assert video.info.start_s == 0.25
        assert not video.damage
    assert [frame.index for frame in frames] == list(range(len(UNEVEN)))
    red = frames[0].image.pixels[30, 25].astype(int)
    assert red[0] > 180
    assert red[1:].max() < 90


def test_ranges_count_from_the_beginning_and_leave_out_their_end(uneven: Path) -> None:
    assert times(uneven, Sampling(start_s=0.65, end_s=1.8)) == [900, 910, 950, 2000, 2040, 2041]
    assert times(uneven, Sampling(start_s=2.75)) == [3000, 3100, 3140, 3150, 3190, 3200]
    assert times(uneven, Sampling(start_s=100.0)) == []


def test_only_key_frames(uneven: Path) -> None:
    with VideoFile(uneven) as video:
        expected = [frame.pts for frame in video if frame.keyframe]
    with VideoFile(uneven, Sampling(keyframes=True)) as video:
        assert [frame.pts for frame in video] == expected
    assert 3 <= len(expected) < len(UNEVEN)


@pytest.mark.parametrize(
    "sampling",
    [Sampling(), Sampling(every=3), Sampling(fps=4), Sampling(scene=0.05), Sampling(start_s=0.7, end_s=2.8)],
)
def test_it_goes_on_after_any_frame(uneven: Path, sampling: Sampling) -> None:
    with VideoFile(uneven, sampling) as video:
        whole = list(video.with_positions())
    assert whole
    for number, (_, position) in enumerate(whole):
        with VideoFile(uneven, sampling, after=position) as video:
            rest = list(video.with_positions())
        assert [(f.index, f.pts, f.cut) for f, _ in rest] == [(f.index, f.pts, f.cut) for f, _ in whole[number + 1 :]]
        assert [p for _, p in rest] == [p for _, p in whole[number + 1 :]]
        for (ours, _), (theirs, _) in zip(rest, whole[number + 1 :], strict=True):
            assert np.array_equal(ours.image.pixels, theirs.image.pixels)


def test_a_cut_is_seen_whatever_is_sampled(tmp_path: Path) -> None:
    ramp = np.tile(np.linspace(20, 230, 64, dtype=np.uint8), (48, 1))
    one, other = np.dstack([ramp] * 3), np.dstack([ramp[:, ::-1]] * 3)
    path = write_video(tmp_path / "cut.mp4", [one] * 9 + [other] * 9)
    for every, expected in ((1, [9]), (4, [3])):
        with VideoFile(path, Sampling(every=every)) as video:
            assert [number for number, frame in enumerate(video) if frame.cut] == expected


def test_scenes_take_what_changes_and_one_a_second(tmp_path: Path) -> None:
    ramp = np.tile(np.linspace(20, 230, 64, dtype=np.uint8), (48, 1))
    one, other = np.dstack([ramp] * 3), np.dstack([ramp[:, ::-1]] * 3)
    path = write_video(tmp_path / "cut.mp4", [one] * 15 + [other] * 45)
    assert times(path, Sampling(scene=0.3)) == [0, 600, 1000, 2000]


def test_every_kind_of_bad_file_is_a_typed_error(tmp_path: Path, uneven: Path) -> None:
    data = uneven.read_bytes()
    (tmp_path / "empty.mp4").touch()
    (tmp_path / "text.mp4").write_text("this is no video\n" * 100)
    (tmp_path / "half.mp4").write_bytes(data[: len(data) // 3])
    cases: dict[str, type[FacefleetError]] = {
        "empty.mp4": EmptyInputError,
        "text.mp4": CorruptVideoError,
        "half.mp4": CorruptVideoError,
        "missing.mp4": SourceError,
        ".": FacefleetError,
    }
    for name, kind in cases.items():
        with pytest.raises(kind) as caught, VideoFile(tmp_path / name):
            pass
        assert caught.value.message.startswith(str(tmp_path))


def test_sound_alone_is_no_video(tmp_path: Path) -> None:
    import av

    path = tmp_path / "sound.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=16000)
        piece = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.int16), format="s16", layout="mono")
        piece.sample_rate = 16000
        container.mux([*stream.encode(piece), *stream.encode(None)])
    with pytest.raises(UnsupportedFormatError), VideoFile(path):
        pass


def test_a_playlist_does_not_lead_to_other_addresses(tmp_path: Path) -> None:
    path = tmp_path / "list.m3u8"
    path.write_text("#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nhttp://127.0.0.1:9/secret.ts\n#EXT-X-ENDLIST\n")
    with pytest.raises(FacefleetError), VideoFile(path) as video:
        list(video)


def test_a_cut_off_file_gives_what_is_there_and_says_so(tmp_path: Path) -> None:
    path = write_video(tmp_path / "whole.mkv", squares(60), gop=10)
    data = path.read_bytes()
    cut = tmp_path / "cut.mkv"
    cut.write_bytes(data[: int(len(data) * 0.6)])
    with VideoFile(cut) as video:
        got = [frame.pts for frame in video]
        assert video.damage
        assert video.damage.missing_s is not None
        assert "missing" in str(video.damage)
    assert got == [40 * number for number in range(len(got))]
    assert 20 < len(got) < 60


@pytest.mark.parametrize("suffix", ["mkv", "mp4", "ts", "avi"])
def test_a_whole_file_that_does_not_begin_at_zero_is_not_damaged(tmp_path: Path, suffix: str) -> None:
    times_ms = [900 + 40 * number for number in range(30)]
    path = write_video(tmp_path / f"late.{suffix}", squares(30), times_ms)
    for sampling in (Sampling(), Sampling(every=4)):
        with VideoFile(path, sampling) as video:
            frames = list(video)
            if suffix != "avi":  # whose time begins at zero
                assert video.info.duration_s == pytest.approx(1.2, abs=0.1)
        assert not video.damage, (str(video.damage), video.info)
        assert len(frames) == len(range(0, 30, sampling.every))


def test_frames_too_large_are_refused(uneven: Path) -> None:
    with VideoFile(uneven, max_pixels=1000) as video, pytest.raises(ImageTooLargeError):
        list(video)


@pytest.mark.parametrize(
    ("signs", "turn"),
    [
        ((1, 0, 0, 1), lambda p: p),
        ((-1, 0, 0, -1), lambda p: np.rot90(p, 2)),
        ((0, 1, -1, 0), lambda p: np.rot90(p, -1)),
        ((0, -1, 1, 0), lambda p: np.rot90(p, 1)),
        ((-1, 0, 0, 1), lambda p: p[:, ::-1]),
        ((1, 0, 0, -1), lambda p: p[::-1]),
        ((0, 1, 1, 0), lambda p: p.swapaxes(0, 1)),
        ((0, -1, -1, 0), lambda p: np.rot90(p, 2).swapaxes(0, 1)),
    ],
)
def test_all_eight_orientations(signs: tuple[int, int, int, int], turn: object) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (6, 9, 3)).astype(np.uint8)
    out = upright(pixels, signs)
    assert out.flags.c_contiguous
    assert np.array_equal(out, turn(pixels))  # type: ignore[operator]


def test_change_does_not_mind_brightness_or_noise() -> None:
    generator = np.random.default_rng(2)
    scene = generator.integers(0, 200, (18, 32)).astype(np.uint8)
    assert change(scene, scene + 40) < 0.01
    assert change(scene, generator.integers(0, 200, (18, 32)).astype(np.uint8)) > 0.8
    flat = np.full((18, 32), 16, np.uint8)
    assert change(flat, flat + generator.integers(0, 2, (18, 32)).astype(np.uint8)) < 0.2


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch, uneven: Path) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(BackendUnavailableError, match=r"facefleet\[video\]"), VideoFile(uneven):
        pass


def test_every_error_of_ffmpeg_has_a_meaning() -> None:
    import av.error

    kinds = [value for value in vars(av.error).values() if isinstance(value, type) and issubclass(value, Exception)]
    kinds = [kind for kind in kinds if kind.__module__.startswith("av") and kind is not av.error.PyAVCallbackError]
    assert len(kinds) > 20
    for kind in kinds:
        error = kind(1, "what FFmpeg says", "somewhere")
        assert "clip.mp4" in ffmpeg.explain(error, "clip.mp4").message
        live = ffmpeg.explain(error, "clip.mp4", live=True)
        assert isinstance(live, StreamError)
        assert live.retryable
    assert isinstance(ffmpeg.explain(av.error.ExitError(1, "x"), "s", live=True), StreamTimeoutError)
    assert isinstance(ffmpeg.explain(av.error.InvalidDataError(1, "x"), "s"), CorruptVideoError)
    assert isinstance(ffmpeg.explain(av.error.DecoderNotFoundError(1, "x"), "s"), UnsupportedFormatError)


@pytest.mark.parametrize(
    "sampling", [Sampling(every=3), Sampling(every=7), Sampling(fps=3), Sampling(fps=9, start_s=0.5)]
)
def test_frames_nobody_needs_are_not_decoded_and_the_others_are_the_same(
    tmp_path: Path, sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_video(tmp_path / "clip.mp4", squares(80), gop=30)
    with VideoFile(path) as video:
        whole = {frame.pts: frame.image.pixels for frame in video}
    decoded: list[int] = []

    def note(frame: object) -> np.ndarray:
        decoded.append(frame.pts)  # type: ignore[attr-defined]
        return SMALL

    monkeypatch.setattr("facefleet.sources.video.file.thumbnail", note)
    with VideoFile(path, sampling) as video:
        given = list(video)
    assert len(decoded) < len(whole)
    monkeypatch.setattr("facefleet.sources.video.file.may_skip", lambda *_: False)
    with VideoFile(path, sampling) as video:
        plain = list(video)
    assert [(frame.index, frame.pts) for frame in given] == [(frame.index, frame.pts) for frame in plain]
    assert all(np.array_equal(frame.image.pixels, whole[frame.pts]) for frame in given)


def test_a_plan_goes_on_after_packets_are_read_again() -> None:
    """Decoding order as of B-frames; after damage the file is opened again, and read from an earlier key frame."""
    order = [0, 40, 10, 20, 30, 80, 50, 60, 70, 120, 90, 100, 110]
    plan = Plan(Sampling(every=3), lambda pts: pts / 1000, lambda _: True, -1, None)

    def read() -> None:
        for pts in order:
            plan.see(pts)
        plan.finish()

    read()
    assert [pts for pts in sorted(order) if plan.wants(pts)] == [0, 30, 60, 90, 120]
    taken = [plan.take(pts) for pts in (0, 10, 30, 40)]
    assert [each.index for each in taken if each] == [0, 1, 3, 4]
    plan.restart()
    read()
    assert plan.take(30) is None
    rest = [plan.take(pts) for pts in (50, 60, 90, 120)]
    assert [(each.index, each.wanted) for each in rest if each] == [(5, False), (6, True), (9, True), (12, True)]
