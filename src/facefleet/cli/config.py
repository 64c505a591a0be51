"""``facefleet config``: the settings in effect, and where each came from."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from facefleet.cli import options
from facefleet.cli.exits import Exit, command
from facefleet.cli.terminal import terminal

app = typer.Typer(no_args_is_help=True)


@app.command()
@command
def show(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    sets: options.Set = None,
    config: options.Config = None,
    profile: options.Profile = None,
) -> Exit:
    """Every setting, its value, and where that came from."""
    loaded = options.effective(config=config, sets=sets, profile=profile)
    if as_json:
        print(json.dumps({key: {"value": value, "from": origin} for key, value, origin in loaded.items()}))
        return Exit.DONE
    from rich.table import Table

    table = Table(box=None)
    for title in ("setting", "value", "from"):
        table.add_column(title)
    for key, value, origin in loaded.items():
        shown = (
            ", ".join(map(str, value)) if isinstance(value, tuple) else "unset" if value in (None, "") else str(value)
        )
        table.add_row(key, shown, origin, style="" if origin == "default" else "bold")
    terminal().print(table)
    return Exit.DONE
