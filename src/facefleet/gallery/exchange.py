"""A gallery as one Parquet file, and back.

| column | type | meaning |
|---|---|---|
| person | int64 | id |
| name | string | |
| metadata | string | JSON object |
| sample | int64, nullable | id; null in the one row of a person without samples |
| embedding | fixed list of d float32, nullable | L2-normalized |
| source, source_sha256, quality, box | string, nullable | quality and box as JSON |
| chip | binary, nullable | the aligned face as PNG |

The file's metadata has ``facefleet.gallery``: the header as JSON, with the schema's version. Written under a
temporary name, synced, renamed.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from facefleet.errors import ExchangeError, GalleryWriteError
from facefleet.gallery import reads
from facefleet.gallery.gallery import Gallery
from facefleet.gallery.records import METRIC, NewSample, Person, PipelineIdentity
from facefleet.gallery.transaction import Transaction
from facefleet.gallery.vectors import checked_vectors

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA_VERSION = "1"
_KEY = b"facefleet.gallery"
_ROWS = 4096


@dataclass(frozen=True, slots=True)
class Imported:
    """What became of a file.

    Attributes:
        people: New ones.
        samples: New ones.
        known: Samples that were there already.
        erased: People who were left out since they were erased here.
        kept_ids: Whether ids are those of the file.
    """

    people: int
    samples: int
    known: int
    erased: int
    kept_ids: bool


def export_gallery(gallery: Gallery, path: Path) -> tuple[int, int]:
    """Write everything but the history to a Parquet file; one state, while writers go on.

    Returns:
        People and samples written.

    Raises:
        GalleryWriteError: The file cannot be written.
        GalleryCorruptError: A row is damaged.
    """
    import pyarrow.parquet as pq

    schema = _schema(gallery)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    people = samples = 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            gallery.database.reading() as db,
            pq.ParquetWriter(temporary, schema, compression="zstd", use_dictionary=["name", "metadata"]) as writer,
        ):
            rows: list[dict[str, Any]] = []
            for person in reads.people(db):
                people += 1
                samples += person.samples
                rows += _rows(person, reads.samples_of(db, person.id))
                if len(rows) >= _ROWS:
                    writer.write_table(_table(rows, schema))
                    rows = []
            writer.write_table(_table(rows, schema))
        with temporary.open("rb+") as stream:
            os.fsync(stream.fileno())
        temporary.replace(path)
    except OSError as error:
        raise GalleryWriteError(f"{path}: {error}", hint="check permissions and free space") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    return people, samples


def _rows(person: Person, samples: list[Any]) -> Iterator[dict[str, Any]]:
    head = {
        "person": person.id,
        "name": person.name,
        "metadata": json.dumps(dict(person.metadata), ensure_ascii=False),
    }
    for sample in samples:
        yield head | {
            "sample": sample.id,
            "embedding": sample.embedding,
            "source": sample.source,
            "source_sha256": sample.source_sha256,
            "quality": json.dumps(dict(sample.quality)),
            "box": None if sample.box is None else json.dumps(sample.box),
            "chip": sample.chip_png,
        }
    if not samples:
        yield head


def _schema(gallery: Gallery) -> pa.Schema:
    import pyarrow as pa

    header = gallery.header
    text = json.dumps(
        {
            "schema": SCHEMA_VERSION,
            "uuid": header.uuid,
            "metric": header.metric,
            "fingerprint": header.pipeline.fingerprint,
            "dimension": header.pipeline.dimension,
            "threshold": header.pipeline.threshold,
            "description": dict(header.pipeline.description),
        }
    )
    fields = [
        pa.field("person", pa.int64(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("metadata", pa.string(), nullable=False),
        pa.field("sample", pa.int64()),
        pa.field("embedding", pa.list_(pa.float32(), header.pipeline.dimension)),
        *(pa.field(name, pa.string()) for name in ("source", "source_sha256", "quality", "box")),
        pa.field("chip", pa.binary()),
    ]
    return pa.schema(fields, metadata={_KEY: text.encode()})


def _table(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    import pyarrow as pa

    columns = {name: [row.get(name) for row in rows] for name in schema.names}
    return pa.table(columns, schema=schema)


def read_identity(path: Path) -> tuple[str, PipelineIdentity]:
    """Which gallery a file is an export of, and what made its embeddings.

    Raises:
        ExchangeError: It is no export, or of another version.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_schema(path).metadata or {}
        values = json.loads(metadata[_KEY])
        if values["schema"] != SCHEMA_VERSION or values["metric"] != METRIC:
            raise ExchangeError(f"{path}: schema {values['schema']}, metric {values['metric']} are not read here")
        identity = PipelineIdentity(
            values["fingerprint"], int(values["dimension"]), float(values["threshold"]), values["description"]
        )
        return str(values["uuid"]), identity
    except OSError as error:
        raise ExchangeError(f"{path}: cannot be read: {error}", hint="check the path") from error
    except pa.ArrowException as error:
        raise ExchangeError(f"{path}: not a Parquet file: {error}") from error
    except (KeyError, ValueError, TypeError) as error:
        raise ExchangeError(
            f"{path}: not an export of a gallery", hint="tables of `facefleet extract` are enrolled: gallery enrol"
        ) from error


