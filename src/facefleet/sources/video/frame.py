"""What a video source gives: frames with their time, and what is known about the whole."""

from __future__ import annotations

from dataclasses import dataclass, field

from facefleet.types import Image


@dataclass(frozen=True, slots=True)
class VideoFrame:
    """One decoded frame that was asked for.

    Attributes:
        index: Frames decoded before it, from the place where decoding was to begin; 0 for the first.
        pts: Presentation timestamp as the demuxer gives it, in the stream's time base.
        time_s: The same in seconds; the first frame of a file need not be at 0.
        image: Upright RGB; its name is that of the video and the time.
        keyframe: Whether the decoder needs no other frame for it.
        corrupt: Whether the decoder says that parts of it are made up.
        cut: Whether it shows another scene than the frame given before.
    """

    index: int
    pts: int
    time_s: float
    image: Image = field(repr=False)
    keyframe: bool = False
    corrupt: bool = False
    cut: bool = False


@dataclass(frozen=True, slots=True)
class VideoInfo:
    """What a container says about its video.

    Attributes:
        name: The path.
        stream: Index of the stream that is read, the container's best.
        codec: Name of the codec, e.g. ``h264``.
        pixel_format: FFmpeg's name, e.g. ``yuv420p10le``.
        width: Width in pixels of the upright picture, as the first frame shows it.
        height: Height in pixels.
        start_s: Time of the first frame, where known.
        duration_s: Length of the video in seconds; None where the container does not say.
        rate_fps: Average frames per second; None where not known.
        frames: Frames declared; 0 where not known.
        audio: Whether there is sound.
        time_base: Numerator and denominator of what timestamps count, in seconds.
    """

    name: str
    stream: int
    codec: str
    pixel_format: str
    width: int
    height: int
    start_s: float
    duration_s: float | None
    rate_fps: float | None
    frames: int
    audio: bool
    time_base: tuple[int, int]


@dataclass(slots=True)
class Damage:
    """What was wrong with a video that could be read in part.

    Attributes:
        first_s: Time of the last good frame before the first damage; None if it is in the first one.
        packets: Packets that could not be decoded.
        frames: Frames that the decoder had to make up in part.
        missing_s: Seconds, or None, by which the video ends earlier than its container says.
        reason: What FFmpeg said first.
    """

    first_s: float | None = None
    packets: int = 0
    frames: int = 0
    missing_s: float | None = None
    reason: str = ""

    def __bool__(self) -> bool:
        return bool(self.packets or self.frames or self.missing_s or self.reason)

    def __str__(self) -> str:
        parts = []
        if self.packets:
            parts.append(f"{self.packets} packets cannot be decoded")
        if self.frames:
            parts.append(f"{self.frames} frames are damaged")
        if self.missing_s:
            parts.append(f"the last {self.missing_s:.2f} s are missing")
        where = "from the beginning" if self.first_s is None else f"after {self.first_s:.3f} s"
        return f"{', '.join(parts) or self.reason} ({where})"
