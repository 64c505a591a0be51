"""``facefleet gallery calibrate`` and ``reembed``: what belongs to the model of a gallery."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from facefleet.cli import gallery_options as shared
from facefleet.cli import options
from facefleet.cli.exits import Exit, command, say
from facefleet.cli.terminal import terminal
from facefleet.errors import GalleryError
from facefleet.telemetry import configure_logging


@command
def calibrate(
    folder: shared.Folder,
    labeled: Annotated[
        Path | None, typer.Option(help="Parquet of faces with a column `person`, instead of the gallery's own samples.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="PNG to write.")] = None,
    forget: Annotated[bool, typer.Option("--forget", help="Show no probabilities any more.")] = False,
    as_json: shared.Json = False,
    actor: shared.Actor = None,
) -> Exit:
    """Thresholds for wanted false acceptance rates, and scores as probabilities from now on."""
    import numpy as np

    from facefleet.gallery import reads
    from facefleet.gallery.calibration import calibrate as measure
    from facefleet.gallery.calibration import plot_calibration
    from facefleet.gallery.face_table import read_face_table
    from facefleet.gallery.vectors import checked_vectors

    with shared.open_gallery(folder, actor) as gallery:
        if forget:
            gallery.remember_calibration(None)
            return Exit.DONE
        dimension = gallery.header.pipeline.dimension
        if labeled is not None:
            table = read_face_table(labeled)
            gallery.require(table.fingerprint)
            if table.people is None:
                raise GalleryError(f"{labeled}: has no column `person`", hint="add one that says whose each face is")
            people = np.unique(np.array(table.people), return_inverse=True)[1].astype(np.int64)
            vectors = checked_vectors(table.embeddings, dimension)
        else:
            with gallery.database.reading() as db:
                _, people, vectors = reads.vectors_after(db, -1, dimension)
        found = measure(vectors, people)
        gallery.remember_calibration(found)
    if as_json:
        print(found.to_json())
    else:
        say(f"{found.impostors:,} pairs of different people, {found.genuine:,} of the same person")
        rows = [
            (
                f"{row.far:g}",
                "too few pairs" if row.threshold is None else f"{row.threshold:.4f}",
                "" if row.tar is None else f"{row.tar:.4f}",
                "" if row.threshold is None or found.slope is None else f"{found.probability(row.threshold):.4f}",
            )
            for row in found.rows
        ]
        shared.print_table(("false acceptance", "threshold", "true acceptance", "probability there"), rows)
        if found.slope is None:
            say("too few pairs of the same person: no probabilities")
    if plot is not None:
        if plot_calibration(found, plot) is None:
            say('no plot: pip install "facefleet[bench]" for matplotlib')
        else:
            say(f"plot: {plot}")
    return Exit.DONE


@command
def reembed(
    folder: shared.Folder,
    drop_failed: Annotated[
        bool, typer.Option("--drop-failed", help="Remove samples that cannot be embedded again.")
    ] = False,
    as_json: shared.Json = False,
    actor: shared.Actor = None,
    pack: options.Pack = None,
    backend: options.Backend = None,
    devices: options.Devices = None,
    precision: options.Precision = None,
    det_size: options.DetSize = None,
    score: options.Score = None,
    sets: options.Set = None,
    config: options.Config = None,
    verbose: options.Verbose = False,
) -> Exit:
    """Move a gallery to another pack or other options: every face is embedded again, from its chip or its source.

    Run it again to go on where it was stopped. Searches use the old vectors until all new ones are there.
    """
    configure_logging(verbose=verbose)
    loaded = options.effective(
        config=config,
        sets=sets,
        det_size=det_size,
        pack=pack,
        runtime__backend=backend,
        runtime__devices=devices,
        runtime__precision=precision,
        detect__score=score,
    )
    from facefleet.cli.extract import stopping
    from facefleet.gallery.reembed import reembed as move
    from facefleet.models.load import load_models
    from facefleet.pipeline import Engine

    with (
        shared.open_gallery(folder, actor) as gallery,
        Engine(loaded.settings) as engine,
        contextlib.ExitStack() as stack,
        stopping() as stop,
        _progress() as progress,
    ):
        chips = None
        if gallery.header.keep_chips:
            chips = load_models(loaded.settings.pack, loaded.settings, stack, roles=("embedder",)).embedder
        report = move(
            gallery,
            shared.identity_of(engine),
            chips,
            engine,
            drop_failed=drop_failed,
            progress=progress,
            stop=stop,
        )
    if as_json:
        values = {"samples": report.samples, "done": report.done, "finished": report.finished}
        print(json.dumps(values | {"dropped": report.dropped, "failed": [list(each) for each in report.failed]}))
    for sample, reason in report.failed[:20]:
        say(f"sample {sample}: {reason}")
    if len(report.failed) > 20:
        say(f"... and {len(report.failed) - 20} more")
    if report.finished:
        say(f"{report.done} samples moved, {report.dropped} dropped")
        return Exit.DONE
    say(f"{report.done} of {report.samples} done; the gallery is as it was")
    say("hint: run it again to go on" + (", or with --drop-failed to leave those out" if report.failed else ""))
    return Exit.SOME_FAILED


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[int, int], None] | None]:
    """A live line on a terminal; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import Progress

    with Progress(console=terminal(stderr=True), transient=True) as bar:
        task = bar.add_task("samples", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
