"""The job of a video file: what comes out, and that it goes on where it ended."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from facefleet.errors import CorruptVideoError, OutputError, OutputExistsError
from facefleet.jobs.video import VideoOptions, VideoOutputs, VideoResult, run_video
from facefleet.sources.video import Sampling, VideoFile
from tests.unit.jobs.video.fake import DIMENSION, SquareEngine, embed_colors, find_squares
from tests.unit.sources.video.make import squares, write_video

SCRIPT = Path(__file__).with_name("fake.py")
ROOT = Path(__file__).resolve().parents[4]
FRAMES = 90


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two squares that move; in the middle both are away for longer than a track lives."""
    frames = squares(FRAMES)
    for number in range(30, 66):
        frames[number] = np.full_like(frames[number], 25)
    path = tmp_path_factory.mktemp("clip") / "clip.mp4"
    return write_video(path, frames, gop=10, sound=True)


def job(path: Path, output: Path, engine: SquareEngine | None = None, **more: object) -> VideoResult:
    options = more.pop("options", VideoOptions(commit_frames=16))
    return run_video(path, output, engine or SquareEngine(), embed_colors, dimension=DIMENSION, options=options, **more)  # type: ignore[arg-type]


def test_who_appears_when(clip: Path, tmp_path: Path) -> None:
    result = job(clip, tmp_path / "out", outputs=VideoOutputs(timeline=True, annotate=True))
    assert (result.frames, result.faces, result.persons) == (90, 108, 2)
    seen = [(t.person, round(t.start_s, 2), round(t.end_s, 2), t.faces, t.embedded) for t in result.tracks]
    assert seen == [
        ("person 1", 0.0, 1.16, 30, 3),
        ("person 2", 0.0, 1.16, 30, 3),
        ("person 1", 2.64, 3.56, 24, 3),
        ("person 2", 2.64, 3.56, 24, 3),
    ]
    assert result.embedded == 12
    assert not result.damage
    faces = pq.read_table(tmp_path / "out/faces.parquet").to_pylist()
    assert len(faces) == 108
    assert {(row["track"], row["person"]) for row in faces} == {(t.track, t.person) for t in result.tracks}
    assert [row["time_s"] for row in faces[:4]] == pytest.approx([0, 0, 0.04, 0.04])
    assert set(result.files) == {path.name for path in (tmp_path / "out").iterdir()} - {"segments", "chips"}
    assert "annotated.mp4" in result.files
    for track in result.tracks:
        assert (tmp_path / "out" / str(track.chip)).exists()


def test_frames_stay_few_and_in_order(clip: Path, tmp_path: Path) -> None:
    engine = SquareEngine(delay_s=0.004)
    job(clip, tmp_path / "out", engine, options=VideoOptions(max_frames=5))
    assert engine.most_inside <= 5
    assert engine.names == sorted(engine.names, key=lambda name: float(name.rpartition("@")[2][:-1]))
    engine = SquareEngine(delay_s=0.004)
    job(clip, tmp_path / "tight", engine, options=VideoOptions(max_bytes=2 * 160 * 240 * 3))
    assert engine.most_inside <= 2


def test_a_frame_that_fails_costs_no_other(clip: Path, tmp_path: Path) -> None:
    result = job(clip, tmp_path / "out", SquareEngine(failing=(400, 440)))
    assert result.failed_frames == {"inference": 2}
    assert (result.frames, result.faces) == (90, 104)
    assert [t.faces for t in result.tracks] == [28, 28, 24, 24]


def test_stopped_it_goes_on_and_ends_the_same(clip: Path, tmp_path: Path) -> None:
    expected = job(clip, tmp_path / "calm")
    stop = threading.Event()
    first = job(clip, tmp_path / "out", stop=stop, progress=lambda state: stop.set() if state.frames == 40 else None)
    assert (first.interrupted, first.frames) == (True, 40)
    assert not (tmp_path / "out/faces.parquet").exists()
    engine = SquareEngine()
    second = job(clip, tmp_path / "out", engine)
    assert (second.interrupted, second.resumed_frames, second.frames) == (False, 40, 90)
    assert len(engine.names) == 50
    same(tmp_path / "calm", tmp_path / "out")
    assert second.embedded == expected.embedded


def test_done_already_it_writes_other_outputs_without_looking_again(clip: Path, tmp_path: Path) -> None:
    job(clip, tmp_path / "out")
    engine = SquareEngine()
    again = job(clip, tmp_path / "out", engine, outputs=VideoOutputs(redact="all", table="jsonl"))
    assert engine.names == []
    assert again.resumed_frames == again.frames == 90
    assert {"faces.jsonl", "redacted.mp4"} <= set(again.files)


