"""Small videos made on the spot: what is in each frame, and when it is shown, is the test's to say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np

MILLI = Fraction(1, 1000)
COLORS = ((230, 40, 40), (40, 60, 235), (40, 200, 60), (235, 200, 40))


def write_video(
    path: Path,
    frames: Iterable[np.ndarray],
    times_ms: Sequence[int] | None = None,
    *,
    codec: str = "libx264",
    gop: int = 12,
    sound: bool = False,
) -> Path:
    """Encode (h, w, 3) uint8 RGB frames; 40 ms apart unless times are given."""
    import av

    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=25)
        stream.pix_fmt = "yuv420p"
        stream.time_base = stream.codec_context.time_base = MILLI
        stream.gop_size = gop
        audio = container.add_stream("aac", rate=16000) if sound else None
        count = 0
        for number, pixels in enumerate(frames):
            if number == 0:
                stream.width, stream.height = pixels.shape[1], pixels.shape[0]
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), "rgb24")
            frame.pts = times_ms[number] if times_ms is not None else 40 * number
            frame.time_base = MILLI
            container.mux(stream.encode(frame))
            count += 1
        container.mux(stream.encode(None))
        if audio is not None:
            for start in range(0, 16000 * 40 * count // 1000, 1024):
                wave = (8000 * np.sin(np.arange(start, start + 1024) / 8)).astype(np.int16)
                piece = av.AudioFrame.from_ndarray(wave[None], format="s16", layout="mono")
                piece.sample_rate, piece.pts, piece.time_base = 16000, start, Fraction(1, 16000)
                container.mux(audio.encode(piece))
            container.mux(audio.encode(None))
    return path


def squares(count: int, *, size: tuple[int, int] = (160, 240), persons: int = 2) -> list[np.ndarray]:
    """Frames with colored squares that move; see `find_squares`."""
    frames = []
    for number in range(count):
        pixels = np.full((*size, 3), 25, np.uint8)
        for person in range(persons):
            x, y = 12 + 3 * number % (size[1] - 60) + 4 * person, 16 + 70 * person
            pixels[y : y + 36, x : x + 30] = COLORS[person]
        frames.append(pixels)
    return frames
