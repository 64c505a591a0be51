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
from numpy.typing import NDArray

from facefleet.sinks.table import Span, Table
from facefleet.types import Faces, FaceStatus

_QUALITY = ("size_px", "blur", "yaw_deg", "pitch_deg", "roll_deg")


class JsonLinesTable(Table):
    """Results as JSON Lines; see `Table` and this module."""

    def write_part(self, path: Path, results: Sequence[tuple[str, Faces]]) -> list[Span]:
        """See `Table.write_part`."""
        spans, start = [], 0
        with path.open("wb") as stream:
            for key, faces in results:
                line = (json.dumps(as_json(key, faces), ensure_ascii=False) + "\n").encode()
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
    quality = {name: _numbers(getattr(faces.quality, name)) for name in _QUALITY}
    norms, scores = _numbers(faces.norms), _numbers(faces.scores)
    return {
        "input": key,
        "width": faces.width,
        "height": faces.height,
        "best_rejected": _numbers(np.array([faces.best_rejected]))[0],
        "faces": [
            {
                "box": _numbers(face.box),
                "landmarks": [_numbers(point) for point in face.landmarks]
                if np.isfinite(face.landmarks).all()
                else None,
                "score": scores[face.index],
                "status": face.status.name.lower(),
                "embedding": _numbers(face.embedding) if face.status is FaceStatus.OK else None,
                "norm": norms[face.index],
                "quality": {name: values[face.index] for name, values in quality.items()},
            }
            for face in faces
        ],
    }


def _numbers(values: NDArray[Any]) -> list[float | None]:
    """float32 values in the fewest digits that give them back; null where not finite."""
    texts = values.astype(np.float32).astype("U").tolist()
    return [float(text) if finite else None for text, finite in zip(texts, np.isfinite(values).tolist(), strict=True)]
