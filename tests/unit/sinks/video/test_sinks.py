"""What videos leave: boxes between frames, mosaics, copies with sound, chapters, tables, sheet, plot."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as PILImage

from facefleet.errors import BackendUnavailableError, ConfigError
from facefleet.sinks.video import (
    CopyOptions,
    FacesWriter,
    Overlay,
    TrackRow,
    annotate_video,
    contact_sheet,
    plot_timeline,
    write_chapters,
    write_tracks,
)
from facefleet.sinks.video.annotate import drawn, sound_container
from facefleet.sinks.video.overlay import Placed
from facefleet.sinks.video.redact import redact
from facefleet.sources.video import VideoFile
from tests.unit.jobs.fake import faces_of
from tests.unit.sources.video.make import squares, write_video


def track(number: int, person: str, start_s: float, end_s: float, **more: object) -> TrackRow:
    values = {"known": False, "person_score": None, "faces": 5, "score": 0.9, "embedded": 1} | more
    return TrackRow(track=number, person=person, start_s=start_s, end_s=end_s, **values)  # type: ignore[arg-type]


def test_boxes_lie_between_those_that_were_seen() -> None:
    times = np.array([0.0, 1.0, 2.0, 1.0])
    boxes = np.array([[0, 0, 10, 10], [10, 0, 20, 10], [10, 20, 20, 30], [50, 50, 60, 60]], np.float32)
    overlay = Overlay(times, boxes, np.array([3, 3, 3, -1]), hold_s=0.5)
    moments = {
        t: {(p.track, tuple(p.box.tolist()), p.held) for p in overlay.at(t)} for t in (0.0, 0.25, 1.0, 1.5, 2.25, 2.6)
    }
    assert moments[0.0] == {(3, (0, 0, 10, 10), False)}
    assert moments[0.25] == {(3, (2.5, 0, 12.5, 10), False)}
    assert moments[1.0] == {(3, (10, 0, 20, 10), False), (-1, (50, 50, 60, 60), False)}
    assert moments[1.5] == {(3, (10, 10, 20, 20), False), (-1, (50, 50, 60, 60), True)}
    assert moments[2.25] == {(3, (10, 20, 20, 30), True)}
    assert moments[2.6] == set()


def test_a_mosaic_leaves_five_by_five_colors_around_the_box_and_nothing_else_changes() -> None:
    pixels = np.random.default_rng(5).integers(0, 256, (100, 120, 3)).astype(np.uint8)
    before = pixels.copy()
    redact(pixels, np.array([40, 30, 80, 70], np.float32))
    hidden = pixels[18:82, 28:92]
    assert len(np.unique(hidden.reshape(-1, 3), axis=0)) <= 25
    pixels[18:82, 28:92] = before[18:82, 28:92]
    assert np.array_equal(pixels, before)


@pytest.mark.parametrize("box", [[-50, -50, 10, 10], [90, 90, 300, 300], [-9, -9, -5, -5], [500, 5, 600, 9]])
def test_boxes_across_the_border_are_hidden_as_far_as_they_are_seen(box: list[float]) -> None:
    pixels = np.random.default_rng(5).integers(0, 256, (100, 120, 3)).astype(np.uint8)
    redact(pixels, np.array(box, np.float32))


@pytest.mark.parametrize(
    ("who", "hidden"), [("all", {-1, 0, 1, 2}), ("unknown", {-1, 1, 2}), ("Ada", {0}), (None, set()), ("Eve", set())]
)
def test_whom_a_copy_hides(who: str | None, hidden: set[int]) -> None:
    options = CopyOptions(draw=False, redact=who, names={0: "Ada", 1: "person 1"}, known=frozenset({0}))
    assert {number for number in (-1, 0, 1, 2) if options.hides(number)} == hidden
    pixels = np.random.default_rng(1).integers(0, 256, (60, 60, 3)).astype(np.uint8)
    out = drawn(pixels, [Placed(0, np.array([20, 20, 40, 40], np.float32), held=True)], options)
    assert np.array_equal(out, pixels) == (0 not in hidden)


def test_a_copy_keeps_times_and_sound(tmp_path: Path) -> None:
    import av

    times = [0, 40, 130, 140, 300, 420, 430, 900]
    source = write_video(tmp_path / "in.mp4", squares(8), times, sound=True)
    target = tmp_path / f"out{sound_container(source)}"
    overlay = Overlay(np.array([0.0]), np.array([[5, 5, 30, 30]], np.float32), np.array([0]), hold_s=9)
    with VideoFile(source) as video:
        written = annotate_video(
            target,
            source,
            ((frame.pts, frame.time_s, frame.image.pixels) for frame in video),
            overlay,
            CopyOptions(draw=True, names={0: "person 1"}),
            time_base=Fraction(*video.info.time_base),
            rate_fps=video.info.rate_fps,
        )
    assert written == 8
    with av.open(str(target)) as copy:
        stream = copy.streams.video[0]
        assert stream.codec_context.name == "h264"
        got = [round(float(frame.pts * stream.time_base) * 1000) for frame in copy.decode(video=0)]
    assert got == times

    def sound(path: Path) -> list[bytes]:
        with av.open(str(path)) as container:
            return [bytes(packet) for packet in container.demux(audio=0) if packet.size]

    before, after = sound(source), sound(target)
    assert after
    assert after == before[: len(after)]
    assert len(after) >= 0.85 * len(before)


def test_odd_sizes_are_copied(tmp_path: Path) -> None:
    pixels = [np.full((61, 91, 3), 40 * number, np.uint8) for number in range(4)]
    source = write_video(tmp_path / "in.mp4", squares(4))
    frames = ((512 * number, number / 25, picture) for number, picture in enumerate(pixels))
    none = Overlay(np.empty(0), np.empty((0, 4), np.float32), np.empty(0, np.int64), hold_s=0)
    target = tmp_path / "out.mp4"
    annotate_video(target, source, frames, none, CopyOptions(draw=True), time_base=Fraction(1, 12800), rate_fps=25)
    with VideoFile(target) as video:
        assert (video.info.width, video.info.height) == (92, 62)
        for frame, expected in zip(video, pixels, strict=True):
            assert abs(frame.image.pixels.astype(int) - int(expected[0, 0, 0])).max() <= 4


def test_chapters(tmp_path: Path) -> None:
    tracks = [
        track(0, "Ada <&> Co\n\n00:01", 10.5, 12.0),
        track(1, "Ada <&> Co\n\n00:01", 12.5, 13.0),
        track(2, "person 1", 11.0, 3672.25),
        track(3, "Ada <&> Co\n\n00:01", 60.0, 60.0),
    ]
    write_chapters(tmp_path / "c.vtt", tracks, start_s=10.0)
    write_chapters(tmp_path / "c.json", tracks, start_s=10.0)
    assert (tmp_path / "c.vtt").read_text().split("\n\n") == [
        "WEBVTT",
        "1\n00:00:00.500 --> 00:00:03.000\nAda &lt;&amp;&gt; Co 00:01",
        "2\n00:00:01.000 --> 01:01:02.250\nperson 1",
        "3\n00:00:50.000 --> 00:00:50.040\nAda &lt;&amp;&gt; Co 00:01\n",
    ]
    assert json.loads((tmp_path / "c.json").read_text())[1] == {"start_s": 1.0, "end_s": 3662.25, "person": "person 1"}


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_tables(tmp_path: Path, suffix: str) -> None:
    import pyarrow.parquet as pq

    faces = faces_of("x", b"some", count=4)
    numbers = np.array([0, 7, -1, 0])
    with FacesWriter(tmp_path / f"f.{suffix}", {"pack": "fake"}) as writer:
        writer.write(5, 6400, 0.5, faces, numbers, {0: "Ada"})
        writer.write(6, 7680, 0.6, faces_of("x", b"", count=0), np.empty(0, np.int64), {})
    embedding = np.array([0.6, 0.8], np.float32)
    rows = [track(0, "Ada", 0.5, 1.25, embedding=embedding, chip="chips/a.png", best_s=0.5), track(1, "unknown", 2, 3)]
    write_tracks(tmp_path / f"t.{suffix}", rows, 2, {})
    if suffix == "parquet":
        table = pq.read_table(tmp_path / "f.parquet")
        assert table.schema.metadata[b"facefleet.pack"] == b"fake"
        got, tracks = table.to_pylist(), pq.read_table(tmp_path / "t.parquet").to_pylist()
    else:
        texts = ((tmp_path / f"{n}.jsonl").read_text() for n in "ft")
        got, tracks = ([json.loads(line) for line in text.splitlines()] for text in texts)
    assert [(row["frame"], row["pts"], row["face"], row["track"], row["person"]) for row in got] == [
        (5, 6400, 0, 0, "Ada"),
        (5, 6400, 1, None, None),
        (5, 6400, 2, None, None),
        (5, 6400, 3, 0, "Ada"),
    ]
    for row, face in zip(got, faces, strict=True):
        assert np.array([row[key] for key in ("x1", "y1", "x2", "y2")], np.float32).tolist() == face.box.tolist()
        assert np.float32(row["score"]) == np.float32(face.score)
        assert np.array(row["landmarks"], np.float32).tolist() == face.landmarks.reshape(-1).tolist()
    assert np.array(tracks[0]["embedding"], np.float32).tolist() == embedding.tolist()
    assert (tracks[1]["embedding"], tracks[1]["chip"], tracks[0]["end_s"]) == (None, None, 1.25)


def test_another_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="csv"):
        FacesWriter(tmp_path / "f.csv", {})


def test_a_contact_sheet_shows_each_person_once(tmp_path: Path) -> None:
    (tmp_path / "chips").mkdir()
    rows = []
    for number in range(11):
        PILImage.new("RGB", (112, 112), (20 * number, 200, 30)).save(tmp_path / f"chips/{number}.png")
        rows.append(
            track(
                number,
                f"person {min(number, 9)} with a rather long name",
                number,
                number + 1,
                chip=f"chips/{number}.png",
            )
        )
    rows.append(track(11, "unknown", 0, 9))
    assert contact_sheet(tmp_path / "sheet.png", tmp_path, rows) == 10
    with PILImage.open(tmp_path / "sheet.png") as sheet:
        assert sheet.size == (8 * 122 + 10, 2 * 156 + 10)
        assert sheet.getpixel((10 + 122 * 3 + 50, 60)) == (60, 200, 30)
    assert contact_sheet(tmp_path / "none.png", tmp_path, [track(0, "unknown", 0, 1)]) == 0
    assert not (tmp_path / "none.png").exists()


def test_a_timeline_is_drawn_without_a_display(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    monkeypatch.delenv("DISPLAY", raising=False)
    rows = [track(n, f"$person_{n % 70}$", n, n + 2, known=n % 3 == 0) for n in range(90)]
    shown = plot_timeline(tmp_path / "t.png", rows, title="a $clip$.mp4", start_s=0, end_s=95)
    assert shown == 60
    with PILImage.open(tmp_path / "t.png") as plot:
        assert len(plot.convert("RGB").getcolors(1 << 24)) > 10
    assert plot_timeline(tmp_path / "none.png", [], title="nobody", start_s=0, end_s=1) == 0


def test_the_extra_is_named_where_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(BackendUnavailableError, match=r"facefleet\[video\]"):
        plot_timeline(tmp_path / "t.png", [], title="", start_s=0, end_s=1)
