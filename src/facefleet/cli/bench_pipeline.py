"""``facefleet bench pipeline``: the whole way on photos of one's own."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from facefleet.cli import bench_output, options
from facefleet.cli.exits import Exit, command
from facefleet.errors import ConfigError
from facefleet.telemetry import configure_logging


@command
def pipeline(
    photos: Annotated[list[str], typer.Argument(help="Files, folders or globs.")],
    rounds: Annotated[int, typer.Option(min=1, help="Measurements.")] = 3,
    seconds: Annotated[float, typer.Option(min=0.1, help="Of each.")] = 3.0,
    in_flight: Annotated[int, typer.Option(min=0, help="Photos inside; 0: as many as the engine takes.")] = 0,
    timeline: Annotated[
        Path | None, typer.Option(help="Write what every stage did, for Perfetto or chrome://tracing.")
    ] = None,
    pack: options.Pack = None,
    backend: options.Backend = None,
    devices: options.Devices = None,
    precision: options.Precision = None,
    threads: options.Threads = None,
    det_size: options.DetSize = None,
    sets: options.Set = None,
    config: options.Config = None,
    profile: options.Profile = None,
    json_file: bench_output.Json = None,
    html_file: bench_output.Html = None,
    quiet: bench_output.Quiet = False,
    verbose: options.Verbose = False,
) -> Exit:
    """Rate, latency, and what each stage takes, waits and batches, from encoded bytes to embeddings."""
    configure_logging(verbose=verbose)
    bench_output.check_outputs(json_file, html_file, timeline)
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
    )
    from facefleet.bench.pipeline import measure
    from facefleet.bench.report_load import pipeline_headline, pipeline_table
    from facefleet.bench.results import envelope, load_average, write_text
    from facefleet.bench.timeline import Trace, summary_lines
    from facefleet.sources import Inputs

    load = load_average()
    with bench_output.progress_line() as progress:
        measured = measure(
            loaded.settings, Inputs(photos), rounds=rounds, seconds=seconds, in_flight=in_flight, progress=progress
        )
    result = envelope("pipeline", asdict(loaded.settings), measured.as_json(), load)
    if not quiet and str(json_file) != "-":
        print(pipeline_headline(result))
        bench_output.print_table(*pipeline_table(result), left=1)
    if timeline is not None:
        if not measured.runs:
            raise ConfigError("no timeline: the stages ran in worker processes", hint="use one device, not isolated")
        trace = Trace()
        trace.stages(measured.runs)
        write_text(trace.as_json(), timeline)
        for line in summary_lines(trace.summary()):
            bench_output.note(line)
    bench_output.write(result, json_file, html_file)
    return Exit.DONE
