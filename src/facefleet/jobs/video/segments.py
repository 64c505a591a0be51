"""What a video's job has done so far: detections in files of a few hundred frames, each whole or not there.

Owns the folder. A segment is written under another name, synced and renamed, so that after a kill at any moment the
job goes on after the last one. numpy archives without pickles: nothing in them runs.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from facefleet.errors import OutputError, OutputExistsError
from facefleet.jobs.durable import disk_errors, put, sync
from facefleet.sources.video import Position
from facefleet.types import Faces, Quality, U8Array

_VERSION = 1
_QUALITY = ("size_px", "blur", "yaw_deg", "pitch_deg", "roll_deg")


@dataclass(slots=True)
class FrameFaces:
    """The detections of one frame.

    Attributes:
        index: As `VideoFrame.index`.
        pts: Its timestamp.
        time_s: Its time.
        cut: Whether it begins another scene.
        faces: Its faces, without embeddings and chips; none where it failed.
        tracks: (n,) int64.
        error: Error code of a frame that failed, else empty.
    """

    index: int
    pts: int
    time_s: float
    cut: bool
    faces: Faces
    tracks: NDArray[np.int64]
    error: str = ""


@dataclass(slots=True)
class Segment:
    """Some frames after each other.

    Attributes:
        frames: Their detections.
        chips: Those faces' chips that may be embedded, by row among the faces of the video.
        position: Where to go on; None after the last segment.
        note: JSON's types; what the last segment has to say of the whole video.
    """

    frames: list[FrameFaces]
    chips: dict[int, U8Array]
    position: Position | None
    note: dict[str, Any] = field(default_factory=dict)


class Segments:
    """The folder of segments.

    Args:
        folder: Made if need be.
        settings: What results depend on; JSON's types.
        overwrite: Whether to begin anew.

    Raises:
        OutputExistsError: The folder is that of another video or other settings.
        OutputError: It cannot be used.
    """

    def __init__(self, folder: Path, settings: dict[str, Any], *, overwrite: bool = False) -> None:
        self._folder = folder
        described = json.dumps({"version": _VERSION, **settings}, sort_keys=True, indent=1)
        known = folder / "settings.json"
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            if overwrite:
                for path in [known, *folder.glob("segment-*")]:
                    path.unlink(missing_ok=True)
            if known.exists() and known.read_text() != described:
                raise OutputExistsError(
                    f"{folder.parent}: made from another video, with another model or other settings",
                    hint="write to another folder, or use --overwrite to start anew",
                )
            if not known.exists():
                self._write(known, described.encode())
        self.count = 0
        while (folder / self._name(self.count)).exists():
            self.count += 1

    @staticmethod
    def _name(number: int) -> str:
        return f"segment-{number:06d}.npz"

    def _write(self, path: Path, data: bytes) -> None:
        part = path.with_name(f".{path.name}.part")
        part.write_bytes(data)
        sync(part)
        put(part, path)

    def append(self, segment: Segment) -> None:
        """Make a segment durable.

        Raises:
            OutputError: It cannot be written; nothing of it counts.
        """
        path = self._folder / self._name(self.count)
        part = path.with_name(f".{path.name}.part")
        with disk_errors(path):
            with part.open("wb") as stream:
                np.savez(stream, allow_pickle=False, **_arrays(segment))  # mostly chips, which deflate hardly helps
            sync(part)
            put(part, path)
        self.count += 1

    def __iter__(self) -> Iterator[Segment]:
        for number in range(self.count):
            path = self._folder / self._name(number)
            try:
                with path.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
                    segment = _segment(arrays)
            except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
                raise OutputError(f"{path}: {error}", hint="it is damaged: use --overwrite to start anew") from error
            yield segment


def _arrays(segment: Segment) -> dict[str, NDArray[Any]]:
    frames = segment.frames
    each = [frame.faces for frame in frames]
    words = {"position": asdict(segment.position) if segment.position else None, "note": segment.note}

    def joined(parts: list[NDArray[Any]], width: tuple[int, ...], dtype: type) -> NDArray[Any]:
        return np.concatenate(parts) if parts else np.empty((0, *width), dtype)

    return {
        "index": np.array([frame.index for frame in frames], np.int64),
        "pts": np.array([frame.pts for frame in frames], np.int64),
        "time_s": np.array([frame.time_s for frame in frames], np.float64),
        "cut": np.array([frame.cut for frame in frames], bool),
        "error": np.array([frame.error for frame in frames], "U64"),
        "size": np.array([(faces.width, faces.height, len(faces)) for faces in each], np.int64).reshape(-1, 3),
        "best_rejected": np.array([faces.best_rejected for faces in each], np.float64),
        "boxes": joined([faces.boxes for faces in each], (4,), np.float32),
        "landmarks": joined([faces.landmarks for faces in each], (5, 2), np.float32),
        "scores": joined([faces.scores for faces in each], (), np.float32),
        "status": joined([faces.status for faces in each], (), np.uint8),
        "tracks": joined([frame.tracks for frame in frames], (), np.int64),
        **{key: joined([getattr(faces.quality, key) for faces in each], (), np.float32) for key in _QUALITY},
        "chip_rows": np.array(list(segment.chips), np.int64),
        "chips": np.stack(list(segment.chips.values())) if segment.chips else np.empty((0, 112, 112, 3), np.uint8),
        "words": np.frombuffer(json.dumps(words).encode(), np.uint8),
    }


def _segment(stored: Any) -> Segment:  # noqa: ANN401  # numpy's NpzFile
    arrays = {name: stored[name] for name in stored.files}
    words = json.loads(arrays["words"].tobytes())
    frames = []
    start = 0
    for number, (width, height, count) in enumerate(arrays["size"].tolist()):
        rows = slice(start, start + count)
        start += count
        faces = Faces(
            name="",
            width=width,
            height=height,
            boxes=arrays["boxes"][rows],
            landmarks=arrays["landmarks"][rows],
            scores=arrays["scores"][rows],
            embeddings=np.empty((count, 0), np.float32),
            norms=np.full(count, np.nan, np.float32),
            status=arrays["status"][rows],
            quality=Quality(*(arrays[key][rows] for key in _QUALITY)),
            best_rejected=float(arrays["best_rejected"][number]),
        )
        frames.append(
            FrameFaces(
                int(arrays["index"][number]),
                int(arrays["pts"][number]),
                float(arrays["time_s"][number]),
                bool(arrays["cut"][number]),
                faces,
                arrays["tracks"][rows],
                str(arrays["error"][number]),
            )
        )
    chips = dict(zip(arrays["chip_rows"].tolist(), arrays["chips"], strict=True))
    position = None if words["position"] is None else Position(**words["position"])
    return Segment(frames, chips, position, words["note"])
