"""Live streams through one engine: every stream's newest frame, tracks as they end, until somebody says stop.

Owns the turn-taking: a stream has at most one frame inside the engine, so that a slow engine makes frames drop and
never makes them late, and no stream can crowd out another. Their frames share the engine's batches. Runs in the
caller's thread; each stream has a thread of its own.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

from facefleet.batching import Priority
from facefleet.errors import OverloadError
from facefleet.jobs.durable import disk_errors
from facefleet.jobs.lock import exclusive
from facefleet.jobs.video.book import Track, TrackBook
from facefleet.jobs.video.embedding import ChipEmbedder, TrackEmbedder
from facefleet.jobs.video.flow import FrameEngine
from facefleet.jobs.video.options import VideoOptions
from facefleet.jobs.video.outputs import save_chip
from facefleet.sinks.video import TrackRow, track_as_json
from facefleet.sources.video import LiveStream, StreamOptions, StreamStatus, VideoFrame
from facefleet.tracks import Identifier, PersonOptions, Persons
from facefleet.types import F32Array, Faces, Outcome

_log = logging.getLogger(__name__)
_TELL_S = 5.0
_IDLE_S = 0.25
_PERSONS, _TIMES = 2000, 64  # unknown persons who are remembered, and tracks of each: streams do not end


@dataclass(frozen=True, slots=True)
class WatchResult:
    """What was seen.

    Attributes:
        streams: Their last statuses.
        seconds: How long it was watched.
        frames: Frames looked at.
        failed_frames: Frames that failed or found no room in the engine.
        faces: Faces found.
        tracks: Tracks that ended.
        embedded: Faces embedded.
    """

    streams: Sequence[StreamStatus]
    seconds: float
    frames: int
    failed_frames: int
    faces: int
    tracks: int
    embedded: int

    def as_json(self) -> dict[str, Any]:
        """As JSON's types."""
        return {**asdict(self), "streams": [asdict(status) for status in self.streams]}


def watch(
    addresses: Sequence[str],
    output: Path,
    engine: FrameEngine,
    embed: ChipEmbedder,
    *,
    options: VideoOptions | None = None,
    stream_options: StreamOptions | None = None,
    gallery: Identifier | None = None,
    duration_s: float | None = None,
    stop: threading.Event | None = None,
    tell: Callable[[list[StreamStatus]], None] | None = None,
) -> WatchResult:
    """Watch live streams.

    Args:
        addresses: The streams.
        output: Folder; ``faces.jsonl`` and ``tracks.jsonl`` grow in it, ``status.json`` is renewed every 5 s.
        engine: Finds faces.
        embed: Embeds the best ones of tracks that ended.
        options: Which frames, and what counts as one face and one person.
        stream_options: How the streams are read; its sampling is that of `options`.
        gallery: Names persons.
        duration_s: Stop after so many seconds.
        stop: When set, everything is finished and the call returns.
        tell: Called with all statuses every 5 s.

    Raises:
        OutputError: The folder cannot be written.
        JobError: Another job writes there.
        BackendError: The embedder failed.
    """
    with disk_errors(output):
        output.mkdir(parents=True, exist_ok=True)
    how = options or VideoOptions()
    reading = stream_options or StreamOptions(max_pixels=how.max_pixels, decoder=how.decoder)
    reading = replace(reading, sampling=how.sampling)
    with exclusive(output / ".lock"), TrackEmbedder(embed) as embedder, disk_errors(output):
        watcher = _Watcher(addresses, output, engine, embedder, how, reading, gallery)
        with contextlib.closing(watcher):
            return watcher.run(duration_s, stop or threading.Event(), tell)


@dataclass(slots=True)
class _Channel:
    stream: LiveStream
    book: TrackBook
    busy: bool = False


