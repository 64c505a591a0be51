"""A table of faces, as jobs write it: read for searching, clustering and enrolling.

Owns which columns are needed. The table of `facefleet extract` has them; any Parquet file with ``embedding`` will do,
if its metadata say with ``facefleet.fingerprint`` what made it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from facefleet.errors import ExchangeError
from facefleet.types import F32Array

_QUALITY = ("size_px", "blur", "yaw_deg", "pitch_deg", "roll_deg", "score")


@dataclass(frozen=True, slots=True)
class FaceTable:
    """Faces that have an embedding.

    Attributes:
        fingerprint: Of the pipeline that made them; empty where the file does not say.
        inputs: (n,) what each picture is called.
        faces: (n,) number of the face within its picture.
        embeddings: (n, d) float32.
        boxes: (n, 4) float32 x1 y1 x2 y2 in pixels of the upright picture; NaN where the file has none.
        landmarks: (n, 5, 2) float32; NaN likewise.
        quality: (n,) measures by name.
        people: (n,) names, where the file has a column ``person`` or ``name``.
    """

    fingerprint: str
    inputs: Sequence[str]
    faces: NDArray[np.int64]
    embeddings: F32Array
    boxes: F32Array
    landmarks: F32Array
    quality: dict[str, F32Array]
    people: Sequence[str] | None

    def __len__(self) -> int:
        return len(self.embeddings)


def read_face_table(path: Path) -> FaceTable:
    """Read a table; rows without an embedding are left out.

    Raises:
        ExchangeError: It cannot be read, or has no embeddings.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except OSError as error:
        raise ExchangeError(f"{path}: cannot be read: {error}", hint="check the path") from error
    except pa.ArrowException as error:
        raise ExchangeError(f"{path}: not a Parquet file: {error}") from error
    if "embedding" not in table.schema.names:
        raise ExchangeError(
            f"{path}: has no column `embedding`", hint="make it with `facefleet extract ... -o faces.parquet`"
        )
    metadata = table.schema.metadata or {}
    table = table.filter(pc.is_valid(table["embedding"]))
    n = table.num_rows
    names = set(table.schema.names)

    def numbers(name: str) -> F32Array:
        if name not in names:
            return np.full(n, np.nan, np.float32)
        return np.asarray(table[name].cast(pa.float32()).to_numpy(zero_copy_only=False), np.float32)

    def matrix(name: str, width: int | None) -> F32Array:
        if name not in names or n == 0:
            return np.full((n, width or 0), np.nan, np.float32)
        column = table[name].combine_chunks()
        if column.null_count:
            return np.array([row or [np.nan] * (width or 0) for row in column.to_pylist()], np.float32)
        return np.asarray(column.flatten().to_numpy(zero_copy_only=False), np.float32).reshape(n, -1)

    def texts(name: str) -> list[str]:
        return [str(value) for value in table[name].to_pylist()]

    try:
        embeddings = matrix("embedding", None)
    except (ValueError, pa.ArrowException) as error:
        raise ExchangeError(f"{path}: embeddings of several lengths: {error}") from error
    boxes = np.stack([numbers(name) for name in ("x1", "y1", "x2", "y2")], axis=1)
    owner: Any = next((name for name in ("person", "name") if name in names), None)
    return FaceTable(
        metadata.get(b"facefleet.fingerprint", b"").decode(),
        texts("input") if "input" in names else [f"{path}:{i}" for i in range(n)],
        np.asarray(table["face"].to_numpy(), np.int64) if "face" in names else np.zeros(n, np.int64),
        embeddings,
        boxes,
        matrix("landmarks", 10).reshape(n, 5, 2),
        {name: numbers(name) for name in _QUALITY},
        None if owner is None else texts(owner),
    )
