"""Results as JSON Lines: one line a picture, faces or none.

Keys of a line: ``input``, ``width``, ``height``, ``best_rejected`` and ``faces``; of a face: ``box``, ``landmarks``,
``score``, ``status``, ``embedding`` (null unless ok), ``norm``, ``quality``. Numbers that are not known are null.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from facefleet.sinks.table import Span, Table
from facefleet.types import Faces, FaceStatus


class JsonLinesTable(Table):
    """Results as JSON Lines; see `Table` and this module."""

    def write_part(self, path: Path, results: Sequence[tuple[str, Faces]]) -> list[Span]:
        """See `Table.write_part`."""
        spans, start = [], 0
        with path.open("wb") as stream:
            for key, faces in results:
                line = (json.dumps(as_json(key, faces), ensure_ascii=False) + "\n").encode("utf-8", "surrogateescape")
                stream.write(line)
                spans.append(Span(start, len(line)))
                start += len(line)
        return spans

    def merge(self, path: Path, spans: Iterable[tuple[Path, Span]]) -> Iterator[Span]:
        """See `Table.merge`."""
        source: BinaryIO | None = None
        opened: Path | None = None
        start = 0
        try:
            with path.open("wb") as target:
                for file, span in spans:
                    if opened != file:
                        if source is not None:
                            source.close()
                        source, opened = file.open("rb"), file
                    assert source is not None
                    source.seek(span.start)
                    target.write(source.read(span.length))
                    yield Span(start, span.length)
                    start += span.length
        finally:
            if source is not None:
                source.close()


def as_json(key: str, faces: Faces) -> dict[str, Any]:
    """The result of one picture as JSON's types."""
    quality = faces.quality
    names = ("size_px", "blur", "yaw_deg", "pitch_deg", "roll_deg")
    return {
        "input": key,
        "width": faces.width,
        "height": faces.height,
        "best_rejected": _number(faces.best_rejected),
        "faces": [
            {
                "box": [_number(value) for value in face.box],
                "landmarks": None
                if np.isnan(face.landmarks).any()
                else [[_number(value) for value in point] for point in face.landmarks],
                "score": _number(face.score),
                "status": face.status.name.lower(),
                "embedding": [_number(v) for v in face.embedding] if face.status is FaceStatus.OK else None,
                "norm": _number(face.norm),
                "quality": {name: _number(getattr(quality, name)[face.index]) for name in names},
            }
            for face in faces
        ],
    }


def _number(value: float) -> float | None:
    """A float32 in the fewest digits that give it back; null if it is not finite."""
    return float(str(np.float32(value))) if np.isfinite(value) else None
