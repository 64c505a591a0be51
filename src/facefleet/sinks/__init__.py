"""Where results go: Parquet and JSON Lines tables, aligned chips, annotated copies."""

from facefleet.sinks.draw import draw_faces
from facefleet.sinks.files import ChipsSink, DrawSink, PictureSink
from facefleet.sinks.jsonl import JsonLinesTable
from facefleet.sinks.parquet import ParquetTable
from facefleet.sinks.table import Span, Table

__all__ = [
    "ChipsSink",
    "DrawSink",
    "JsonLinesTable",
    "ParquetTable",
    "PictureSink",
    "Span",
    "Table",
    "draw_faces",
]
