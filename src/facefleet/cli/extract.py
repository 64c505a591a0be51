"""``facefleet extract``: every face of any mix of photos into one table."""

from __future__ import annotations

import gc
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from facefleet.cli import options
from facefleet.cli.exits import Exit, command, say
from facefleet.cli.terminal import terminal
from facefleet.telemetry import configure_logging

if TYPE_CHECKING:
    from facefleet.config import Settings
    from facefleet.jobs import JobSummary, Progress
    from facefleet.jobs.analyzer import Analyzer
    from facefleet.pipeline import Engine
    from facefleet.sinks import PictureSink

_OUTPUT = "Output"


@command
def extract(
    inputs: Annotated[
        list[str] | None,
        typer.Argument(help="Files, folders, globs, tar and zip archives; - for stdin.", show_default=False),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Table to write: .parquet or .jsonl.", rich_help_panel=_OUTPUT)
    ] = Path("faces.parquet"),
    lists: Annotated[list[Path] | None, typer.Option("--list", help="File with one path a line, or NUL.")] = None,
    all_files: Annotated[bool, typer.Option("--all-files", help="Take files of any name in folders.")] = False,
    include: Annotated[list[str] | None, typer.Option(help="Pattern of files to take from folders.")] = None,
    exclude: Annotated[list[str] | None, typer.Option(help="Pattern of files and folders to leave out.")] = None,
    chips: Annotated[Path | None, typer.Option(help="Folder for the aligned faces.", rich_help_panel=_OUTPUT)] = None,
    draw: Annotated[Path | None, typer.Option(help="Folder for annotated copies.", rich_help_panel=_OUTPUT)] = None,
    summary: Annotated[
        str | None, typer.Option(help="Write totals as JSON to this file; - for stdout.", rich_help_panel=_OUTPUT)
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Start anew, not where an earlier run ended.", rich_help_panel=_OUTPUT)
    ] = False,
    pack: options.Pack = None,
    backend: options.Backend = None,
    devices: options.Devices = None,
    precision: options.Precision = None,
    threads: options.Threads = None,
    det_size: options.DetSize = None,
    score: options.Score = None,
    nms: Annotated[float | None, typer.Option(help="IoU of suppression.", rich_help_panel="Detection")] = None,
    max_faces: Annotated[
        int | None, typer.Option(help="Most faces a photo; 0: all.", rich_help_panel="Detection")
    ] = None,
    order: Annotated[str | None, typer.Option(help="area, score or center.", rich_help_panel="Detection")] = None,
    min_face_px: Annotated[
        float | None, typer.Option(help="Least size of a face in pixels.", rich_help_panel="Detection")
    ] = None,
    flip: Annotated[
        bool | None, typer.Option("--flip", help="Add the mirrored face's embedding.", rich_help_panel="Detection")
    ] = None,
    sets: options.Set = None,
    config: options.Config = None,
    profile: options.Profile = None,
    verbose: options.Verbose = False,
    log_format: options.LogFormat = "human",
) -> Exit:
    """Write every face of the photos: box, landmarks, score, embedding.

    Run it again to go on where it was stopped or killed; photos that are done are not done twice.
    """
    configure_logging(verbose=verbose, format=options.log_format(log_format))
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
        detect__nms=nms,
        detect__max_faces=max_faces,
        detect__order=order,
        detect__min_face_px=min_face_px,
        embed__flip=flip,
    )
    from facefleet.decode import Decoder
    from facefleet.jobs import run_job
    from facefleet.pipeline import Engine
    from facefleet.sinks import ChipsSink, DrawSink
    from facefleet.sources import InputOptions, Inputs

    chosen = InputOptions(
        all_files=all_files,
        lists=tuple(str(path) for path in lists or ()),
        include=tuple(include or ()),
        exclude=tuple(exclude or ()),
    )
    source = Inputs(inputs or [], chosen)
    pictures: list[PictureSink] = []
    if chips is not None:
        pictures.append(ChipsSink(chips))
    if draw is not None:
        pictures.append(DrawSink(draw, Decoder(loaded.settings.decode)))
    with (
        Engine(loaded.settings) as engine,
        _cached(engine, loaded.settings) as analyzer,
        stopping() as stop,
        _progress(inputs or [], chosen) as progress,
    ):
        result = run_job(
            source,
            output,
            analyzer,
            loaded.settings.job,
            pictures=pictures,
            overwrite=overwrite,
            progress=progress,
            stop=stop,
        )
    _report(result, summary)
    if result.failed and result.failed == result.inputs:
        return Exit.NOTHING_DONE
    return Exit.SOME_FAILED if result.failed or result.interrupted else Exit.DONE


