"""``facefleet models``: packs, what they need, and whether they are here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from facefleet.cli.exits import Exit, command, say
from facefleet.cli.terminal import terminal

if TYPE_CHECKING:
    from facefleet.packs import Store

app = typer.Typer(no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="Name of a pack.")]


def _store() -> Store:
    from facefleet.config import load_settings
    from facefleet.packs import Store

    home = load_settings().settings.home
    return Store(Path(home) if home else None)


@app.command("list")
@command
def list_packs() -> Exit:
    """All packs."""
    from rich.table import Table

    store = _store()
    table = Table(box=None)
    table.add_column("pack", no_wrap=True)
    table.add_column("installed", no_wrap=True)
    table.add_column("commercial", no_wrap=True)
    table.add_column("networks; license", overflow="fold")
    for name in store.names():
        status = store.status(name)
        manifest = status.manifest
        use = "yes" if manifest.commercial_use else "no, accepted" if status.accepted else "no"
        what = f"{manifest.description}; {manifest.license}"
        table.add_row(name, "yes" if status.installed else "no", use, what)
    terminal().print(table)
    return Exit.DONE


@app.command()
@command
def install(
    name: Name,
    accept_license: Annotated[
        bool, typer.Option("--accept-license", help="Accept a license without commercial use.")
    ] = False,
) -> Exit:
    """Fetch and check the files of a pack."""
    store = _store()
    shown = -1

    def progress(file: str, have: int, total: int | None) -> None:
        nonlocal shown
        percent = int(100 * have / total) if total else have >> 20
        if percent != shown:
            shown = percent
            end = "\r" if sys.stderr.isatty() else "\n"
            if sys.stderr.isatty() or percent % 10 == 0:
                print(f"{file}: {have >> 20} MiB" + (f", {percent} %" if total else ""), end=end, file=sys.stderr)

    store.install(name, accept_license=accept_license, progress=progress)
    say(f"{name}: installed and verified")
    return Exit.DONE


@app.command()
@command
def show(name: Name) -> Exit:
    """The manifest of a pack, and where its files are."""
    from facefleet.packs.manifest import dump

    store = _store()
    print(dump(store.manifest(name).manifest), end="")
    for file in store.verify(name):
        print(f"# {file.role}: {file.state}: {file.path}")
    return Exit.DONE


@app.command()
@command
def verify(name: Name) -> Exit:
    """Read every file of a pack and compare digests."""
    files = _store().verify(name)
    for file in files:
        print(f"{file.state:12} {file.role:9} {file.path}")
    return Exit.DONE if all(file.state == "ok" for file in files) else Exit.SOME_FAILED


@app.command()
@command
def add(manifest: Annotated[Path, typer.Argument(help="manifest.toml of a pack of your own.")]) -> Exit:
    """Copy a pack of your own into the store."""
    say(f"added: {_store().add(manifest)}")
    return Exit.DONE
