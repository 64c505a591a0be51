"""``facefleet engines``: what has been built, and whether it still fits this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from facefleet.cli.exits import Exit, command, say
from facefleet.cli.terminal import terminal

app = typer.Typer(no_args_is_help=True)
Folder = Annotated[Path, typer.Argument(help="Folder of engines.")]


@app.command("list")
@command
def list_engines(folder: Folder = Path("engines")) -> Exit:
    """All engines of a folder."""
    from rich.table import Table

    from facefleet.models.build.engines import EngineStore

    table = Table(box=None)
    for title in ("engine", "role", "precision", "batch", "size", "MiB", "state"):
        table.add_column(title, overflow="fold", no_wrap=title != "engine")  # whole names, over lines if need be
    for engine in EngineStore(folder).engines():
        profiles = engine.facts.get("profiles", [])
        state = "; ".join(engine.stale()) or "ready"
        table.add_row(
            engine.folder.name,
            engine.role,
            engine.facts["precision"],
            ", ".join("/".join(map(str, each["batch"])) for each in profiles),
            ", ".join(dict.fromkeys("/".join(map(str, each["height"])) for each in profiles)),
            f"{engine.bytes / 2**20:.1f}",
            state,
        )
    terminal().print(table)
    return Exit.DONE


@app.command()
@command
def verify(folder: Folder = Path("engines")) -> Exit:
    """Read every file of every engine, compare digests, and say what no longer fits this machine."""
    from facefleet.models.build.engines import EngineStore

    bad = 0
    for engine in EngineStore(folder).engines():
        found = [*engine.problems(), *engine.stale()]
        bad += bool(found)
        print(f"{'ok' if not found else 'BAD':4} {engine.folder.name}{': ' + '; '.join(found) if found else ''}")
    return Exit.SOME_FAILED if bad else Exit.DONE


@app.command()
@command
def prune(folder: Folder = Path("engines")) -> Exit:
    """Remove engines that no longer fit this machine, damaged ones and remains of killed builds."""
    from facefleet.models.build.engines import EngineStore

    removed = EngineStore(folder).prune()
    for name in removed:
        print(name)
    say(f"{len(removed)} removed")
    return Exit.DONE
