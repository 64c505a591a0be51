"""``facefleet bench``: measure on photos of one's own."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from facefleet.cli import bench_compare, bench_model, bench_pipeline, bench_serve, options
from facefleet.cli.exits import Exit, command
from facefleet.cli.terminal import terminal
from facefleet.telemetry import configure_logging

app = typer.Typer(no_args_is_help=True)
app.command("model")(bench_model.model)
app.command("pipeline")(bench_pipeline.pipeline)
app.command("serve")(bench_serve.serve)
app.command("compare")(bench_compare.compare)


@app.command()
@command
def quick(
    photos: Annotated[list[str], typer.Argument(help="Files, folders or globs.")],
    seconds: Annotated[float, typer.Option(min=0.5, help="How long to measure.")] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    pack: options.Pack = None,
    backend: options.Backend = None,
    devices: options.Devices = None,
    precision: options.Precision = None,
    threads: options.Threads = None,
    det_size: options.DetSize = None,
    score: options.Score = None,
    sets: options.Set = None,
    config: options.Config = None,
    profile: options.Profile = None,
    verbose: options.Verbose = False,
) -> Exit:
    """Images and faces per second, and milliseconds per stage, from encoded bytes to embeddings."""
    configure_logging(verbose=verbose)
    loaded = options.effective(
        config=config,
        sets=sets,
        det_size=det_size,
        profile=profile,
        pack=pack,
        runtime__backend=backend,
        runtime__devices=devices,
        runtime__precision=precision,
        runtime__threads=threads,
        detect__score=score,
    )
    from facefleet.bench.quick import measure
    from facefleet.pipeline import Engine
    from facefleet.sources import Inputs

    with Engine(loaded.settings) as engine:
        report = measure(engine, Inputs(photos), seconds=seconds)
        description = engine.describe()
    if as_json:
        print(json.dumps(report.as_json() | {"engine": description}))
        return Exit.DONE
    from rich.table import Table

    console = terminal()
    console.print(f"{report.images_per_s:.1f} images/s, {report.faces_per_s:.1f} faces/s", style="bold")
    console.print(
        f"{report.photos} photos, {report.faces / max(report.images, 1):.2f} faces each, {report.images} images in "
        f"{report.seconds:.1f} s; {description['backend']} {description['precision']}, {description['threads']} threads"
    )
    table = Table(box=None)
    for title in ("stage", "items", "ms an item", "share"):
        table.add_column(title, justify="left" if title == "stage" else "right")
    total = sum(busy for _, busy in report.stages.values()) or 1.0
    for stage, (count, busy) in report.stages.items():
        table.add_row(stage, str(count), f"{1000 * busy / max(count, 1):.2f}", f"{100 * busy / total:.0f} %")
    console.print(table)
    if report.failed:
        console.print(f"{report.failed} photos could not be read", style="yellow")
    return Exit.DONE
