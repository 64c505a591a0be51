"""What can be chosen of a video's job, and what it gives back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from facefleet.sinks.video import TrackRow
from facefleet.sources.video import Damage, Sampling, VideoInfo
from facefleet.tracks import TrackerOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoOptions:
    """How a video is analyzed.

    Attributes:
        sampling: Which frames are looked at.
        tracker: What counts as the same face.
        best: Faces a track that are embedded.
        min_faces: Tracks with fewer faces are dropped, where so many frames were looked at.
        threshold: Least cosine similarity of two tracks of one unknown person.
        commit_frames: Results are made durable after so many frames.
        max_frames: Most frames inside the engine at a time.
        max_bytes: Most bytes of pixels inside it.
        decode_threads: Threads of the video decoder; 0: as many as it likes.
        max_pixels: Frames with more pixels are refused.
        decoder: ``cpu``, or ``cuda`` or ``cuda:N`` for NVDEC.
    """

    sampling: Sampling = field(default_factory=Sampling)
    tracker: TrackerOptions = field(default_factory=TrackerOptions)
    best: int = 3
    min_faces: int = 2
    threshold: float = 0.4
    commit_frames: int = 256
    max_frames: int = 16
    max_bytes: int = 128 << 20
    decode_threads: int = 0
    max_pixels: int = 100_000_000
    decoder: str = "cpu"

    def decisive(self) -> dict[str, Any]:
        """What detections and tracks depend on; JSON's types."""
        return {"sampling": asdict(self.sampling), "tracker": asdict(self.tracker), "best": self.best}


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoOutputs:
    """What is written besides the tables.

    Attributes:
        table: Format of the tables.
        contact: Whether a contact sheet is.
        timeline: Whether a plot of persons and time is.
        chapters: Whether WebVTT and JSON chapters are.
        annotate: Whether a copy with boxes and names is.
        redact: Whom a copy hides: ``all``, ``unknown`` or a name; None: nobody.
    """

    table: Literal["parquet", "jsonl"] = "parquet"
    contact: bool = True
    timeline: bool = False
    chapters: bool = True
    annotate: bool = False
    redact: str | None = None


@dataclass(frozen=True, slots=True)
class VideoProgress:
    """How far a video is.

    Attributes:
        frames: Frames looked at, those of earlier runs included.
        faces: Faces found.
        time_s: Time of the last one, from the beginning of the video.
        duration_s: Length of the video; None where not known.
    """

    frames: int
    faces: int
    time_s: float
    duration_s: float | None


@dataclass(frozen=True, slots=True)
class VideoResult:
    """What a video's job did.

    Attributes:
        input: The video.
        output: The folder.
        info: What the container says.
        frames: Frames looked at.
        failed_frames: Error code -> frames that failed with it.
        faces: Faces found.
        tracks: The tracks, in the order they begin.
        persons: Different persons, those without an embedding aside.
        embedded: Faces embedded.
        resumed_frames: Of `frames`, those that earlier runs had done.
        damage: What was wrong with the file; false if nothing.
        seconds: Duration of this run.
        files: What was written.
        interrupted: Whether it was stopped; run it again to go on.
    """

    input: str
    output: str
    info: VideoInfo
    frames: int
    failed_frames: dict[str, int]
    faces: int
    tracks: Sequence[TrackRow]
    persons: int
    embedded: int
    resumed_frames: int
    damage: Damage
    seconds: float
    files: tuple[str, ...] = ()
    interrupted: bool = False

    def as_json(self) -> dict[str, Any]:
        """As JSON's types; the tracks as a number."""
        row = {name: getattr(self, name) for name in self.__dataclass_fields__}
        row |= {"info": asdict(self.info), "tracks": len(self.tracks), "files": list(self.files)}
        row |= {"damage": asdict(self.damage) if self.damage else None, "seconds": round(self.seconds, 3)}
        return row

    def to_json(self) -> str:
        """As one JSON object."""
        return json.dumps(self.as_json(), ensure_ascii=False)
