"""What the commands of ``facefleet bench`` do with a result: tables, JSON, a page."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from facefleet.cli.exits import say
from facefleet.cli.terminal import terminal
from facefleet.errors import ConfigError

_OUTPUT = "Output"
Json = Annotated[
    Path | None, typer.Option("--json", help="Write the result as JSON; - for stdout.", rich_help_panel=_OUTPUT)
]
Html = Annotated[Path | None, typer.Option("--html", help="Write a page with charts.", rich_help_panel=_OUTPUT)]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No tables on the terminal.", rich_help_panel=_OUTPUT)]


def write(result: Mapping[str, Any], json_file: Path | None, html_file: Path | None) -> None:
    """Write what was asked for.

    Raises:
        ConfigError: A file cannot be written.
    """
    from facefleet.bench.report import html_report
    from facefleet.bench.results import write_result, write_text

    if json_file is not None and str(json_file) == "-":
        print(json.dumps(result))
    elif json_file is not None:
        write_result(result, json_file)
    if html_file is not None:
        write_text(html_report(result), html_file)


def check_outputs(*files: Path | None) -> None:
    """Refuse files that could not be written after the measurement, before it.

    Raises:
        ConfigError: The folder of one is missing.
    """
    for file in files:
        if file is not None and str(file) != "-" and not file.absolute().parent.is_dir():
            raise ConfigError(f"{file}: there is no folder {file.parent}", hint="make it first")


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]], *, heading: str = "", left: int = 2) -> None:
    """A table on the terminal, or with tabs in a pipe that is too narrow for it."""
    from rich.table import Table

    if not rows:
        return
    widths = [max(len(title), *(len(row[index]) for row in rows)) for index, title in enumerate(titles)]
    console = terminal()
    if not console.is_terminal:
        console = terminal(width=max(console.width, sum(widths) + 2 * len(widths) + 2))
    table = Table(box=None, title=heading or None, title_justify="left", padding=(0, 1), header_style="dim underline")
    for index, title in enumerate(titles):
        table.add_column(title, justify="left" if index < left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console.print(table)


@contextmanager
def progress_line() -> Iterator[Callable[[str], None]]:
    """One line on stderr that changes; nothing where stderr is no terminal."""
    import sys

    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.status import Status
    from rich.text import Text

    with Status("", console=terminal(stderr=True)) as status:
        yield lambda text: status.update(Text(text))


def numbers(option: str, text: str, *, least: int = 1) -> tuple[int, ...]:
    """``1,2,8`` or ``1..32`` (powers of two) as numbers, rising, each once.

    Raises:
        ConfigError: It is neither.
    """
    found: set[int] = set()
    try:
        for part in text.split(","):
            first, dots, last = part.strip().partition("..")
            if not dots:
                found.add(int(first))
                continue
            value, end = int(first), int(last)
            while value < end:
                found.add(value)
                value *= 2
            found.add(end)
    except ValueError:
        found = set()
    if not found or min(found) < least:
        raise ConfigError(f"{option} {text!r}", hint=f"write numbers from {least} on: 1,2,8 or 1..32 for powers of two")
    return tuple(sorted(found))


def switch(option: str, text: str) -> tuple[bool, ...]:
    """``on``, ``off`` or ``both``.

    Raises:
        ConfigError: It is none of them.
    """
    found = {"on": (True,), "off": (False,), "both": (True, False)}.get(text)
    if found is None:
        raise ConfigError(f"{option} {text!r}", hint="choose on, off or both")
    return found


def note(text: str) -> None:
    """A sentence about a result, on stderr."""
    say(text)
