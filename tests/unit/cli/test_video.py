"""`facefleet video` as people use it: a real face, names from a gallery, damage, a stream that is not there."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from facefleet.sources.video import VideoFile
from tests.conftest import need_video
from tests.unit.cli.test_cli import run
from tests.unit.sources.video.make import write_video
from tests.unit.sources.video.test_stream import free_port


@pytest.fixture(autouse=True, scope="module")
def _video() -> None:
    need_video()


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory, astronaut: np.ndarray) -> Path:
    """The astronaut moves to the right for a second."""
    frames = [np.roll(astronaut, 3 * number, axis=1) for number in range(25)]
    return write_video(tmp_path_factory.mktemp("clip") / "astronaut.mp4", frames, sound=True)


def test_everything_at_once(clip: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run("video", clip, "-o", out, "--fps", "5", "--annotate", "--timeline", "--summary", "-")
    assert result.exit_code == 0, result.output
    (summary,) = json.loads(result.stdout)
    assert (summary["frames"], summary["faces"], summary["tracks"], summary["persons"]) == (5, 5, 1, 1)
    folder = out / "astronaut"
    names = {"faces.parquet", "tracks.parquet", "chapters.vtt", "chapters.json", "contact.jpg", "timeline.png"}
    assert names | {"annotated.mp4"} == set(summary["files"])
    (track,) = pq.read_table(folder / "tracks.parquet").to_pylist()
    assert np.linalg.norm(track["embedding"]) == pytest.approx(1, abs=1e-5)
    assert track["embedded"] == 3
    with VideoFile(folder / "annotated.mp4") as video:
        assert (video.info.codec, video.info.audio, len(list(video))) == ("h264", True, 25)
    again = run("video", clip, "-o", out, "--fps", "5", "--format", "jsonl", "--summary", "-")
    (summary,) = json.loads(again.stdout)
    assert summary["resumed_frames"] == 5
    assert len((folder / "faces.jsonl").read_text().splitlines()) == 5


def test_names_of_a_gallery_and_who_is_hidden(clip: Path, tmp_path: Path, astronaut_jpeg: bytes) -> None:
    (tmp_path / "Eileen").mkdir()
    (tmp_path / "Eileen/portrait.jpg").write_bytes(astronaut_jpeg)
    gallery = tmp_path / "people"
    assert run("gallery", "create", gallery).exit_code == 0
    enrolled = run("gallery", "enrol", gallery, tmp_path / "Eileen/portrait.jpg", "--name", "Eileen")
    assert enrolled.exit_code == 0, enrolled.output
    common = ["--every", "8", "--gallery", gallery, "--format", "jsonl"]
    for whom, hidden in (("unknown", False), ("Eileen", True), ("all", True)):
        out = tmp_path / whom
        result = run("video", clip, "-o", out, *common, "--redact", whom)
        assert result.exit_code == 0, result.output
        (track,) = [json.loads(line) for line in (out / "astronaut/tracks.jsonl").read_text().splitlines()]
        assert (track["person"], track["known"]) == ("Eileen", True)
        with VideoFile(clip) as before, VideoFile(out / "astronaut/redacted.mp4") as after:
            first, other = next(iter(before)).image.pixels, next(iter(after)).image.pixels
        face = json.loads((out / "astronaut/faces.jsonl").read_text().splitlines()[0])
        rows = slice(round(face["y1"]), round(face["y2"])), slice(round(face["x1"]), round(face["x2"]))
        assert (np.abs(first[rows].astype(int) - other[rows]).mean() > 10) == hidden, whom


def test_one_bad_file_costs_no_other(clip: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.mp4").write_text("no video")
    result = run("video", clip, tmp_path / "notes.mp4", "-o", tmp_path / "out", "--keyframes", "--summary", "-")
    assert result.exit_code == 1
    good, bad = json.loads(result.stdout)
    assert good["faces"] > 0
    assert bad["error"] == "corrupt_video"
    assert "notes.mp4" in result.stderr
    assert run("video", tmp_path / "notes.mp4", "-o", tmp_path / "none").exit_code == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--every", "2", "--fps", "3"], "choose one"),
        (["--start", "soon"], "[H:]M:S"),
        (["--tracker", "deepsort"], "bytetrack"),
        (["--decoder", "gpu"], "cuda:N"),
        (["--format", "csv"], "parquet"),
        (["rtsp://127.0.0.1:9/x"], "one command for each kind"),
    ],
)
def test_used_wrongly(clip: Path, tmp_path: Path, arguments: list[str], said: str) -> None:
    result = run("video", clip, "-o", tmp_path / "out", *arguments)
    assert result.exit_code == 2, result.output
    assert said in " ".join(result.output.split())
    assert not (tmp_path / "out").exists()


def test_a_stream_that_is_not_there(tmp_path: Path) -> None:
    address = f"rtsp://ada:secret@127.0.0.1:{free_port()}/none"
    result = run("video", address, "-o", tmp_path / "out", "--duration", "1", "--open-timeout", "2")
    assert result.exit_code == 1, result.output
    (status,) = json.loads((tmp_path / "out/status.json").read_text())
    assert status["failures"] >= 1
    assert "secret" not in (tmp_path / "out/status.json").read_text() + result.output
