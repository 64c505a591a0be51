"""``facefleet cluster``: who is who among faces without names, and who appears together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from facefleet.cli import gallery_options as shared
from facefleet.cli.exits import Exit, command, one_of, say
from facefleet.errors import ConfigError

if TYPE_CHECKING:
    from facefleet.gallery.face_table import FaceTable

_SHEETS = 50
_FACES_A_SHEET = 96


@command
def cluster(
    faces: Annotated[Path, typer.Argument(help="Parquet file of `facefleet extract`.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Parquet to write: the faces with a column `cluster`.")
    ] = None,
    method: Annotated[str, typer.Option(help="components (mutual nearest neighbors) or hdbscan.")] = "components",
    threshold: Annotated[float, typer.Option(help="Least cosine of two neighbors; components only.")] = 0.55,
    neighbors: Annotated[int, typer.Option(help="Nearest faces that are looked at; components only.", min=1)] = 20,
    min_size: Annotated[int, typer.Option(help="Smaller groups are no cluster.", min=1)] = 2,
    sheets: Annotated[
        Path | None, typer.Option(help=f"Folder for a contact sheet of each of the {_SHEETS} largest clusters.")
    ] = None,
    as_json: shared.Json = False,
) -> Exit:
    """Group the faces of a table by person; print the clusters and who appears together how often."""
    one_of("--method", method, ("components", "hdbscan"))
    from facefleet.gallery.clustering import NOISE, cluster_faces, together
    from facefleet.gallery.face_table import read_face_table
    from facefleet.gallery.vectors import checked_vectors

    if output is not None and output.suffix.lower() != ".parquet":
        raise ConfigError(f"--output {output.name!r}: unknown format", hint="use .parquet")
    table = read_face_table(faces)
    vectors = checked_vectors(table.embeddings, table.embeddings.shape[1]) if len(table) else table.embeddings
    labels = cluster_faces(
        vectors,
        method=method,  # type: ignore[arg-type]
        threshold=threshold,
        neighbors=neighbors,
        min_size=min_size,
    )
    pairs = together(table.inputs, labels)
    rows = {}
    for number in range(int(labels.max(initial=NOISE)) + 1):
        members = [i for i, label in enumerate(labels.tolist()) if label == number]
        rows[number] = members
    if output is not None:
        _write(faces, output, table, labels)
    if sheets is not None:
        _write_sheets(sheets, table, rows)
    alone = int((labels == NOISE).sum())
    if as_json:
        listed = [
            {
                "cluster": number,
                "faces": len(members),
                "pictures": len({table.inputs[i] for i in members}),
                "members": [{"input": table.inputs[i], "face": int(table.faces[i])} for i in members],
            }
            for number, members in rows.items()
        ]
        joint = [{"clusters": [a, b], "pictures": count} for a, b, count in pairs]
        print(json.dumps({"clusters": listed, "together": joint, "no_cluster": alone}, ensure_ascii=False))
        return Exit.DONE
    shown = [
        (number, len(members), len({table.inputs[i] for i in members}), table.inputs[members[0]])
        for number, members in list(rows.items())[:_SHEETS]
    ]
    shared.print_table(("cluster", "faces", "pictures", "first"), shown)
    if pairs:
        shared.print_table(("one", "other", "pictures together"), pairs[:20])
    say(f"{len(table)} faces, {len(rows)} clusters, {alone} faces in none")
    return Exit.DONE


def _write(source: Path, output: Path, table: FaceTable, labels: Any) -> None:  # noqa: ANN401  # an array
    """The faces that have an embedding, as they were, with their cluster."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from facefleet.errors import OutputError

    rows = pq.read_table(source)
    rows = rows.filter(pc.is_valid(rows["embedding"]))
    assert rows.num_rows == len(table)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows.append_column("cluster", pa.array(labels, pa.int32())), output, compression="zstd")
    except OSError as error:
        raise OutputError(f"{output}: {error}", hint="check permissions and free space") from error
    say(f"clusters: {output}")


def _write_sheets(folder: Path, table: FaceTable, rows: dict[int, list[int]]) -> None:
    from facefleet.decode import Decoder
    from facefleet.gallery.contact_sheet import Tile, cut_face, write_sheet

    decoder = Decoder()
    for number, members in list(rows.items())[:_SHEETS]:
        tiles = [
            Tile(cut_face(decoder, table.inputs[i], table.boxes[i], table.landmarks[i]), Path(table.inputs[i]).name)
            for i in members[:_FACES_A_SHEET]
        ]
        write_sheet(folder / f"cluster-{number:04d}.png", [tiles])
    say(f"contact sheets: {folder}")
