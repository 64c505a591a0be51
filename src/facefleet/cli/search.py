"""``facefleet search``: where in a table of faces is this person?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from facefleet.cli import gallery_options as shared
from facefleet.cli import options
from facefleet.cli.exits import Exit, command, say
from facefleet.telemetry import configure_logging

if TYPE_CHECKING:
    from facefleet.gallery.face_table import FaceTable
    from facefleet.types import FaceRecord


@command
def search(
    faces: Annotated[Path, typer.Argument(help="Parquet file of `facefleet extract`.")],
    query: Annotated[list[str], typer.Option("--query", "-q", help="A photo; its largest face counts. Repeatable.")],
    k: Annotated[int, typer.Option("-k", help="Most faces a query.", min=1)] = 10,
    threshold: shared.Threshold = None,
    as_json: shared.Json = False,
    sheet: Annotated[Path | None, typer.Option(help="Contact sheet to write: each query with what was found.")] = None,
    pack: options.Pack = None,
    backend: options.Backend = None,
    devices: options.Devices = None,
    precision: options.Precision = None,
    det_size: options.DetSize = None,
    score: options.Score = None,
    sets: options.Set = None,
    config: options.Config = None,
    verbose: options.Verbose = False,
) -> Exit:
    """Find the faces of a table that are most like those of the queries.

    Ends with 0 whether anything is found or not; with 1 when a query has no face.
    """
    configure_logging(verbose=verbose)
    loaded = options.effective(
        config=config,
        sets=sets,
        det_size=det_size,
        pack=pack,
        runtime__backend=backend,
        runtime__devices=devices,
        runtime__precision=precision,
        detect__score=score,
    )
    import numpy as np

    from facefleet.errors import PipelineMismatchError
    from facefleet.gallery.enrol import choose_face
    from facefleet.gallery.face_table import read_face_table
    from facefleet.gallery.index.flat import FlatSegment
    from facefleet.gallery.index.layered import Base, LayeredIndex
    from facefleet.gallery.vectors import checked_vectors
    from facefleet.pipeline import Engine

    table = read_face_table(faces)
    records: list[FaceRecord | None] = []
    with Engine(loaded.settings) as engine:
        if table.fingerprint != engine.fingerprint:
            raise PipelineMismatchError(
                f"{faces}: made with another model, aligner, detector or options",
                hint="give the same --pack, --det-size, --score and --set as to `facefleet extract`",
            )
        for path in query:
            face, reason = choose_face(engine.analyze(path, chips=sheet is not None), "largest")
            if face is None:
                say(f"error: {path}: {reason}")
            records.append(face)
        limit = engine.manifest.embedder.threshold if threshold is None else threshold
        dimension = engine.dimension
    vectors = checked_vectors(table.embeddings, dimension) if len(table) else np.empty((0, dimension), np.float32)
    base = Base(np.arange(len(vectors), dtype=np.int64), vectors, FlatSegment(vectors) if len(vectors) else None)
    index = LayeredIndex(dimension, FlatSegment, {}, base)
    entries: list[dict[str, Any]] = []
    for path, record in zip(query, records, strict=True):
        if record is None:
            continue
        hits = index.search(checked_vectors(record.embedding, dimension), k)
        found = [
            _entry(table, int(row), float(score))
            for row, score in zip(hits.ids[0], hits.scores[0], strict=True)
            if row >= 0 and score >= limit
        ]
        entries.append({"query": path, "face": record.index, "found": found, "metric": "cosine", "threshold": limit})
    if sheet is not None:
        _write_sheet(sheet, table, entries, [record for record in records if record is not None])
    if as_json:
        print(json.dumps(entries, ensure_ascii=False))
    else:
        rows = [
            (entry["query"], hit["input"], hit["face"], hit["score"]) for entry in entries for hit in entry["found"]
        ]
        shared.print_table(("query", "input", "face", "cosine"), rows)
        for entry in entries:
            if not entry["found"]:
                say(f"{entry['query']}: nobody at or above {limit:.4f}")
    return Exit.SOME_FAILED if None in records else Exit.DONE


def _entry(table: FaceTable, row: int, score: float) -> dict[str, Any]:
    box = [round(float(value), 1) for value in table.boxes[row]]
    return {"input": table.inputs[row], "face": int(table.faces[row]), "score": round(score, 6), "box": box, "row": row}


def _write_sheet(path: Path, table: FaceTable, entries: list[dict[str, Any]], records: list[FaceRecord]) -> None:
    from facefleet.decode import Decoder
    from facefleet.gallery.contact_sheet import Tile, cut_face, write_sheet

    decoder = Decoder()
    rows = []
    for entry, record in zip(entries, records, strict=True):
        row = [Tile(record.chip, Path(entry["query"]).name, marked=True)]
        for hit in entry["found"]:
            pixels = cut_face(decoder, hit["input"], table.boxes[hit["row"]], table.landmarks[hit["row"]])
            row.append(Tile(pixels, f"{hit['score']:.2f} {Path(hit['input']).name}"))
        rows.append(row)
    write_sheet(path, rows)
    say(f"contact sheet: {path}")
