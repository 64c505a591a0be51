"""What the commands of galleries share: options, opening a gallery with the engine it was made with, tables."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from facefleet.cli import options
from facefleet.cli.terminal import terminal
from facefleet.errors import ConfigError

if TYPE_CHECKING:
    from facefleet.config import Settings
    from facefleet.gallery import Gallery, PipelineIdentity
    from facefleet.pipeline import Engine

Folder = Annotated[Path, typer.Argument(help="Folder of the gallery.", show_default=False)]
Who = Annotated[str, typer.Argument(help="Id, or a name that only one has.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Threshold = Annotated[float | None, typer.Option(help="Least cosine; default: the pack's.")]
Where = Annotated[
    list[str] | None, typer.Option(help="Only people whose metadata have KEY=VALUE; dots for nested keys.")
]
Actor = Annotated[str | None, typer.Option(help="Who does it, for the history; default: the user.")]


def open_gallery(folder: Path, actor: str | None = None) -> Gallery:
    """Open a gallery."""
    from facefleet.gallery import Gallery

    return Gallery.open(folder, actor=actor)


def person_of(text: str) -> int | str:
    """An id, where the text is a number; else a name."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else text


def filter_of(where: Sequence[str] | None) -> dict[str, Any]:
    """``KEY=VALUE`` texts as a filter; values are read as JSON where they are JSON, and one key may have several.

    Raises:
        ConfigError: There is no ``=``.
    """
    found: dict[str, list[Any]] = {}
    for text in where or ():
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise ConfigError(f"--where {text!r}", hint="write --where KEY=VALUE, e.g. --where team=red")
        found.setdefault(key, []).append(json_or_text(value))
    return dict(found)


def object_of(text: str) -> dict[str, Any]:
    """Metadata given as JSON.

    Raises:
        ConfigError: It is not a JSON object.
    """
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--metadata is not JSON: {error}", hint='e.g. \'{"team": "red"}\'') from error
    if not isinstance(value, dict):
        raise ConfigError("--metadata is not a JSON object", hint='e.g. \'{"team": "red"}\'')
    return value


def json_or_text(value: str) -> Any:  # noqa: ANN401  # whatever JSON holds
    """A number, truth value or null as such; else the text."""
    try:
        read = json.loads(value)
    except ValueError:
        return value
    return value if isinstance(read, (dict, list)) else read


def settings_of(settings: Settings) -> str:
    """The options that the fingerprint depends on, as JSON, to open the same pipeline again."""
    detect = settings.detect
    values: dict[str, object] = {
        "pack": settings.pack,
        "detect.sizes": ",".join(map(str, detect.sizes)),
        "detect.max_faces": detect.max_faces,
        "detect.order": detect.order,
        "detect.scale": detect.scale,
        "detect.min_face_px": detect.min_face_px,
        "decode.truncated": settings.decode.truncated,
        "decode.scaled": settings.decode.scaled,
        "embed.flip": settings.embed.flip,
    }
    values |= {f"detect.{key}": getattr(detect, key) for key in ("score", "nms") if getattr(detect, key) is not None}
    return json.dumps(values, sort_keys=True)


def identity_of(engine: Engine) -> PipelineIdentity:
    """What a gallery keeps of an engine."""
    from facefleet.gallery import PipelineIdentity

    described = engine.describe()
    names = ("pack", "license", "detector", "embedder")
    kept: dict[str, str] = {key: described[key] for key in names if key in described}
    kept["settings"] = settings_of(engine.settings)
    return PipelineIdentity(engine.fingerprint, engine.dimension, engine.manifest.embedder.threshold, kept)


@contextmanager
def engine_of(
    gallery: Gallery,
    *,
    pack: str | None,
    backend: str | None,
    devices: str | None,
    precision: str | None,
    sets: Sequence[str] | None,
    config: Path | None,
) -> Iterator[Engine]:
    """The engine that a gallery was made with, open; what is given here comes first.

    Raises:
        PipelineMismatchError: It is not the same.
    """
    from facefleet.pipeline import Engine

    kept = json.loads(gallery.header.pipeline.description.get("settings", "{}"))
    made = [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in kept.items()]
    loaded = options.effective(
        config=config,
        sets=[*made, *(sets or ())],
        pack=pack,
        runtime__backend=backend,
        runtime__devices=devices,
        runtime__precision=precision,
    )
    with Engine(loaded.settings) as engine:
        gallery.require(engine.fingerprint)
        yield engine


def print_table(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A plain table on stdout; numbers to the right."""
    from rich.table import Table

    table = Table(box=None)
    for number, title in enumerate(titles):
        right = bool(rows) and all(isinstance(row[number], (int, float)) for row in rows)
        table.add_column(title, justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(f"{value:.4f}" if isinstance(value, float) else str(value) for value in row))
    console = terminal()
    if not console.is_terminal:
        console.width = 10_000  # a file or a pipe gets whole lines
    console.print(table)
