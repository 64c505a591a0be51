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

The file's metadata has the keys ``facefleet.*``: ``schema`` (version of this table), ``version``, ``fingerprint`` of
the models and options, ``metric`` (cosine), and what the engine says of itself: ``pack``, ``license``, ``backend``, ...
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from facefleet.errors import OutputError
from facefleet.sinks.table import Span, Table
from facefleet.types import Faces, FaceStatus

if TYPE_CHECKING:
    import pyarrow as pa

ROW_GROUP = 4096
SCHEMA_VERSION = "1"
_CACHED_GROUPS = 8
_WRITING: dict[str, Any] = {"compression": "zstd", "use_dictionary": ["input", "status"]}  # floats never repeat
_QUALITY = ("size_px", "blur", "yaw_deg", "pitch_deg", "roll_deg")


class ParquetTable(Table):
    """Results as Parquet; see `Table` and this module."""

    def schema(self) -> pa.Schema:
        """The columns, with the metadata."""
        import pyarrow as pa

        metadata = {**self.metadata, "schema": SCHEMA_VERSION}
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
            *(pa.field(name, single) for name in _QUALITY),
            pa.field("width", pa.int32(), nullable=False),
            pa.field("height", pa.int32(), nullable=False),
        ]
        return pa.schema(fields, metadata={f"facefleet.{key}": value for key, value in sorted(metadata.items())})

    def write_part(self, path: Path, results: Sequence[tuple[str, Faces]]) -> list[Span]:
        """See `Table.write_part`."""
        import pyarrow.parquet as pq

        with _flat_memory():
            table = self.as_arrow(results)
            pq.write_table(table, path, row_group_size=ROW_GROUP, **_WRITING)
        spans, start = [], 0
        for _, faces in results:
            spans.append(Span(start, len(faces)))
            start += len(faces)
        return spans

    def as_arrow(self, results: Sequence[tuple[str, Faces]]) -> pa.Table:
        """The rows of these results."""
        import pyarrow as pa

        schema = self.schema()
        return pa.Table.from_batches([self._batch(schema, key, faces) for key, faces in results if len(faces)], schema)

    def merge(self, path: Path, spans: Iterable[tuple[Path, Span]]) -> Iterator[Span]:
        """See `Table.merge`. Row groups of `ROW_GROUP` rows, whatever the pieces were."""
        import pyarrow.parquet as pq

        schema = self.schema()
        start = 0
        with (
            _mapped(path),
            _flat_memory(),
            _Pieces() as pieces,
            pq.ParquetWriter(path, schema, **_WRITING) as writer,
        ):
            groups = _RowGroups(schema, writer, pieces)
            for file, span in spans:
                groups.add(file, span)
                yield Span(start, span.length)
                start += span.length
            groups.finish()

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
            *(numbers(getattr(quality, name)) for name in _QUALITY),
            pa.array(np.full(n, faces.width, np.int32)),
            pa.array(np.full(n, faces.height, np.int32)),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)


class _RowGroups:
    """Gathers rows into row groups of `ROW_GROUP`, whatever the pieces were; neighboring pieces are read as one."""

    def __init__(self, schema: pa.Schema, writer: Any, pieces: _Pieces) -> None:  # noqa: ANN401  # pyarrow is untyped
        self._schema = schema
        self._writer = writer
        self._pieces = pieces
        self._file: Path | None = None
        self._span = Span(0, 0)
        self._tables: list[pa.Table] = []
        self._rows = 0

    def add(self, file: Path, span: Span) -> None:
        """Rows of a picture."""
        if not span.length:
            return
        end = self._span.start + self._span.length
        if file == self._file and span.start == end and self._span.length < ROW_GROUP:
            self._span = Span(self._span.start, self._span.length + span.length)
            return
        self._read()
        self._file, self._span = file, span

    def finish(self) -> None:
        """Write what is left."""
        self._read()
        self._write(at_least=1)

    def _read(self) -> None:
        if self._file is not None:
            self._tables += [piece.cast(self._schema) for piece in self._pieces.rows(self._file, self._span)]
            self._rows += self._span.length
            self._file = None
            self._write(at_least=ROW_GROUP)

    def _write(self, *, at_least: int) -> None:
        import pyarrow as pa

        if self._rows < at_least:
            return
        table = pa.concat_tables(self._tables)
        while table.num_rows >= at_least:
            self._writer.write_table(table.slice(0, ROW_GROUP).combine_chunks())
            table = table.slice(ROW_GROUP)
        self._tables, self._rows = [table.combine_chunks()], table.num_rows


@contextlib.contextmanager
def _flat_memory() -> Iterator[None]:
    """Arrow's own allocators keep what they once had: 30 to 50 MiB after a merge. The system's gives it back."""
    import pyarrow as pa

    before = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(before)


@contextlib.contextmanager
def _mapped(path: Path) -> Iterator[None]:
    """What pyarrow says about files it wrote and cannot read any more; OSError is left as it is."""
    import pyarrow as pa

    try:
        yield
    except pa.ArrowException as error:
        if isinstance(error, OSError):
            raise
        raise OutputError(f"{path}: {error}", hint="a part is damaged: use --overwrite to start anew") from error


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
                self._files[path] = pq.ParquetFile(path, pre_buffer=False)
                while len(self._files) > _CACHED_GROUPS:
                    self._files.popitem(last=False)[1].close()
            self._groups[key] = self._files[path].read_row_group(number, use_threads=False)
            while len(self._groups) > _CACHED_GROUPS:
                self._groups.popitem(last=False)
        self._groups.move_to_end(key)
        return self._groups[key]
