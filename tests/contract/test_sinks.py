"""One suite for every format of results: what goes in comes out, and the output does not tell how it was made."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from facefleet.sinks import JsonLinesTable, ParquetTable, Span, Table
from facefleet.types import Faces, FaceStatus
from tests.unit.jobs.fake import DIMENSION, faces_of

QUALITY = ("size_px", "blur", "yaw_deg", "pitch_deg", "roll_deg")
Row = dict[str, Any]


def read_parquet(path: Path) -> list[Row]:
    rows = []
    for row in pq.read_table(path).to_pylist():
        row["box"] = [row.pop(name) for name in ("x1", "y1", "x2", "y2")]
        rows.append(row)
    return rows


def read_jsonl(path: Path) -> list[Row]:
    rows = []
    for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
        picture = json.loads(line)
        for number, face in enumerate(picture["faces"]):
            points = face.pop("landmarks")
            row = {"input": picture["input"], "face": number, "width": picture["width"], "height": picture["height"]}
            row["landmarks"] = None if points is None else [value for point in points for value in point]
            rows.append(row | face.pop("quality") | face)
    return rows


FORMATS = {"parquet": (ParquetTable, read_parquet), "jsonl": (JsonLinesTable, read_jsonl)}


@pytest.fixture(params=list(FORMATS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def table(name: str) -> Table:
    return FORMATS[name][0](DIMENSION, {"fingerprint": "f" * 64, "metric": "cosine"})


def results(count: int, *, faces: int | None = None) -> list[tuple[str, Faces]]:
    return [(f"photo {n}.jpg", faces_of("", b"%d" % n, count=faces)) for n in range(count)]


def merged(
    table: Table, path: Path, parts: Sequence[tuple[Path, Sequence[tuple[str, Faces]]]], order: Sequence[str]
) -> list[Span]:
    """Write parts, then put the pictures of `order` together."""
    places = {}
    for file, content in parts:
        for (key, _), span in zip(content, table.write_part(file, content), strict=True):
            places[key] = (file, span)
    return list(table.merge(path, iter([places[key] for key in order])))


def expected(key: str, faces: Faces) -> Iterator[Row]:
    def value(number: float) -> float | None:
        return None if math.isnan(number) else float(number)

    for face in faces:
        good = face.status is FaceStatus.OK
        yield {
            "input": key,
            "face": face.index,
            "box": face.box.tolist(),
            "landmarks": None if np.isnan(face.landmarks).any() else face.landmarks.reshape(-1).tolist(),
            "score": np.float32(face.score).item(),
            "status": "ok" if good else "alignment_failed",
            "embedding": face.embedding.tolist() if good else None,
            "norm": value(face.norm),
            **{measure: value(getattr(faces.quality, measure)[face.index]) for measure in QUALITY},
            "width": faces.width,
            "height": faces.height,
        }


def as_float32(rows: list[Row]) -> list[Row]:
    """Numbers as float32, to which JSON's shortest digits must lead back exactly."""

    def one(value: Any) -> Any:
        if isinstance(value, list):
            return [one(part) for part in value]
        return np.float32(value).item() if isinstance(value, float) else value

    return [{key: one(value) for key, value in row.items()} for row in rows]


def test_what_goes_in_comes_out_to_the_last_bit(table: Table, name: str, tmp_path: Path) -> None:
    content = results(60)
    merged(table, tmp_path / "out", [(tmp_path / "part", content)], [key for key, _ in content])
    got = as_float32(FORMATS[name][1](tmp_path / "out"))
    wanted = [row for key, faces in content for row in expected(key, faces)]
    assert {row["status"] for row in wanted} == {"ok", "alignment_failed"}
    assert got == wanted


def test_no_landmarks_are_null(table: Table, name: str, tmp_path: Path) -> None:
    faces = faces_of("", b"x", count=2)
    faces = replace(faces, landmarks=np.full((2, 5, 2), np.nan, np.float32))
    merged(table, tmp_path / "out", [(tmp_path / "part", [("a", faces)])], ["a"])
    assert [row["landmarks"] for row in FORMATS[name][1](tmp_path / "out")] == [None, None]


def test_the_output_does_not_tell_how_it_was_made(table: Table, tmp_path: Path) -> None:
    """Fault 55: a resumed job's output cannot be told from an undisturbed one's; results cross row groups."""
    content = results(3000, faces=3)  # more than two row groups
    order = [key for key, _ in content]
    shuffled = [content[i] for i in np.random.default_rng(0).permutation(len(content))]
    one = merged(table, tmp_path / "one", [(tmp_path / "part", content)], order)
    cuts = [shuffled[i : i + 271] for i in range(0, len(shuffled), 271)]
    many = merged(table, tmp_path / "many", [(tmp_path / f"part{n}", cut) for n, cut in enumerate(cuts)], order)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "many").read_bytes()
    assert one == many


