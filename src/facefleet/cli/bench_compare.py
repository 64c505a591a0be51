"""``facefleet bench compare``: two results, and whether what changed is more than noise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from facefleet.cli import bench_output
from facefleet.cli.exits import Exit, command


@command
def compare(
    before: Annotated[Path, typer.Argument(help="Result that `facefleet bench ... --json FILE` wrote.")],
    after: Annotated[Path, typer.Argument(help="Another one of the same kind.")],
    floor: Annotated[float, typer.Option(min=0, max=1, help="Changes below this share are never called one.")] = 0.02,
    fail_on_slower: Annotated[
        bool, typer.Option("--fail-on-slower", help="Exit with 1 where the verdict is slower or mixed.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> Exit:
    """Setting by setting: the change, how much of one noise makes, and a verdict."""
    from facefleet.bench import compare as comparing
    from facefleet.bench.results import read_result

    found = comparing.compare(read_result(before), read_result(after), floor=floor)
    if as_json:
        print(json.dumps(found.as_json()))
    else:
        rows = [
            [
                row.key,
                f"{row.before:,.1f}",
                f"{row.after:,.1f}",
                f"{100 * (row.change.ratio - 1):+.1f} %",
                "?" if row.change.verdict == "unknown" else f"{100 * row.change.noise:.1f} %",
                row.change.verdict,
            ]
            for row in found.rows
        ]
        titles = ("setting", "first", "second", "change", "noise", "verdict")
        bench_output.print_table(titles, rows, left=1)
        print(f"{found.verdict}: {100 * (found.ratio - 1):+.1f} % over {len(rows)} settings")
        for text in found.cautions:
            bench_output.note(f"caution: {text}")
        if found.missing:
            bench_output.note(f"{len(found.missing)} settings are in one result only: {found.missing[0]}, ...")
    slower = found.verdict in ("slower", "mixed")
    return Exit.SOME_FAILED if fail_on_slower and slower else Exit.DONE
