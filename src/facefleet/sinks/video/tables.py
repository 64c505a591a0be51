"""Tables of a video: one row a face, one row a track; Parquet or JSON Lines by the file's extension.

| faces | type | meaning |
|---|---|---|
| frame, pts | int64 | number of the frame from the beginning, timestamp in the stream's time base |
| time_s | float64 | the same in seconds |
| face | int32 | number of the face within the frame |
| track, person | int32, string, nullable | its track and whose it is; null where it belongs to none |
| x1 y1 x2 y2, landmarks, score, status, size_px, blur, yaw_deg, pitch_deg, roll_deg, width, height | | as for photos |

| tracks | type | meaning |
|---|---|---|
| track | int32 | number within the video |
| person, known, person_score | string, bool, float32 nullable | whose it is, whether from the gallery, how alike |
| start_s, end_s | float64 | time of the first and of the last face |
| faces, embedded | int32 | faces seen, faces embedded |
| score | float32 | mean detector score |
| best_s, chip | float64, string, nullable | the best face: time, and path of its chip |
| embedding | fixed list of d float32, nullable | L2-normalised mean of the best faces |
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from facefleet.errors import ConfigError
from facefleet.sinks.video.rows import TrackRow
from facefleet.types import Faces, FaceStatus

_QUALITY = ("size_px", "blur", "yaw_deg", "pitch_deg", "roll_deg")
_ROWS = 8192
_FORMATS = (".parquet", ".jsonl")


class FacesWriter:
    """Writes the faces of a video as frames come.

    Args:
        path: ``.parquet`` or ``.jsonl``.
        metadata: Kept in a Parquet file.

    Raises:
        ConfigError: Another extension.
    """

    def __init__(self, path: Path, metadata: dict[str, str]) -> None:
        if path.suffix not in _FORMATS:
            raise ConfigError(f"{path.name}: unknown format", hint=f"use one of {', '.join(_FORMATS)}")
        self._path = path
        self._metadata = {f"facefleet.{key}": value for key, value in sorted(metadata.items())}
        self._rows: list[dict[str, Any]] = []
        self._writer: Any = None

    def __enter__(self) -> Self:
        if self._path.suffix == ".parquet":
            import pyarrow.parquet as pq

            self._writer = pq.ParquetWriter(self._path, self._schema(), compression="zstd")
        else:
            self._writer = self._path.open("w", encoding="utf-8")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._flush()
        finally:
            self._writer.close()

    def write(
        self, frame: int, pts: int, time_s: float, faces: Faces, tracks: NDArray[np.int64], persons: dict[int, str]
    ) -> None:
        """Add the faces of a frame.

        Args:
            frame: Number of the frame.
            pts: Its timestamp.
            time_s: Its time.
            faces: Its faces.
            tracks: (n,) int64.
            persons: Whose each track is; a track that is not in it counts as none.
        """
        for face in faces:
            track = int(tracks[face.index])
            belongs = track in persons
            box = face.box
            self._rows.append(
                {
                    "frame": frame,
                    "pts": pts,
                    "time_s": time_s,
                    "face": face.index,
                    "track": track if belongs else None,
                    "person": persons[track] if belongs else None,
                    **{key: float(value) for key, value in zip(("x1", "y1", "x2", "y2"), box, strict=True)},
                    "landmarks": _list(face.landmarks.reshape(-1)),
                    "score": face.score,
                    "status": FaceStatus(face.status).name.lower(),
                    **{key: _number(getattr(faces.quality, key)[face.index]) for key in _QUALITY},
                    "width": faces.width,
                    "height": faces.height,
                }
            )
        if len(self._rows) >= _ROWS:
            self._flush()

    def _flush(self) -> None:
        if self._path.suffix == ".parquet":
            import pyarrow as pa

            if self._rows:
                self._writer.write_table(pa.Table.from_pylist(self._rows, self._schema()))
        else:
            self._writer.writelines(json.dumps(_short(row), ensure_ascii=False) + "\n" for row in self._rows)
        self._rows.clear()

    def _schema(self) -> Any:  # noqa: ANN401  # pyarrow is untyped
        import pyarrow as pa

        single = pa.float32()
        fields = [
            pa.field("frame", pa.int64(), nullable=False),
            pa.field("pts", pa.int64(), nullable=False),
            pa.field("time_s", pa.float64(), nullable=False),
            pa.field("face", pa.int32(), nullable=False),
            pa.field("track", pa.int32()),
            pa.field("person", pa.string()),
            *(pa.field(name, single, nullable=False) for name in ("x1", "y1", "x2", "y2")),
            pa.field("landmarks", pa.list_(single, 10)),
            pa.field("score", single, nullable=False),
            pa.field("status", pa.string(), nullable=False),
            *(pa.field(name, single) for name in _QUALITY),
            pa.field("width", pa.int32(), nullable=False),
            pa.field("height", pa.int32(), nullable=False),
        ]
        return pa.schema(fields, metadata=self._metadata)


def write_tracks(path: Path, tracks: Sequence[TrackRow], dimension: int, metadata: dict[str, str]) -> None:
    """Write the tracks of a video.

    Args:
        path: ``.parquet`` or ``.jsonl``.
        tracks: In the order of the rows.
        dimension: Length of an embedding.
        metadata: Kept in a Parquet file.
    """
    if path.suffix != ".parquet":
        with path.open("w", encoding="utf-8") as stream:
            stream.writelines(json.dumps(track_as_json(track), ensure_ascii=False) + "\n" for track in tracks)
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    fields = [
        pa.field("track", pa.int32(), nullable=False),
        pa.field("person", pa.string(), nullable=False),
        pa.field("known", pa.bool_(), nullable=False),
        pa.field("person_score", pa.float32()),
        pa.field("start_s", pa.float64(), nullable=False),
        pa.field("end_s", pa.float64(), nullable=False),
        pa.field("faces", pa.int32(), nullable=False),
        pa.field("score", pa.float32(), nullable=False),
        pa.field("embedded", pa.int32(), nullable=False),
        pa.field("best_s", pa.float64()),
        pa.field("chip", pa.string()),
        pa.field("embedding", pa.list_(pa.float32(), dimension)),
    ]
    schema = pa.schema(fields, metadata={f"facefleet.{key}": value for key, value in sorted(metadata.items())})
    rows = [{field.name: getattr(track, field.name) for field in fields} for track in tracks]
    pq.write_table(pa.Table.from_pylist(rows, schema), path, compression="zstd")


def track_as_json(track: TrackRow) -> dict[str, Any]:
    """A track as JSON's types."""
    row = {name: getattr(track, name) for name in TrackRow.__dataclass_fields__}
    row["embedding"] = None if track.embedding is None else _list(track.embedding)
    return _short(row)


def _short(row: dict[str, Any]) -> dict[str, Any]:
    """Floats in the digits that their precision is worth."""
    return {
        key: float(f"{value:.9g}" if key.endswith("_s") else np.float32(value).astype("U"))
        if isinstance(value, float)
        else value
        for key, value in row.items()
    }


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _list(values: NDArray[np.float32]) -> list[float] | None:
    return [float(text) for text in values.astype("U")] if np.isfinite(values).all() else None