def test_an_output_is_itself_a_part(table: Table, name: str, tmp_path: Path) -> None:
    content = results(3000, faces=3)
    order = [key for key, _ in content]
    spans = dict(zip(order, merged(table, tmp_path / "old", [(tmp_path / "part", content)], order), strict=True))
    changed = [("photo 7.jpg", faces_of("", b"other", count=5)), ("new", faces_of("", b"new", count=4))]
    places = {key: (tmp_path / "old", span) for key, span in spans.items()}
    for (key, _), span in zip(changed, table.write_part(tmp_path / "more", changed), strict=True):
        places[key] = (tmp_path / "more", span)
    wanted = [*order[2000:], "new", *order[:1999]]
    list(table.merge(tmp_path / "out", iter([places[key] for key in wanted])))

    fresh = dict(content) | dict(changed)
    again = [(key, fresh[key]) for key in wanted]
    merged(table, tmp_path / "fresh", [(tmp_path / "part2", again)], wanted)
    assert (tmp_path / "out").read_bytes() == (tmp_path / "fresh").read_bytes()


def test_nothing_and_no_faces(table: Table, name: str, tmp_path: Path) -> None:
    """Fault 51: no face is a result."""
    assert merged(table, tmp_path / "none", [], []) == []
    assert FORMATS[name][1](tmp_path / "none") == []
    content = results(4, faces=0)
    merged(table, tmp_path / "out", [(tmp_path / "part", content)], [key for key, _ in content])
    assert FORMATS[name][1](tmp_path / "out") == []
    if name == "jsonl":
        lines = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
        assert [line["input"] for line in lines] == [key for key, _ in content]
        wanted = [faces.best_rejected for _, faces in content]
        assert [line["best_rejected"] for line in lines] == pytest.approx(wanted)


def test_a_merge_asks_for_pieces_as_it_goes(table: Table, tmp_path: Path) -> None:
    """Memory does not grow with the number of pictures: a place is answered before the next is asked for."""
    content = results(50)
    spans = table.write_part(tmp_path / "part", content)
    asked = []

    def pieces() -> Iterator[tuple[Path, Span]]:
        for span in spans:
            asked.append(span)
            yield tmp_path / "part", span

    for answered, _ in enumerate(table.merge(tmp_path / "out", pieces()), 1):
        assert len(asked) == answered


def test_names_are_data(table: Table, name: str, tmp_path: Path) -> None:
    """Fault 48: line ends, quotes and other scripts come back as they were."""
    names = ["a\nb\r\n.jpg", "\u2028\"'\\.jpg", "\U0001f600/../x.jpg", ""]
    content = [(key, faces_of("", key.encode(), count=1)) for key in names]
    merged(table, tmp_path / "out", [(tmp_path / "part", content)], names)
    assert [row["input"] for row in FORMATS[name][1](tmp_path / "out")] == names


def test_parquet_schema(tmp_path: Path) -> None:
    table = ParquetTable(DIMENSION, {"fingerprint": "abc", "metric": "cosine", "pack": "p"})
    merged(table, tmp_path / "out", [], [])
    schema = pq.read_schema(tmp_path / "out")
    assert schema.field("embedding").type == pa.list_(pa.float32(), DIMENSION)
    assert schema.field("landmarks").type == pa.list_(pa.float32(), 10)
    assert all(schema.field(column).type == pa.float32() for column in ("x1", "y1", "x2", "y2", "score", "norm"))
    metadata = {key: value for key, value in schema.metadata.items() if key.startswith(b"facefleet.")}
    assert metadata == {
        b"facefleet.fingerprint": b"abc",
        b"facefleet.metric": b"cosine",
        b"facefleet.pack": b"p",
        b"facefleet.schema": b"1",
    }


def test_every_column_is_documented() -> None:
    documented = (Path(__file__).parents[2] / "docs" / "schema.md").read_text()
    for column in ParquetTable(DIMENSION, {}).schema().names:
        assert f"`{column}`" in documented


def test_a_damaged_part_is_an_output_error(tmp_path: Path) -> None:
    from facefleet.errors import OutputError

    (tmp_path / "part").write_bytes(b"PAR1 this is not what was written PAR1")
    table = ParquetTable(DIMENSION, {})
    with pytest.raises(OutputError, match="out"):
        list(table.merge(tmp_path / "out", iter([(tmp_path / "part", Span(0, 1))])))