@contextmanager
def _cached(engine: Engine, settings: Settings) -> Iterator[Analyzer]:
    """The engine, behind the cache if there is one."""
    from facefleet.cache import CachedEngine, open_cache

    cache = open_cache(settings.cache)
    if cache is None:
        yield engine
        return
    cached = CachedEngine(engine, cache, settings.cache, decode=settings.decode, window=settings.batch.max_images)
    try:
        yield cached
        stats = cached.stats()
        say(f"cache: {stats.hits} hits, {stats.shared} at once, {stats.misses} misses; {stats.entries} results kept")
    finally:
        cached.close()
        cache.close()


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """The first Ctrl-C (or SIGTERM) asks for an orderly end, the second one ends at once.

    What is loaded by now stays until that end, so that collections of garbage, which stop every thread, leave it out.
    """
    stop = threading.Event()

    def handle(number: int, _frame: object) -> None:
        if stop.is_set():
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        stop.set()
        say("stopping: what is in progress is finished; press Ctrl-C again to end at once")

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    gc.collect()
    gc.freeze()
    try:
        yield stop
    finally:
        gc.unfreeze()
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _progress(paths: list[str], chosen: object) -> Iterator[Callable[[Progress], None] | None]:
    """A live line on a terminal; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("photos"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rates]}"),
        TimeRemainingColumn(compact=True),
    )
    with Bar(*columns, console=terminal(stderr=True), transient=True) as bar:
        task = bar.add_task("photos", total=None, rates="")
        threading.Thread(target=_count, args=(paths, chosen, bar, task), daemon=True).start()

        def update(state: Progress) -> None:
            seconds = max(state.seconds, 1e-9)
            rates = f"{state.done / seconds:.1f} images/s  {state.faces / seconds:.1f} faces/s"
            if state.failed:
                rates += f"  [red]{state.failed} failed[/red]"
            bar.update(task, completed=state.done + state.kept, rates=rates)

        yield update


def _count(paths: list[str], chosen: object, bar: object, task: object) -> None:
    """Count the inputs for the bar, beside the job; stdin cannot be counted."""
    from facefleet.errors import FacefleetError
    from facefleet.sources import InputOptions, Inputs

    assert isinstance(chosen, InputOptions)
    if "-" in paths:
        return
    try:
        bar.update(task, total=sum(1 for _ in Inputs(paths, chosen)))  # type: ignore[attr-defined]
    except FacefleetError:
        return


def _report(result: JobSummary, summary: str | None) -> None:
    from rich.table import Table

    if summary == "-":
        print(result.to_json())
    elif summary is not None:
        Path(summary).write_text(result.to_json() + "\n")
    table = Table(title="stopped: run it again to go on" if result.interrupted else None, show_header=False, box=None)
    table.add_column(style="bold")
    table.add_column(justify="right")
    rows: dict[str, object] = {
        "ok": result.ok,
        "no_face": result.no_face,
        "failed_retryable": result.failed_retryable,
        "failed_permanent": result.failed_permanent,
        "inputs": result.inputs,
        "faces": result.faces,
    }
    for name, value in rows.items():
        table.add_row(name, str(value))
    if result.duplicates:
        table.add_row("named twice", str(result.duplicates))
    if result.skipped:
        table.add_row("other files, skipped", str(result.skipped))
    if result.dropped:
        table.add_row("not named any more, dropped", str(result.dropped))
    table.add_row(
        "done in this run", f"{result.processed} in {result.seconds:.1f} s, {result.images_per_s:.1f} images/s"
    )
    for code, count in result.errors.items():
        table.add_row(f"  {code}", str(count), style="red")
    console = terminal(stderr=True)
    console.print(table)
    if not result.interrupted:
        console.print(f"faces: {result.output}", highlight=False, soft_wrap=True)
    if result.failures:
        console.print(f"failed inputs, with reasons: {result.failures}", highlight=False, soft_wrap=True)
