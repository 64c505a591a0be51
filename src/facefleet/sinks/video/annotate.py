"""A copy of a video with boxes and names drawn in or faces made unrecognizable; H.264, the sound as it was.

Owns the encoder and the sound's way from the old container into the new one. Frames come upright from whoever decodes
them, so the copy needs no rotation. Runs in the caller's thread.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from facefleet.decode.ffmpeg import AvObject, explain, load
from facefleet.errors import BackendUnavailableError, OutputError
from facefleet.sinks.video.overlay import Overlay, Placed
from facefleet.sinks.video.redact import redact
from facefleet.types import RGBArray

_ENCODERS = ("libx264", "libopenh264", "h264_nvenc", "h264_videotoolbox")
_MP4_SOUND = ("aac", "mp3", "ac3", "eac3", "alac", "opus", "flac")
_PALETTE = ((64, 201, 98), (66, 155, 245), (245, 180, 46), (214, 99, 230), (52, 207, 207), (240, 110, 90))
_DRAWN_GREY = (200, 200, 200)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOptions:
    """What is done to the frames.

    Attributes:
        draw: Whether boxes and names are drawn.
        redact: ``all``, ``unknown``, or the name of a person; None: nobody.
        names: Whose each track is.
        known: Tracks of persons of the gallery.
        crf: Quality of H.264, lower is better.
        threads: Threads that the encoder may use; 0: as many as it likes.
    """

    draw: bool
    redact: str | None = None
    names: dict[int, str] = field(default_factory=dict)
    known: frozenset[int] = frozenset()
    crf: int = 20
    threads: int = 0

    def hides(self, track: int) -> bool:
        """Whether a face of this track (-1: of none) is made unrecognizable."""
        if self.redact is None:
            return False
        if self.redact == "all":
            return True
        return track not in self.known if self.redact == "unknown" else self.names.get(track) == self.redact


def sound_container(source: Path) -> str:
    """``.mp4`` if that can hold the sound of `source` as it is, else ``.mkv``."""
    with load().open(str(source)) as container:
        codecs = [stream.codec_context.name for stream in container.streams.audio if stream.codec_context]
    return ".mp4" if all(codec in _MP4_SOUND for codec in codecs) else ".mkv"


def annotate_video(
    path: Path,
    source: Path,
    frames: Iterable[tuple[int, float, RGBArray]],
    overlay: Overlay,
    options: CopyOptions,
    *,
    time_base: Fraction,
    rate_fps: float | None,
) -> int:
    """Write the copy.

    Args:
        path: The new file; see `sound_container`.
        source: Where the sound comes from.
        frames: Timestamp, time in seconds, and (h, w, 3) uint8 RGB of every frame, in order; all of one size, others
            are scaled to the first one's.
        overlay: Where the faces are.
        options: What is done.
        time_base: What timestamps count, in seconds.
        rate_fps: Frames per second, as a hint for the encoder; times are kept whatever it is.

    Returns:
        Frames written.

    Raises:
        OutputError: It cannot be written.
        BackendUnavailableError: There is no H.264 encoder.
    """
    av = load()
    written = 0
    with contextlib.ExitStack() as stack:
        try:
            target = stack.enter_context(av.open(str(path), "w"))
            sound = _Sound(stack.enter_context(av.open(str(source))), target)
            encoder: AvObject = None
            for pts, time_s, pixels in frames:
                if encoder is None:
                    encoder = _encoder(av, target, pixels.shape, time_base, rate_fps, options)
                    sound.start(time_s)
                canvas = drawn(pixels, overlay.at(time_s), options)
                frame = av.VideoFrame.from_ndarray(_even(canvas, encoder.width, encoder.height), "rgb24")
                frame.pts, frame.time_base = pts, time_base
                sound.mux_until(time_s)
                target.mux(encoder.encode(frame))
                written += 1
            if encoder is not None:
                target.mux(encoder.encode(None))
                sound.mux_until(time_s + 1 / (rate_fps or 1))
        except av.error.FFmpegError as error:
            raise OutputError(f"{path}: {explain(error, path.name).message}", hint="check free space") from error
    return written


def drawn(pixels: RGBArray, faces: list[Placed], options: CopyOptions) -> RGBArray:
    """A copy of a frame with everything done to it that `options` asks for."""
    canvas = pixels.copy()
    for face in faces:
        if options.hides(face.track):
            redact(canvas, face.box)
    if options.draw:
        for face in faces:
            if not face.held:
                _draw(canvas, face, options.names.get(face.track))
    return canvas


def _draw(canvas: RGBArray, face: Placed, name: str | None) -> None:
    color = _DRAWN_GREY if name is None else _PALETTE[zlib.crc32(name.encode()) % len(_PALETTE)]
    unit = max(1.0, max(canvas.shape[:2]) / 900)
    x1, y1, x2, y2 = (round(float(value)) for value in face.box)
    line = max(1, round(1.6 * unit))
    cv2.rectangle(canvas, (x1, y1), (x2, y2), (0, 0, 0), line + 2)
    cv2.rectangle(canvas, (x1, y1), (x2, y2), color, line)
    if name is None:
        return
    text = name.encode("ascii", "replace").decode()  # OpenCV's font has no other letters
    size, weight = 0.45 * unit, max(1, round(unit))
    (width, height), base = cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, size, weight)
    left = max(0, min(x1, canvas.shape[1] - width))
    top = y1 - height - base if y1 > height + base else min(y2, canvas.shape[0] - height - base)
    cv2.rectangle(canvas, (left, top), (left + width, top + height + base), color, -1)
    place = (left, top + height + base // 2)
    cv2.putText(canvas, text, place, cv2.FONT_HERSHEY_SIMPLEX, size, (0, 0, 0), weight, cv2.LINE_AA)


def _even(pixels: RGBArray, width: int, height: int) -> RGBArray:
    """A frame in the size of the encoder, whose sides are even."""
    if abs(pixels.shape[0] - height) > 1 or abs(pixels.shape[1] - width) > 1:
        return np.asarray(cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA), np.uint8)
    down, right = max(0, height - pixels.shape[0]), max(0, width - pixels.shape[1])
    return np.ascontiguousarray(
        np.pad(pixels, ((0, down), (0, right), (0, 0)), mode="edge")[:height, :width] if down or right else pixels
    )


def _encoder(
    av: AvObject,
    target: AvObject,
    shape: tuple[int, ...],
    time_base: Fraction,
    rate_fps: float | None,
    options: CopyOptions,
) -> AvObject:
    for name in _ENCODERS:
        try:
            stream = target.add_stream(name, rate=Fraction(rate_fps or 25).limit_denominator(100_000))
        except (av.error.FFmpegError, ValueError):
            continue
        stream.width, stream.height = shape[1] + shape[1] % 2, shape[0] + shape[0] % 2
        stream.pix_fmt = "yuv420p"
        stream.time_base = stream.codec_context.time_base = time_base
        stream.codec_context.thread_count = options.threads
        stream.options = {"crf": str(options.crf), "preset": "veryfast"} if name == "libx264" else {}
        return stream
    raise BackendUnavailableError("PyAV has no H.264 encoder here", hint="install PyAV from its wheels")


class _Sound:
    """Packets of all sound streams, copied in step with the picture."""

    def __init__(self, source: AvObject, target: AvObject) -> None:
        streams = [stream for stream in source.streams.audio if stream.codec_context is not None]
        self._target = target
        self._streams = {stream.index: target.add_stream_from_template(stream) for stream in streams}
        self._packets: Iterator[AvObject] = iter(source.demux(streams)) if streams else iter(())
        self._waiting: Any = None
        self._from_s = float("-inf")

    def start(self, time_s: float) -> None:
        """Leave out what is heard before the first frame, unless the video begins there anyway."""
        self._from_s = time_s - 1.0 if time_s < 1.0 else time_s

    def mux_until(self, time_s: float) -> None:
        """Copy what is heard up to a time."""
        while (packet := self._waiting or next(self._packets, None)) is not None:
            self._waiting = None
            if packet.dts is None:
                continue
            at = float(packet.dts * packet.time_base)
            if at > time_s:
                self._waiting = packet
                return
            if at >= self._from_s:
                packet.stream = self._streams[packet.stream.index]
                self._target.mux(packet)