def import_gallery(gallery: Gallery, path: Path, *, restore_erased: bool = False) -> Imported:
    """Add what an export holds, all or none. Importing it twice changes nothing the second time.

    Ids are kept where the gallery is empty, or the one that the file was exported from; else people get new ones.

    Args:
        gallery: Where to.
        path: The export.
        restore_erased: Whether people who were erased here come back.

    Raises:
        ExchangeError: The file is no export, or damaged.
        PipelineMismatchError: Its embeddings are another pipeline's.
        InvalidEmbeddingError: One is not a vector.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    uuid, identity = read_identity(path)
    gallery.require(identity.fingerprint)
    try:
        with pq.ParquetFile(path) as file, gallery.writing() as change:
            work = _Import(gallery, change, same=uuid == gallery.header.uuid, restore_erased=restore_erased)
            for batch in file.iter_batches(batch_size=_ROWS):
                for row in batch.to_pylist():
                    work.take(row)
            return work.finish()
    except (OSError, pa.ArrowException, KeyError) as error:
        raise ExchangeError(f"{path}: damaged: {error}", hint="export it again; nothing was imported") from error


class _Import:
    """The rows of an export on their way into a transaction."""

    def __init__(self, gallery: Gallery, change: Transaction, *, same: bool, restore_erased: bool) -> None:
        self._gallery = gallery
        self._change = change
        used = change.db.execute("SELECT COUNT(*) FROM sqlite_sequence WHERE name = 'people'").fetchone()[0]
        self._keep = same or not used
        self._restore = restore_erased
        self._people: dict[int, int | None] = {}
        self._counts = {"people": 0, "samples": 0, "known": 0, "erased": 0}
        self._added: dict[int, int] = {}

    def take(self, row: Mapping[str, Any]) -> None:
        """One row."""
        old = int(row["person"])
        if old not in self._people:
            self._people[old] = self._person(old, row)
        person = self._people[old]
        if person is None or row["sample"] is None:
            return
        if row["embedding"] is None:
            raise ExchangeError(f"sample {row['sample']} has no embedding", hint="export it again")
        db = self._change.db
        number = int(row["sample"]) if self._keep else None
        if number is not None and db.execute("SELECT 1 FROM samples WHERE id = ?", (number,)).fetchone():
            self._counts["known"] += 1
            return
        vector = checked_vectors(np.asarray(row["embedding"], np.float32), self._gallery.header.pipeline.dimension)[0]
        if number is None and self._has(person, vector):
            self._counts["known"] += 1
            return
        box = None if row["box"] is None else tuple(json.loads(row["box"]))
        quality = {} if row["quality"] is None else json.loads(row["quality"])
        sample = NewSample(vector, row["source"], row["source_sha256"], quality, box)
        chip = row["chip"] if self._gallery.header.keep_chips else None
        self._change.add_sample(person, vector, sample, id=number, chip_png=chip)
        self._counts["samples"] += 1
        self._added[person] = self._added.get(person, 0) + 1

    def _has(self, person: int, vector: Any) -> bool:  # noqa: ANN401  # a float32 array
        data = vector.astype("<f4").tobytes()
        query = "SELECT 1 FROM samples WHERE person = ? AND embedding = ?"
        return self._change.db.execute(query, (person, data)).fetchone() is not None

    def _person(self, old: int, row: Mapping[str, Any]) -> int | None:
        db, name, metadata = self._change.db, str(row["name"]), json.loads(row["metadata"])
        if not self._keep:
            found = db.execute(
                "SELECT id FROM people WHERE name = ? AND metadata = ?", (name, row["metadata"])
            ).fetchall()
            if len(found) == 1:
                return int(found[0][0])
            self._counts["people"] += 1
            return self._change.add_person(name, metadata)
        if db.execute("SELECT 1 FROM people WHERE id = ?", (old,)).fetchone():
            return old
        if db.execute("SELECT 1 FROM erased WHERE person = ?", (old,)).fetchone():
            if not self._restore:
                self._counts["erased"] += 1
                return None
            db.execute("DELETE FROM erased WHERE person = ?", (old,))
        self._counts["people"] += 1
        return self._change.add_person(name, metadata, id=old)

    def finish(self) -> Imported:
        """Note it in the history."""
        for person, count in self._added.items():
            self._change.note("import", person, count)
        return Imported(**self._counts, kept_ids=self._keep)
