"""``facefleet gallery enrol``: faces of people from pictures, person folders, tables of names, or tables of faces."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from facefleet.cli import gallery_options as shared
from facefleet.cli import options
from facefleet.cli.exits import Exit, command, one_of, say
from facefleet.errors import ConfigError
from facefleet.telemetry import configure_logging

if TYPE_CHECKING:
    from facefleet.gallery import Gallery
    from facefleet.gallery.enrol import EnrolItem, EnrolResult


@command
def enrol(
    folder: shared.Folder,
    sources: Annotated[
        list[str],
        typer.Argument(help="Pictures (with --name), a folder of person folders, a .csv, or a .parquet of faces."),
    ],
    name: Annotated[str | None, typer.Option(help="Whose pictures they are: a name or an id.")] = None,
    metadata: Annotated[str | None, typer.Option(help="JSON object, for new people.")] = None,
    face: Annotated[str, typer.Option(help="Which face of a picture: dominant, only, largest or center.")] = "dominant",
    min_size_px: Annotated[float, typer.Option(help="Shorter side of the box.", rich_help_panel="Quality")] = 40,
    min_score: Annotated[float, typer.Option(help="Detector score.", rich_help_panel="Quality")] = 0.5,
    min_blur: Annotated[float, typer.Option(help="Sharpness; low is blurred.", rich_help_panel="Quality")] = 20,
    max_yaw: Annotated[float, typer.Option(help="Degrees to either side.", rich_help_panel="Quality")] = 50,
    max_pitch: Annotated[float, typer.Option(help="Degrees either way.", rich_help_panel="Quality")] = 50,
    allow_duplicates: Annotated[
        bool, typer.Option("--allow-duplicates", help="Store a picture that is there already once more.")
    ] = False,
    as_json: shared.Json = False,
    actor: shared.Actor = None,
    pack: options.Pack = None,
    backend: options.Backend = None,
    devices: options.Devices = None,
    precision: options.Precision = None,
    sets: options.Set = None,
    config: options.Config = None,
    verbose: options.Verbose = False,
) -> Exit:
    """Store faces of people.

    Ends with 1 when a picture was not good enough or could not be read; the others are stored.
    """
    configure_logging(verbose=verbose)
    one_of("--face", face, ("dominant", "only", "largest", "center"))
    from facefleet.gallery.enrol import Choice, QualityGate, enrol_pictures, enrol_table
    from facefleet.gallery.face_table import read_face_table

    chosen = cast(Choice, face)
    gate = QualityGate(min_size_px, min_score, min_blur, max_yaw, max_pitch)
    extra = None if metadata is None else shared.object_of(metadata)
    with shared.open_gallery(folder, actor) as gallery:
        if any(source.lower().endswith(".parquet") for source in sources):
            results: list[EnrolResult] = []
            for source in sources:
                table = read_face_table(Path(source))
                who = _table_names(table, name)
                results += enrol_table(
                    gallery,
                    table,
                    who,
                    gate=gate,
                    face=chosen,
                    allow_duplicates=allow_duplicates,
                )
            return _enrolled(gallery, results, as_json=as_json)
        items = _items(sources, name, extra)
        with shared.engine_of(
            gallery, pack=pack, backend=backend, devices=devices, precision=precision, sets=sets, config=config
        ) as engine:
            found = enrol_pictures(
                gallery,
                engine,
                items,
                gate=gate,
                face=chosen,
                allow_duplicates=allow_duplicates,
            )
            return _enrolled(gallery, found, as_json=as_json)


def _table_names(table: Any, name: str | None) -> Callable[[int], int | str]:  # noqa: ANN401  # a FaceTable
    """Whose face a row is: as given, as a column says, or the folder of the picture."""

    def who(row: int) -> int | str:
        if name is not None:
            return shared.person_of(name)
        if table.people is not None:
            return str(table.people[row])
        parent = Path(table.inputs[row]).parent.name
        if not parent:
            raise ConfigError(
                f"{table.inputs[row]}: whose picture is it?", hint="--name, or pictures in person folders"
            )
        return parent

    return who


def _items(sources: list[str], name: str | None, metadata: dict[str, Any] | None) -> Iterator[EnrolItem]:
    """Pictures and whose they are."""
    from facefleet.gallery.enrol import EnrolItem
    from facefleet.sources import Inputs

    for source in sources:
        path = Path(source)
        if path.suffix.lower() == ".csv":
            yield from _csv_items(path)
            continue
        if name is None and not path.is_dir():
            raise ConfigError(f"{source}: whose picture is it?", hint="--name NAME, or a folder of person folders")
        for item in Inputs([source]):
            parent = Path(item.key).parent
            if name is None and parent == path:
                say(f"skipped: {item.key}: not in a person's folder")
                continue
            who = shared.person_of(name) if name is not None else parent.name
            yield EnrolItem(who, item.key, item.open(), metadata)


def _csv_items(path: Path) -> Iterator[EnrolItem]:
    """Rows of a table with the columns ``name`` and ``path``; other columns become metadata."""
    import csv

    from facefleet.errors import SourceError
    from facefleet.gallery.enrol import EnrolItem

    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream)
            if not {"name", "path"} <= set(reader.fieldnames or ()):
                raise ConfigError(f"{path}: has no columns `name` and `path`", hint="the first line names the columns")
            for row in reader:
                picture = Path(row.pop("path") or "")
                who = row.pop("name") or ""
                rest = {key: value for key, value in row.items() if key and value}
                yield EnrolItem(who, str(picture), path.parent / picture, rest or None)
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{path}: cannot be read: {error}", hint="a CSV file in UTF-8") from error


def _enrolled(gallery: Gallery, results: Iterable[EnrolResult], *, as_json: bool) -> Exit:
    stored = failed = 0
    lines = []
    for result in results:
        stored += result.sample is not None
        failed += result.sample is None
        reasons = list(result.reasons) if result.error is None else [str(result.error)]
        if as_json:
            lines.append(
                {
                    "picture": result.key,
                    "who": result.who,
                    "person": result.person,
                    "sample": result.sample,
                    "reasons": reasons,
                    "warnings": list(result.warnings),
                }
            )
        for reason in reasons:
            say(f"not enrolled: {result.key}: {reason}")
        for warning in result.warnings:
            say(f"warning: {result.key}: {warning}")
    if as_json:
        print(json.dumps(lines, ensure_ascii=False))
    people, samples = gallery.counts()
    say(f"{stored} enrolled, {failed} not; the gallery has {people} people, {samples} samples")
    if not stored and failed:
        return Exit.NOTHING_DONE
    return Exit.SOME_FAILED if failed else Exit.DONE
