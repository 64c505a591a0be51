"""The job of one video file: frames -> engine -> tracks -> outputs, resumable at the last committed segment.

Owns the order of things. Runs in the caller's thread, which also decodes; the engine's threads detect, and a thread
of the job embeds the best faces of tracks that have ended. Several videos may run at once on one engine, each in a
thread of its own: their frames share its batches.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from facefleet.jobs.durable import disk_errors
from facefleet.jobs.lock import exclusive
from facefleet.jobs.video.book import Track, TrackBook
from facefleet.jobs.video.embedding import ChipEmbedder, TrackEmbedder
from facefleet.jobs.video.flow import FrameEngine, analyzed
from facefleet.jobs.video.options import VideoOptions, VideoOutputs, VideoProgress, VideoResult
from facefleet.jobs.video.outputs import save_chip, write_outputs
from facefleet.jobs.video.segments import FrameFaces, Segment, Segments
from facefleet.sinks.video import TrackRow
from facefleet.sources.video import Damage, Position, VideoFile, VideoInfo
from facefleet.tracks import Identifier, PersonOptions, Persons
from facefleet.types import F32Array, Faces, Outcome, Quality

_log = logging.getLogger(__name__)
_NOT_OF_RESULTS = ("threads", "chosen")


def run_video(
    path: str | Path,
    output: Path,
    engine: FrameEngine,
    embed: ChipEmbedder,
    *,
    dimension: int,
    options: VideoOptions | None = None,
    outputs: VideoOutputs | None = None,
    gallery: Identifier | None = None,
    overwrite: bool = False,
    progress: Callable[[VideoProgress], None] | None = None,
    stop: threading.Event | None = None,
) -> VideoResult:
    """Analyze a video file.

    Args:
        path: The file.
        output: Folder for its results, its own; beside them ``segments`` holds what is needed to go on.
        engine: Finds faces.
        embed: Embeds the best of them.
        dimension: Length of an embedding.
        options: How it is analyzed.
        outputs: What is written besides the tables.
        gallery: Names persons; None: they are told apart, and numbered.
        overwrite: Begin anew instead of going on where an earlier run ended.
        progress: Called in this thread as frames are done.
        stop: When set, the job returns in a state that can be gone on with.

    Returns:
        What was found.

    Raises:
        InputError: The video cannot be used.
        JobError: The folder is in use, is another video's, or cannot be written; run the job again to go on.
        BackendError: The embedder failed.
    """
    with VideoFile(path) as probe:  # a file that is no video leaves no folder behind
        info = probe.info
    with disk_errors(output):
        output.mkdir(parents=True, exist_ok=True)
    with exclusive(output / ".lock"), TrackEmbedder(embed) as embedder:
        job = _VideoJob(Path(path), output, engine, embedder, options or VideoOptions(), info, progress, stop)
        job.open(overwrite=overwrite)
        return job.run(dimension, outputs or VideoOutputs(), gallery)


class _VideoJob:
    def __init__(
        self,
        path: Path,
        output: Path,
        engine: FrameEngine,
        embedder: TrackEmbedder,
        options: VideoOptions,
        info: VideoInfo,
        progress: Callable[[VideoProgress], None] | None,
        stop: threading.Event | None,
    ) -> None:
        self._path, self._output, self._engine = path, output, engine
        self._embedder, self._options, self._info = embedder, options, info
        self._progress = progress or (lambda _: None)
        self._stop = stop or threading.Event()
        self._book = TrackBook(options.tracker, best=options.best)
        self._found: list[tuple[TrackRow, float]] = []
        self._frames = 0
        self._failed: Counter[str] = Counter()
        self._started = time.monotonic()

    def open(self, *, overwrite: bool) -> None:
        with disk_errors(self._path):
            stat = self._path.stat()
        settings = {
            "input": [str(self._path), stat.st_size, stat.st_mtime_ns],
            "fingerprint": self._engine.fingerprint,
            **self._options.decisive(),
        }
        self._segments = Segments(self._output / "segments", settings, overwrite=overwrite)

    def run(self, dimension: int, outputs: VideoOutputs, gallery: Identifier | None) -> VideoResult:
        position, note, done = self._replay()
        resumed = self._frames
        if not done:
            note = self._go_on(position)
        interrupted = note is None
        tracks: list[TrackRow] = []
        files: tuple[str, ...] = ()
        damage = Damage()
        if note is not None:
            damage = Damage(**note["damage"])
            self._end(self._book.finish())
            self._gather(wait=True)
            tracks = self._identified(gallery)
            described = {k: v for k, v in self._engine.describe().items() if k not in _NOT_OF_RESULTS}
            metadata = {**described, "fingerprint": self._engine.fingerprint, "metric": "cosine"}
            files = write_outputs(
                self._path,
                self._output,
                self._segments,
                tracks,
                outputs,
                self._info,
                self._options,
                dimension,
                metadata,
            )
            if damage:
                _log.warning("%s is damaged: %s", self._path, str(damage))
        return VideoResult(
            input=str(self._path),
            output=str(self._output),
            info=self._info,
            frames=self._frames,
            failed_frames=dict(self._failed),
            faces=self._book.rows,
            tracks=tracks,
            persons=len({track.person for track in tracks if track.embedding is not None}),
            embedded=self._embedder.embedded,
            resumed_frames=resumed,
            damage=damage,
            seconds=time.monotonic() - self._started,
            files=files,
            interrupted=interrupted,
        )

    def _replay(self) -> tuple[Position | None, dict[str, Any] | None, bool]:
        """Come to the state that earlier runs committed."""
        position: Position | None = None
        for segment in self._segments:
            for frame in segment.frames:
                first = self._book.rows
                self._take(frame, lambda index, first=first, chips=segment.chips: chips.get(first + index))  # type: ignore[misc]
            self._book.fresh(self._book.rows)
            position = segment.position
            if position is None:
                return None, segment.note, True
        return position, None, False

    def _go_on(self, after: Position | None) -> dict[str, Any] | None:
        """Analyze the rest; None if it was stopped."""
        options = self._options
        with VideoFile(
            self._path,
            options.sampling,
            after=after,
            threads=options.decode_threads,
            max_pixels=options.max_pixels,
            decoder=options.decoder,
        ) as video:
            flow = analyzed(
                video.with_positions(), self._engine, max_frames=options.max_frames, max_bytes=options.max_bytes
            )
            frames: list[FrameFaces] = []
            first_row = self._book.rows
            with contextlib.closing(flow):
                for frame, position, outcome in flow:
                    faces = _faces_of(outcome)
                    chips = faces.chips
                    bare = replace(faces, chips=None, embeddings=np.empty((len(faces), 0), np.float32))
                    error = outcome.error.code if outcome.error is not None else ""
                    entry = FrameFaces(
                        frame.index, frame.pts, frame.time_s, frame.cut, bare, np.empty(0, np.int64), error
                    )
                    self._take(entry, lambda index, chips=chips: None if chips is None else chips[index])  # type: ignore[misc]
                    frames.append(entry)
                    self._tell(frame.time_s)
                    if len(frames) >= options.commit_frames or self._stop.is_set():
                        self._segments.append(Segment(frames, self._book.fresh(first_row), position))
                        frames, first_row = [], self._book.rows
                        if self._stop.is_set():
                            return None
            note = {"damage": {k: getattr(video.damage, k) for k in Damage.__dataclass_fields__}}
        self._segments.append(Segment(frames, self._book.fresh(first_row), None, note))
        return note

    def _take(self, frame: FrameFaces, chip: Callable[[int], np.ndarray | None]) -> None:
        self._frames += 1
        if frame.error:
            self._failed[frame.error] += 1
        seen = self._book.add(frame.time_s, frame.faces, chip, cut=frame.cut)
        frame.tracks = seen.tracks
        self._end(seen.ended)
        self._gather(wait=False)

    def _end(self, tracks: list[Track]) -> None:
        least = min(self._options.min_faces, max(1, self._frames))
        self._embedder.submit([track for track in tracks if track.faces >= least])

    def _gather(self, *, wait: bool) -> None:
        for track, embedding in self._embedder.collect(wait=wait):
            self._found.append((self._row(track, embedding), sum(best.usefulness for best in track.best.faces)))

    def _row(self, track: Track, embedding: F32Array | None) -> TrackRow:
        best = track.best.faces[0] if track.best.faces else None
        return TrackRow(
            track=track.number,
            person="",
            known=False,
            person_score=None,
            start_s=track.start_s,
            end_s=track.end_s,
            faces=track.faces,
            score=track.score,
            embedded=len(track.best.faces),
            best_s=None if best is None else best.time_s,
            chip=None if best is None else save_chip(self._output, track.number, best.chip),
            embedding=embedding,
        )

    def _identified(self, gallery: Identifier | None) -> list[TrackRow]:
        """Whose each track is: the clearest tracks decide first; unknown persons are numbered as they appear."""
        persons = Persons(PersonOptions(threshold=self._options.threshold), gallery)
        rows: dict[int, TrackRow] = {}
        for row, weight in sorted(self._found, key=lambda pair: (-pair[1], pair[0].track)):
            found = persons.identify(row.embedding, row.start_s, row.end_s, weight=weight)
            rows[row.track] = replace(row, person=found.person, known=found.known, person_score=found.score)
        names: dict[str, str] = {}
        ordered = [rows[number] for number in sorted(rows)]
        for row in ordered:
            if not row.known and row.embedding is not None:
                names.setdefault(row.person, f"person {len(names) + 1}")
        return [row if row.known else replace(row, person=names.get(row.person, row.person)) for row in ordered]

    def _tell(self, time_s: float) -> None:
        sampling, info = self._options.sampling, self._info
        duration = info.duration_s if sampling.end_s is None else sampling.end_s
        self._progress(VideoProgress(self._frames, self._book.rows, time_s - info.start_s, duration))


def _faces_of(outcome: Outcome[Faces]) -> Faces:
    if outcome.value is not None:
        return outcome.value
    none = np.empty(0, np.float32)
    return Faces(
        name="",
        width=0,
        height=0,
        boxes=np.empty((0, 4), np.float32),
        landmarks=np.empty((0, 5, 2), np.float32),
        scores=none,
        embeddings=np.empty((0, 0), np.float32),
        norms=none,
        status=np.empty(0, np.uint8),
        quality=Quality(none, none, none, none, none),
    )
