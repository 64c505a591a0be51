"""Live streams through an engine."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from facefleet.errors import QueueFullError
from facefleet.jobs.video import VideoOptions, watch
from facefleet.sources.video import StreamOptions
from facefleet.tracks import TrackerOptions
from facefleet.types import Faces, Image, Outcome
from tests.unit.jobs.video.fake import SquareEngine, embed_colors
from tests.unit.sources.video.make import squares, write_video
from tests.unit.sources.video.test_stream import Http, free_port

QUICK = StreamOptions(read_timeout_s=2, first_wait_s=0.1, most_wait_s=0.2)
OPTIONS = VideoOptions(tracker=TrackerOptions(max_gap_s=0.5), min_faces=1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Http]:
    path = write_video(tmp_path_factory.mktemp("ts") / "clip.ts", squares(75))
    running = Http(path.read_bytes(), hang=False)
    yield running
    running.stop()


class Counting(SquareEngine):
    """Sets an event after so many frames."""

    def __init__(self, stop: threading.Event, count: int, **more: float) -> None:
        super().__init__(**more)
        self._stop, self._count = stop, count
        self.clients: dict[object, int] = {}
        self.full = 0

    def submit(self, image: Image, **options: object) -> Future[Outcome[Faces]]:  # type: ignore[override]
        assert options["wait"] is False
        client = options["client"]
        self.clients[client] = self.clients.get(client, 0) + 1
        if min(self.clients.values()) >= self._count:
            self._stop.set()
        if self.full:
            self.full -= 1
            raise QueueFullError("full")
        return super().submit(image, **options)


def rows(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_tracks_of_several_streams_are_written_as_they_end(server: Http, tmp_path: Path) -> None:
    stop = threading.Event()
    engine = Counting(stop, 12, delay_s=0.002)
    addresses = [f"{server.address}?{number}" for number in range(3)] + [f"http://127.0.0.1:{free_port()}/none"]
    told: list[int] = []
    result = watch(
        addresses,
        tmp_path,
        engine,
        embed_colors,
        options=OPTIONS,
        stream_options=QUICK,
        stop=stop,
        duration_s=60,
        tell=lambda statuses: told.append(len(statuses)),
    )
    assert stop.is_set()
    assert result.frames == sum(engine.clients.values())
    assert [status.frames > 0 for status in result.streams] == [True, True, True, False]
    assert result.failed_frames == 0
    assert engine.most_inside <= 3, "a stream has more than one frame inside"
    tracks, faces = rows(tmp_path / "tracks.jsonl"), rows(tmp_path / "faces.jsonl")
    assert {row["stream"] for row in tracks} == {row["stream"] for row in faces} == set(addresses[:3])
    assert {row["person"] for row in tracks} == {"person 1", "person 2"}
    assert len(tracks) == result.tracks
    assert len(faces) == result.faces
    assert all((tmp_path / str(row["chip"])).exists() for row in tracks)
    assert [status["name"] for status in json.loads((tmp_path / "status.json").read_text())] == addresses
    assert told[-1] == 4


def test_where_the_engine_is_full_frames_are_left_out(server: Http, tmp_path: Path) -> None:
    stop = threading.Event()
    engine = Counting(stop, 9)
    engine.full = 4
    result = watch(
        [server.address],
        tmp_path,
        engine,
        embed_colors,
        options=OPTIONS,
        stream_options=QUICK,
        stop=stop,
        duration_s=60,
    )
    assert result.failed_frames == 4
    assert result.frames >= 5