class _Watcher:
    def __init__(
        self,
        addresses: Sequence[str],
        output: Path,
        engine: FrameEngine,
        embedder: TrackEmbedder,
        options: VideoOptions,
        reading: StreamOptions,
        gallery: Identifier | None,
    ) -> None:
        self._output, self._engine, self._embedder, self._options = output, engine, embedder, options
        self._events = threading.Event()
        remembered = PersonOptions(threshold=options.threshold, most=_PERSONS, most_times=_TIMES)
        self._persons = Persons(remembered, gallery)
        self._done: queue.SimpleQueue[tuple[_Channel, VideoFrame, Outcome[Faces]]] = queue.SimpleQueue()
        self._lines = {name: (output / f"{name}.jsonl").open("a", encoding="utf-8") for name in ("faces", "tracks")}
        self._channels = [
            _Channel(
                LiveStream(address, reading, ready=self._events),
                TrackBook(options.tracker, best=options.best, source=f"stream{number}"),
            )
            for number, address in enumerate(addresses)
        ]
        self._names = {f"stream{number}": channel.stream.name for number, channel in enumerate(self._channels)}
        self._frames = self._failed = self._tracks = 0

    def close(self) -> None:
        for channel in self._channels:
            channel.stream.close()
        for stream in self._lines.values():
            stream.close()

    def run(
        self, duration_s: float | None, stop: threading.Event, tell: Callable[[list[StreamStatus]], None] | None
    ) -> WatchResult:
        started = told = time.monotonic()
        turns = self._turns()
        while not stop.is_set() and (duration_s is None or time.monotonic() - started < duration_s):
            self._events.wait(_IDLE_S)
            self._events.clear()
            self._offer(next(turns))
            self._settle()
            if time.monotonic() - told > _TELL_S:
                told = time.monotonic()
                self._report(tell)
        while any(channel.busy for channel in self._channels):
            self._take(*self._done.get())
        for channel in self._channels:
            self._end(channel.book.finish())
        self._gather(wait=True)
        statuses = self._report(tell)
        faces = sum(channel.book.rows for channel in self._channels)
        seconds = time.monotonic() - started
        return WatchResult(statuses, seconds, self._frames, self._failed, faces, self._tracks, self._embedder.embedded)

    def _turns(self) -> Iterator[list[_Channel]]:
        """All channels, each time beginning with another."""
        for first in itertools.count():
            at = first % len(self._channels)
            yield self._channels[at:] + self._channels[:at]

    def _offer(self, channels: list[_Channel]) -> None:
        for channel in channels:
            if channel.busy or not channel.stream.has_frame:
                continue
            frame = channel.stream.take()
            if frame is None:
                continue
            try:
                future = self._engine.submit(
                    frame.image,
                    chips=True,
                    embed=False,
                    priority=Priority.INTERACTIVE,
                    client=channel.stream.name,
                    wait=False,
                )
            except OverloadError:
                self._failed += 1
                continue
            channel.busy = True
            future.add_done_callback(functools.partial(self._answered, channel, frame))

    def _answered(self, channel: _Channel, frame: VideoFrame, future: Future[Outcome[Faces]]) -> None:
        self._done.put((channel, frame, future.result()))
        self._events.set()

    def _settle(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._take(*self._done.get_nowait())
        self._gather(wait=False)

    def _take(self, channel: _Channel, frame: VideoFrame, outcome: Outcome[Faces]) -> None:
        channel.busy = False
        self._events.set()  # there may be a newer frame already
        self._frames += 1
        if outcome.value is None:
            self._failed += 1
            _log.warning("%s: %s", frame.image.name, outcome.error)
            return
        faces, chips = outcome.value, outcome.value.chips
        seen = channel.book.add(
            frame.time_s, faces, lambda index: None if chips is None else chips[index], cut=frame.cut
        )
        self._end(seen.ended)
        channel.book.forget_fresh()
        for face in faces:
            row = {
                "stream": channel.stream.name,
                "time_s": round(frame.time_s, 3),
                "track": int(seen.tracks[face.index]) if seen.tracks[face.index] >= 0 else None,
                "box": [round(float(value), 1) for value in face.box],
                "score": round(face.score, 4),
            }
            self._write("faces", row)

    def _end(self, tracks: list[Track]) -> None:
        self._embedder.submit([track for track in tracks if track.faces >= self._options.min_faces])

    def _gather(self, *, wait: bool) -> None:
        for track, embedding in self._embedder.collect(wait=wait):
            self._tracks += 1
            row = {"stream": self._names[track.source], **track_as_json(self._row(track, embedding))}
            self._write("tracks", row)

    def _row(self, track: Track, embedding: F32Array | None) -> TrackRow:
        weight = sum(best.usefulness for best in track.best.faces)
        found = self._persons.identify(embedding, track.start_s, track.end_s, weight=weight, camera=track.source)
        best = track.best.faces[0] if track.best.faces else None
        return TrackRow(
            track=track.number,
            person=found.person,
            known=found.known,
            person_score=found.score,
            start_s=track.start_s,
            end_s=track.end_s,
            faces=track.faces,
            score=track.score,
            embedded=len(track.best.faces),
            best_s=None if best is None else best.time_s,
            chip=None if best is None else save_chip(self._output, track.number, best.chip, source=track.source),
            embedding=embedding,
        )

    def _write(self, name: str, row: dict[str, Any]) -> None:
        stream: IO[str] = self._lines[name]
        stream.write(json.dumps(row, ensure_ascii=False) + "\n")

    def _report(self, tell: Callable[[list[StreamStatus]], None] | None) -> list[StreamStatus]:
        statuses = [channel.stream.status() for channel in self._channels]
        for stream in self._lines.values():
            stream.flush()
        part = self._output / ".status.json.part"
        part.write_text(json.dumps([asdict(status) for status in statuses], indent=1) + "\n")
        part.replace(self._output / "status.json")
        if tell is not None:
            tell(statuses)
        return statuses
