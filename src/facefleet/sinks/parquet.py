"""Results as Parquet, one row a face; a picture without faces has no row.

| column | type | meaning |
|---|---|---|
| input | string | key of the picture: path, or archive!member |
| face | int32 | number of the face within the picture, from 0 |
| x1 y1 x2 y2 | float32 | box in pixels of the upright picture, not clamped |
| landmarks | fixed list of 10 float32 | x, y of left eye, right eye, nose, left and right mouth corner |
| score | float32 | detector score, 0 to 1 |
| status | string | ``ok`` or ``alignment_failed`` |
| embedding | fixed list of d float32, nullable | L2-normalised; null unless status is ok |
| norm | float32, nullable | norm before normalising |
| size_px, blur, yaw_deg, pitch_deg, roll_deg | float32, nullable | quality measures |
| width, height | int32 | size of the upright picture in pixels |

The file's metadata has the keys ``facefleet.*``: schema version, model fingerprint, pack, licence, metric.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from facefleet.sinks.table import Span, Table
from facefleet.types import Faces, FaceStatus

if TYPE_CHECKING:
    import pyarrow as pa

ROW_GROUP = 4096
_CACHED_GROUPS = 8
_COMPRESSION = "zstd"


class ParquetTable(Table):
    """Results as Parquet; see `Table` and this module."""

    def schema(self) -> pa.Schema:
        """The columns, with the metadata."""
        import pyarrow as pa

        single = pa.float32()
        fields = [
            pa.field("input", pa.string(), nullable=False),
            pa.field("face", pa.int32(), nullable=False),
            *(pa.field(name, single, nullable=False) for name in ("x1", "y1", "x2", "y2")),
            pa.field("landmarks", pa.list_(single, 10)),
            pa.field("score", single, nullable=False),
            pa.field("status", pa.string(), nullable=False),
            pa.field("embedding", pa.list_(single, self.dimension)),
            pa.field("norm", single),
            *(pa.field(name, single) for name in ("size_px", "blur", "yaw_deg", "pitch_deg", "roll_deg")),
            pa.field("width", pa.int32(), nullable=False),
            pa.field("height", pa.int32(), nullable=False),
        ]
        return pa.schema(fields, metadata={f"facefleet.{key}": value for key, value in sorted(self.metadata.items())})

    def write_part(self, path: Path, results: Sequence[tuple[str, Faces]]) -> list[Span]:
        """See `Table.write_part`."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = self.schema()
        batches = [self._batch(schema, key, faces) for key, faces in results if len(faces)]
        table = pa.Table.from_batches(batches, schema)
        pq.write_table(table, path, compression=_COMPRESSION, row_group_size=ROW_GROUP)
        spans, start = [], 0
        for _, faces in results:
            spans.append(Span(start, len(faces)))
            start += len(faces)
        return spans

    def merge(self, path: Path, spans: Iterable[tuple[Path, Span]]) -> Iterator[Span]:
        """See `Table.merge`. Row groups of `ROW_GROUP` rows, whatever the pieces were."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = self.schema()
        waiting: list[pa.Table] = []
        rows = start = 0
        with _Pieces() as pieces, pq.ParquetWriter(path, schema, compression=_COMPRESSION) as writer:

            def flush(*, all_rows: bool) -> None:
                nonlocal waiting, rows
                table = pa.concat_tables(waiting)
                while table.num_rows >= ROW_GROUP or (all_rows and table.num_rows):
                    writer.write_table(table.slice(0, ROW_GROUP).combine_chunks())
                    table = table.slice(ROW_GROUP)
                waiting, rows = [table.combine_chunks()], table.num_rows

            for file, span in spans:
                if span.length:
                    waiting += [piece.cast(schema) for piece in pieces.rows(file, span)]
                    rows += span.length
                    if rows >= ROW_GROUP:
                        flush(all_rows=False)
                yield Span(start, span.length)
                start += span.length
            if rows:
                flush(all_rows=True)

    def _batch(self, schema: pa.Schema, key: str, faces: Faces) -> pa.RecordBatch:
        import pyarrow as pa

        n = len(faces)
        good = faces.status == FaceStatus.OK
        single = pa.float32()

        def numbers(values: Any) -> pa.Array:  # noqa: ANN401  # any float array; NaN is null
            return pa.array(np.ascontiguousarray(values, np.float32), single, mask=np.isnan(values))

        vectors = np.where(good[:, None], faces.embeddings, 0).astype(np.float32)
        embedding = pa.FixedSizeListArray.from_arrays(
            pa.array(vectors.reshape(-1), single), self.dimension, mask=pa.array(~good)
        )
        points = faces.landmarks.reshape(n, 10)
        landmarks = pa.FixedSizeListArray.from_arrays(
            pa.array(np.nan_to_num(points).reshape(-1), single), 10, mask=pa.array(np.isnan(points).any(axis=1))
        )
        quality = faces.quality
        columns = [
            pa.array([key] * n, pa.string()),
            pa.array(np.arange(n, dtype=np.int32)),
            *(pa.array(np.ascontiguousarray(column), single) for column in faces.boxes.T),
            landmarks,
            pa.array(faces.scores, single),
            pa.array([FaceStatus(int(status)).name.lower() for status in faces.status], pa.string()),
            embedding,
            numbers(np.where(good, faces.norms, np.nan)),
            *(numbers(v) for v in (quality.size_px, quality.blur, quality.yaw_deg, quality.pitch_deg, quality.roll_deg)),
            pa.array(np.full(n, faces.width, np.int32)),
            pa.array(np.full(n, faces.height, np.int32)),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)


class _Pieces:
    """Rows of Parquet files, the last few row groups kept decoded."""

    def __init__(self) -> None:
        self._files: OrderedDict[Path, Any] = OrderedDict()
        self._groups: OrderedDict[tuple[Path, int], pa.Table] = OrderedDict()

    def __enter__(self) -> _Pieces:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()

    def rows(self, path: Path, span: Span) -> Iterator[pa.Table]:
        """The rows of a span, as one or more tables."""
        start, left = span.start, span.length
        while left:
            table = self._group(path, start // ROW_GROUP)
            offset = start % ROW_GROUP
            piece = table.slice(offset, left)
            yield piece
            start += piece.num_rows
            left -= piece.num_rows

    def _group(self, path: Path, number: int) -> pa.Table:
        import pyarrow.parquet as pq

        key = (path, number)
        if key not in self._groups:
            if path not in self._files:
                self._files[path] = pq.ParquetFile(path)
                while len(self._files) > _CACHED_GROUPS:
                    self._files.popitem(last=False)[1].close()
            self._groups[key] = self._files[path].read_row_group(number)
            while len(self._groups) > _CACHED_GROUPS:
                self._groups.popitem(last=False)
        self._groups.move_to_end(key)
        return self._groups[key]
