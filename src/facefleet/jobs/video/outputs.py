"""What a finished video leaves: tables, pictures, chapters, copies. Each file is whole or not there.

Reads detections segment by segment, so that memory does not grow with the video but for the boxes of a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np

from facefleet.jobs.durable import disk_errors
from facefleet.jobs.video.options import VideoOptions, VideoOutputs
from facefleet.jobs.video.segments import Segments
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
from facefleet.sinks.video.annotate import sound_container
from facefleet.sources.video import VideoFile, VideoInfo
from facefleet.types import U8Array


def save_chip(output: Path, track: int, chip: U8Array, *, source: str = "") -> str:
    """Write a track's best chip; its path relative to `output`."""
    from PIL import Image as PILImage

    name = f"chips/{source + '-' if source else ''}track-{track:06d}.png"
    with disk_errors(output / name):
        (output / "chips").mkdir(exist_ok=True)
        PILImage.fromarray(chip).save(output / name, compress_level=1)
    return name


def write_outputs(
    path: Path,
    output: Path,
    segments: Segments,
    tracks: Sequence[TrackRow],
    outputs: VideoOutputs,
    info: VideoInfo,
    options: VideoOptions,
    dimension: int,
    metadata: dict[str, str],
) -> tuple[str, ...]:
    """Write everything that was asked for.

    Returns:
        The files, relative to `output`.

    Raises:
        OutputError: One cannot be written.
    """
    written: list[str] = []

    def put(name: str, write: Callable[[Path], object]) -> None:
        part = output / f".part-{name}"
        with disk_errors(output / name):
            if write(part) == 0:  # nothing to show
                part.unlink(missing_ok=True)
                return
            part.replace(output / name)
            written.append(name)

    persons = {track.track: track.person for track in tracks}
    end_s = _last_time(segments, info)
    put(f"faces.{outputs.table}", lambda part: _write_faces(part, segments, persons, metadata))
    put(f"tracks.{outputs.table}", lambda part: write_tracks(part, tracks, dimension, metadata))
    if outputs.chapters:
        for name in ("chapters.vtt", "chapters.json"):
            put(name, lambda part: write_chapters(part, tracks, start_s=info.start_s))
    if outputs.contact:
        put("contact.jpg", lambda part: contact_sheet(part, output, tracks))
    if outputs.timeline:
        put(
            "timeline.png",
            lambda part: plot_timeline(part, tracks, title=path.name, start_s=info.start_s, end_s=end_s),
        )
    if outputs.annotate or outputs.redact is not None:
        kind = "annotated" if outputs.redact is None else "redacted"
        with disk_errors(path):
            suffix = sound_container(path)
        put(
            kind + suffix,
            lambda part: _write_copy(part, path, segments, tracks, outputs, options, info),
        )
    return tuple(written)


def _write_faces(path: Path, segments: Segments, persons: dict[int, str], metadata: dict[str, str]) -> None:
    with FacesWriter(path, metadata) as writer:
        for segment in segments:
            for frame in segment.frames:
                writer.write(frame.index, frame.pts, frame.time_s, frame.faces, frame.tracks, persons)


def _last_time(segments: Segments, info: VideoInfo) -> float:
    if info.duration_s is not None:
        return info.start_s + info.duration_s
    return max((segment.frames[-1].time_s for segment in segments if segment.frames), default=info.start_s)


def _write_copy(
    path: Path,
    source: Path,
    segments: Segments,
    tracks: Sequence[TrackRow],
    outputs: VideoOutputs,
    options: VideoOptions,
    info: VideoInfo,
) -> int:
    times, boxes, numbers, moments = [], [], [], []
    for segment in segments:
        for frame in segment.frames:
            moments.append(frame.time_s)
            times.append(np.full(len(frame.faces), frame.time_s))
            boxes.append(frame.faces.boxes)
            numbers.append(frame.tracks)
    none = np.empty(0)
    # Where frames were left out, a face may have come or gone up to the next one that was looked at.
    gaps = np.diff(moments) if len(moments) > 1 else none
    hold = float(gaps.max()) if len(gaps) else 0.0
    overlay = Overlay(
        np.concatenate([*times, none]),
        np.concatenate([*boxes, np.empty((0, 4), np.float32)]),
        np.concatenate([*numbers, np.empty(0, np.int64)]),
        hold_s=hold,
    )
    copy = CopyOptions(
        draw=outputs.annotate,
        redact=outputs.redact,
        names={track.track: track.person for track in tracks},
        known=frozenset(track.track for track in tracks if track.known),
        threads=options.decode_threads,
    )
    every = replace(options.sampling, every=1, fps=None, keyframes=False, scene=None)
    with VideoFile(
        source, every, threads=options.decode_threads, max_pixels=options.max_pixels, decoder=options.decoder
    ) as video:
        frames = ((frame.pts, frame.time_s, frame.image.pixels) for frame in video)
        return annotate_video(
            path, source, frames, overlay, copy, time_base=Fraction(*info.time_base), rate_fps=info.rate_fps
        )