def test_redacted_frames_have_no_face_left(clip: Path, tmp_path: Path) -> None:
    result = job(
        clip, tmp_path / "out", options=VideoOptions(sampling=Sampling(fps=5)), outputs=VideoOutputs(redact="all")
    )
    assert result.frames < 30
    with VideoFile(clip) as before, VideoFile(tmp_path / "out/redacted.mp4") as after:
        for frame, hidden in zip(before, after, strict=True):
            assert frame.time_s == pytest.approx(hidden.time_s, abs=1e-6)
            for x1, y1, x2, y2 in find_squares(frame.image).boxes_int:
                shown = hidden.image.pixels[y1:y2, x1:x2].astype(int)
                original = frame.image.pixels[y1:y2, x1:x2].astype(int)
                # A mosaic mixes the square with the dark around it: its borders are gone.
                assert np.abs(shown - original).max() > 60


def test_one_person_is_hidden_by_name(clip: Path, tmp_path: Path) -> None:
    job(clip, tmp_path / "out", outputs=VideoOutputs(redact="person 2"))
    with VideoFile(tmp_path / "out/redacted.mp4") as video:
        frame = next(iter(video))
    red = frame.image.pixels[20:50, 16:40].astype(int)
    assert np.abs(red - (230, 40, 40)).mean() < 12


def test_another_job_does_not_touch_an_output(clip: Path, tmp_path: Path) -> None:
    job(clip, tmp_path / "out")
    with pytest.raises(OutputExistsError):
        job(clip, tmp_path / "out", options=VideoOptions(sampling=Sampling(every=3)))
    result = job(clip, tmp_path / "out", options=VideoOptions(sampling=Sampling(every=3)), overwrite=True)
    assert result.frames == 30


def test_a_damaged_segment_is_said(clip: Path, tmp_path: Path) -> None:
    job(clip, tmp_path / "out")
    path = tmp_path / "out/segments/segment-000001.npz"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(OutputError, match="segment-000001"):
        job(clip, tmp_path / "out")


def test_what_is_no_video_leaves_no_folder(tmp_path: Path) -> None:
    (tmp_path / "x.mp4").write_text("no video")
    with pytest.raises(CorruptVideoError):
        job(tmp_path / "x.mp4", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_cut_off_file_is_analyzed_up_to_its_end(tmp_path: Path) -> None:
    path = write_video(tmp_path / "whole.mkv", squares(60), gop=10)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * 0.6)])
    result = job(path, tmp_path / "out")
    assert result.damage.missing_s
    assert result.frames > 20
    assert len(result.tracks) == 2


def test_a_single_frame_has_its_tracks(tmp_path: Path) -> None:
    result = job(write_video(tmp_path / "one.mp4", squares(1)), tmp_path / "out")
    assert [(t.person, t.faces) for t in result.tracks] == [("person 1", 1), ("person 2", 1)]


def start(path: Path, output: Path, delay_s: float) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    command = [sys.executable, str(SCRIPT), str(path), str(output), str(delay_s)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def test_killed_at_random_moments(clip: Path, tmp_path: Path) -> None:
    """kill -9 at any moment: the next run goes on after the last segment, and the result is that of a calm run."""
    calm = start(clip, tmp_path / "calm", 0)
    expected = json.loads(calm.communicate(timeout=120)[0].splitlines()[-1])
    moments = random.Random(99)
    killed = 0
    for _ in range(6):
        process = start(clip, tmp_path / "out", 0.01)
        assert process.stdout is not None
        for _ in range(moments.randrange(1, 16)):
            process.stdout.readline()
        time.sleep(moments.uniform(0, 0.02))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        killed += process.returncode == -signal.SIGKILL
    assert killed >= 5
    assert any((tmp_path / "out/segments").glob("segment-*.npz")), "no kill came after a commit"
    last = start(clip, tmp_path / "out", 0)
    result = json.loads(last.communicate(timeout=120)[0].splitlines()[-1])
    assert 0 < result["resumed_frames"] < result["frames"] or result["resumed_frames"] == result["frames"]
    for key in ("frames", "faces", "tracks", "persons", "embedded"):
        assert result[key] == expected[key]
    same(tmp_path / "calm", tmp_path / "out")


def same(one: Path, other: Path) -> None:
    """Tables, chips and chapters are equal, byte for byte."""
    names = ["faces.parquet", "tracks.parquet", "chapters.vtt", *(str(p.relative_to(one)) for p in one.glob("chips/*"))]
    assert len(names) > 4
    for name in names:
        digests = {hashlib.sha256((folder / name).read_bytes()).hexdigest() for folder in (one, other)}
        assert len(digests) == 1, name
