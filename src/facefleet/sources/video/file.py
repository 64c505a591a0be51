"""A video file as frames: every frame that was asked for, in order, with the demuxer's time.

Owns opening, seeking, and going on past damage as far as the decoder can. Refuses playlists that lead to other
addresses. Decodes in the thread that iterates; FFmpeg's own threads help it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from facefleet.decode.ffmpeg import AvObject
from facefleet.errors import CorruptVideoError
from facefleet.sources.video.frame import Damage, VideoFrame, VideoInfo
from facefleet.sources.video.hardware import check_decoder
from facefleet.sources.video.picture import Developer, change, orientation, thumbnail
from facefleet.sources.video.plan import Plan, may_skip
from facefleet.sources.video.reader import Reader
from facefleet.sources.video.sampling import CUT, Sampler, Sampling
from facefleet.types import Image, U8Array

_TOLERANCE_S, _TOLERANCE = 0.15, 0.01


@dataclass(frozen=True, slots=True)
class Position:
    """Where to go on after a frame: see `VideoFile`. All of it is JSON's types.

    Attributes:
        index: The frame's `VideoFrame.index`.
        pts: Its timestamp.
        sampler: State of the sampler after it.
        thumb: The frame's thumbnail, in hexadecimal.
        damaged: Whether there was damage up to it: then the file is decoded from its beginning again, since what a
            decoder makes up depends on what it has seen.
    """

    index: int
    pts: int
    sampler: dict[str, Any]
    thumb: str
    damaged: bool


class VideoFile:
    """Opens a video file; iterate it, once, inside its ``with`` block.

    Args:
        path: The file.
        sampling: Which frames; default: every one.
        after: Where an earlier run ended: the first frame given is the one that would have followed.
        threads: Threads that FFmpeg may use; 0: as many as it likes.
        max_pixels: Frames with more pixels are refused.
        decoder: ``cpu``, or ``cuda`` or ``cuda:N`` for NVDEC.

    Raises:
        ConfigError: There is no such decoder.
        InputError: On entering: the file cannot be read, is empty, is no video, or not one frame can be decoded.
        BackendUnavailableError: PyAV is not installed, or the decoder cannot be used.
    """

    def __init__(
        self,
        path: str | Path,
        sampling: Sampling | None = None,
        *,
        after: Position | None = None,
        threads: int = 0,
        max_pixels: int = 100_000_000,
        decoder: str = "cpu",
    ) -> None:
        check_decoder(decoder)
        self.name = str(path)
        self._decoder = decoder
        self.sampling = sampling or Sampling()
        self._after = after
        self._threads = threads
        self._max_pixels = max_pixels
        self._before: U8Array | None = None  # thumbnail of the last frame decoded
        self._taken: U8Array | None = None  # ... and of the last one given
        self._cut = False  # whether there was a cut after that

    def __enter__(self) -> Self:
        self._developer = Developer(self._max_pixels)
        self._reader = Reader(
            self.name,
            threads=self._threads,
            keyframes=self.sampling.keyframes,
            damage=Damage(),
            decoder=self._decoder,
        )
        try:
            self._frames = self._reader.frames()
            self._first = next(self._frames, None)
            if self._first is None:
                raise CorruptVideoError(
                    f"{self.name}: not one frame can be decoded: {self.damage.reason or 'empty'}",
                    hint="" if self._decoder == "cpu" else "NVDEC may not know its codec: try the decoder cpu",
                )
            self.info = self._information(self._first)
        except BaseException:
            self._reader.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.close()

    @property
    def damage(self) -> Damage:
        """What was wrong so far; false if nothing. Complete once iterated to the end."""
        return self._reader.damage

    def __iter__(self) -> Iterator[VideoFrame]:
        return (frame for frame, _ in self.with_positions())

    def with_positions(self) -> Iterator[tuple[VideoFrame, Position]]:
        """Every frame with the place to go on after it.

        Raises:
            ImageTooLargeError: A frame has more pixels than allowed.
        """
        sampling, after = self.sampling, self._after
        sampler = Sampler(sampling, after.sampler if after else None)
        if after is not None:
            self._before = self._taken = _thumb_of(after.thumb)
        start = self.info.start_s
        from_s = start + (sampling.start_s or 0) - 1e-6
        end_s = math.inf if sampling.end_s is None else start + sampling.end_s - 1e-6
        index = after.index if after else -1
        base = float(self._reader.stream.time_base)

        def counts(pts: int) -> bool:
            return (after is None or pts > after.pts) and (not sampling.start_s or pts * base >= from_s)

        plan = None
        if may_skip(sampling, self.info.codec, self._reader.container.format.name):
            plan = Plan(sampling, lambda pts: pts * base, counts, index, sampler.state)
        for frame in self._from(from_s, plan):
            time_s = self._reader.time_s(frame)
            if plan is not None:
                planned = plan.take(frame.pts)
                if planned is None:
                    continue
                index, wanted, state = planned.index, planned.wanted, planned.state
            else:
                if not counts(frame.pts):
                    continue
                index += 1
                wanted, state = sampler.due(index, time_s), sampler.state
            if time_s >= end_s:
                return
            if (given := self._given(frame, index, time_s, sampler, wanted=wanted, state=state)) is not None:
                yield given
        self._note_missing()

    def _given(
        self,
        frame: AvObject,
        index: int,
        time_s: float,
        sampler: Sampler,
        *,
        wanted: bool,
        state: dict[str, Any],
    ) -> tuple[VideoFrame, Position] | None:
        thumb = thumbnail(frame)
        # Between key frames a scene changes anyway; elsewhere a cut is what happens from one frame to the next.
        cut = self._before is not None and not self.sampling.keyframes and change(self._before, thumb) > CUT
        self._before, self._cut = thumb, self._cut or cut
        if not wanted and not (self._taken is not None and sampler.changed(change(self._taken, thumb))):
            return None
        cut, self._cut, self._taken = self._cut, False, thumb
        pixels = self._developer.rgb(frame)
        height, width = pixels.shape[:2]
        image = Image(pixels, width, height, f"{self.name}@{time_s:.3f}s", "video")
        given = VideoFrame(index, frame.pts, time_s, image, bool(frame.key_frame), bool(frame.is_corrupt), cut)
        return given, Position(index, frame.pts, state, thumb.tobytes().hex(), bool(self.damage))

    def _from(self, from_s: float, plan: Plan | None) -> Iterator[AvObject]:
        """Frames from the beginning, or from a key frame before the place where to begin."""
        self._reader.plan = plan
        if self._after is not None and not self._after.damaged:
            return self._reader.frames(self._after.pts)
        if self.sampling.start_s and self._after is None:
            return self._reader.frames(math.floor(from_s / float(self._reader.stream.time_base)))
        assert self._first is not None
        if plan is not None:  # what was read before was not planned
            return self._reader.frames(self._first.pts)
        return itertools.chain([self._first], self._frames)

    def _note_missing(self) -> None:
        """Hold what came against what the container promised."""
        info, reader = self.info, self._reader
        step = 1 / info.rate_fps if info.rate_fps else 0.0
        end = info.start_s if reader.last_s is None else reader.last_s + step
        missing, lasts = 0.0, info.duration_s
        packets = reader.packets
        if reader.container.format.name == "avi":  # it counts frames that a recorder dropped, which have no packet
            lasts, packets = max(lasts or 0.0, info.frames * step), None
        if lasts is not None and not self.sampling.keyframes:
            missing = info.start_s + lasts - end
            missing = missing if missing > max(_TOLERANCE_S, 2 * step, _TOLERANCE * lasts) else 0.0
        if packets is not None and 0 < packets < info.frames:
            missing = max(missing, (info.frames - packets) * step)
        if missing > 0:
            if not self.damage:
                self.damage.first_s, self.damage.reason = reader.last_s, "the file ends early"
            self.damage.missing_s = round(missing, 3)

    def _information(self, first: AvObject) -> VideoInfo:
        stream, container = self._reader.stream, self._reader.container
        turned = orientation(first)[0] == 0
        size = (first.height, first.width) if turned else (first.width, first.height)
        base = float(stream.time_base)
        start = self._reader.time_s(first) if stream.start_time is None else float(stream.start_time * stream.time_base)
        duration = None if stream.duration is None else stream.duration * base
        if duration is None and container.duration is not None and len(container.streams) == 1:
            duration = container.duration / 1e6
            if "matroska" in container.format.name:  # there it is the time of the end, as FFmpeg writes it
                duration = max(duration - start, 0.0)
        return VideoInfo(
            name=self.name,
            stream=stream.index,
            codec=stream.codec_context.name,
            pixel_format=first.format.name,
            width=size[0],
            height=size[1],
            start_s=start,
            duration_s=duration,
            rate_fps=float(stream.average_rate) if stream.average_rate else None,
            frames=stream.frames,
            audio=bool(container.streams.audio),
            time_base=(stream.time_base.numerator, stream.time_base.denominator),
        )


def _thumb_of(text: str) -> U8Array:
    return np.frombuffer(bytes.fromhex(text), np.uint8).reshape(18, 32)
