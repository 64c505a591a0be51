"""``facefleet video``: who appears when, in video files and live streams."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from facefleet.cli import options
from facefleet.cli.exits import Exit, command, one_of, say
from facefleet.cli.extract import stopping
from facefleet.cli.terminal import terminal
from facefleet.errors import ConfigError, FacefleetError
from facefleet.telemetry import configure_logging

if TYPE_CHECKING:
    from facefleet.jobs.video import VideoOptions, VideoOutputs, VideoProgress, VideoResult
    from facefleet.sources.video import StreamOptions
    from facefleet.tracks import Identifier

_SAMPLING, _OUTPUT, _LIVE = "Which frames", "Output", "Live streams"


@command
def video(
    inputs: Annotated[
        list[str], typer.Argument(help="Video files; or addresses of live streams (rtsp://, http://, /dev/video0).")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder; each video gets one in it.")] = Path("out"),
    every: Annotated[int, typer.Option(help="Look at one frame of so many.", rich_help_panel=_SAMPLING)] = 1,
    fps: Annotated[
        float | None, typer.Option(help="Look at so many frames a second.", rich_help_panel=_SAMPLING)
    ] = None,
    keyframes: Annotated[
        bool, typer.Option("--keyframes", help="Look at key frames only.", rich_help_panel=_SAMPLING)
    ] = False,
    scene: Annotated[
        float | None,
        typer.Option(help="Look at frames that changed by so much, 0 to 1, e.g. 0.1.", rich_help_panel=_SAMPLING),
    ] = None,
    start: Annotated[str | None, typer.Option(help="Begin at: seconds, or [H:]M:S.", rich_help_panel=_SAMPLING)] = None,
    end: Annotated[str | None, typer.Option(help="End at, likewise.", rich_help_panel=_SAMPLING)] = None,
    table: Annotated[str, typer.Option("--format", help="parquet or jsonl.", rich_help_panel=_OUTPUT)] = "parquet",
    annotate: Annotated[
        bool, typer.Option("--annotate", help="Write a copy with boxes and names.", rich_help_panel=_OUTPUT)
    ] = False,
    redact: Annotated[
        str | None,
        typer.Option(help="Write a copy that hides faces: all, unknown, or a NAME.", rich_help_panel=_OUTPUT),
    ] = None,
    timeline: Annotated[
        bool, typer.Option("--timeline", help="Plot persons and time.", rich_help_panel=_OUTPUT)
    ] = False,
    contact: Annotated[bool, typer.Option(help="Write a contact sheet.", rich_help_panel=_OUTPUT)] = True,
    chapters: Annotated[bool, typer.Option(help="Write WebVTT and JSON chapters.", rich_help_panel=_OUTPUT)] = True,
    summary: Annotated[
        str | None, typer.Option(help="Write totals as JSON to this file; - for stdout.", rich_help_panel=_OUTPUT)
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Start anew, not where an earlier run ended.", rich_help_panel=_OUTPUT)
    ] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Videos at a time; they share the engine.")] = 2,
    best: Annotated[int, typer.Option(min=1, help="Faces a track that are embedded.")] = 3,
    min_faces: Annotated[int, typer.Option(min=1, help="Least faces of a track.")] = 2,
    same: Annotated[float | None, typer.Option(help="Least similarity of one person; default: the pack's.")] = None,
    gallery: Annotated[Path | None, typer.Option(help="Gallery that names persons; see `facefleet gallery`.")] = None,
    tracker: Annotated[str, typer.Option(help="builtin, bytetrack, cbiou or ocsort.")] = "builtin",
    decoder: Annotated[str, typer.Option(help="cpu; cuda or cuda:N for NVDEC.")] = "cpu",
    duration: Annotated[float | None, typer.Option(help="Stop after so many seconds.", rich_help_panel=_LIVE)] = None,
    open_timeout: Annotated[
        float, typer.Option(help="Seconds in which a stream has to open.", rich_help_panel=_LIVE)
    ] = 10.0,
    read_timeout: Annotated[
        float, typer.Option(help="Seconds after which a silent stream is opened again.", rich_help_panel=_LIVE)
    ] = 5.0,
    transport: Annotated[str, typer.Option(help="Of RTSP: tcp or udp.", rich_help_panel=_LIVE)] = "tcp",
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
    """Find who appears when: a row a face, a row a track, pictures and copies.

    Run it again to go on where it was stopped or killed.
    """
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
    from facefleet.jobs.video import VideoOptions, VideoOutputs, open_embedder
    from facefleet.pipeline import Engine
    from facefleet.sources.video import Sampling, StreamOptions, is_live
    from facefleet.sources.video.hardware import check_decoder
    from facefleet.tracks import METHODS, TrackerOptions

    live = [name for name in inputs if is_live(name)]
    if live and len(live) < len(inputs):
        raise ConfigError("files and live streams together", hint="run one command for each kind")
    sampling = Sampling(
        every=every, fps=fps, keyframes=keyframes, scene=scene, start_s=_seconds(start), end_s=_seconds(end)
    )
    chosen = VideoOutputs(
        table="jsonl" if one_of("--format", table, ("parquet", "jsonl")) == "jsonl" else "parquet",
        contact=contact,
        timeline=timeline,
        chapters=chapters,
        annotate=annotate,
        redact=redact,
    )
    check_decoder(decoder)
    joined = TrackerOptions(method=one_of("--tracker", tracker, METHODS))  # type: ignore[arg-type]
    max_pixels = loaded.settings.decode.max_pixels
    reading = StreamOptions(
        open_timeout_s=open_timeout,
        read_timeout_s=read_timeout,
        transport=transport,
        max_pixels=max_pixels,
        decoder=decoder,
    )
    with Engine(loaded.settings) as engine, open_embedder(loaded.settings) as embed, stopping() as stop:
        how = VideoOptions(
            sampling=sampling,
            tracker=joined,
            decoder=decoder,
            best=best,
            min_faces=min_faces,
            threshold=same if same is not None else engine.manifest.embedder.threshold,
            max_pixels=max_pixels,
        )
        with _known(gallery, engine.fingerprint) as known:
            if live:
                return _watch(live, output, engine, embed, how, reading, known, duration, stop, summary)
            results = _files(inputs, output, engine, embed, how, chosen, known, jobs, stop, overwrite=overwrite)
    return _report(results, summary)


@contextmanager
def _known(folder: Path | None, fingerprint: str) -> Iterator[Identifier | None]:
    if folder is None:
        yield None
        return
    from facefleet.gallery import Gallery
    from facefleet.jobs.video import GalleryIdentifier

    with closing(Gallery.open(folder)) as opened:
        yield GalleryIdentifier(opened, fingerprint)


def _files(
    inputs: list[str],
    output: Path,
    engine: Any,  # noqa: ANN401  # Engine, imported when it is needed
    embed: Any,  # noqa: ANN401
    how: VideoOptions,
    chosen: VideoOutputs,
    known: Identifier | None,
    jobs: int,
    stop: threading.Event,
    *,
    overwrite: bool,
) -> dict[str, VideoResult | FacefleetError]:
    from facefleet.jobs.video import run_video

    folders = _folders(inputs, output)

    def one(name: str, update: Callable[[VideoProgress], None] | None) -> VideoResult | FacefleetError:
        try:
            return run_video(
                name,
                folders[name],
                engine,
                embed,
                dimension=engine.dimension,
                options=how,
                outputs=chosen,
                gallery=known,
                overwrite=overwrite,
                progress=update,
                stop=stop,
            )
        except FacefleetError as error:
            say(f"error: {error}")
            return error

    with _progress() as bar, ThreadPoolExecutor(min(jobs, len(folders))) as pool:
        started = {name: pool.submit(one, name, bar(name)) for name in folders}
        return {name: future.result() for name, future in started.items()}


def _folders(inputs: list[str], output: Path) -> dict[str, Path]:
    """A folder of its own for every video, named like it."""
    taken: set[str] = set()
    folders: dict[str, Path] = {}
    for name in dict.fromkeys(inputs):
        stem = Path(name).stem or "video"
        unique, number = stem, 2
        while unique in taken:
            unique, number = f"{stem}-{number}", number + 1
        taken.add(unique)
        folders[name] = output / unique
    return folders


@contextmanager
def _progress() -> Iterator[Callable[[str], Callable[[VideoProgress], None] | None]]:
    """A live line a video on a terminal; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[rates]}"),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=terminal(stderr=True), transient=True) as bar:

        def begin(name: str) -> Callable[[VideoProgress], None]:
            task = bar.add_task(Path(name).name, total=None, rates="")

            def update(state: VideoProgress) -> None:
                rates = f"{state.time_s:.1f} s  {state.frames} frames  {state.faces} faces"
                bar.update(task, total=state.duration_s, completed=state.time_s, rates=rates)

            return update

        yield begin


def _watch(
    names: list[str],
    output: Path,
    engine: Any,  # noqa: ANN401
    embed: Any,  # noqa: ANN401
    how: VideoOptions,
    reading: StreamOptions,
    known: Identifier | None,
    duration: float | None,
    stop: threading.Event,
    summary: str | None,
) -> Exit:
    from facefleet.jobs.video import watch

    def show(statuses: list[Any]) -> None:
        for status in statuses:
            say(str(status))

    result = watch(
        names,
        output,
        engine,
        embed,
        options=how,
        stream_options=reading,
        gallery=known,
        duration_s=duration,
        stop=stop,
        tell=show,
    )
    _write_summary(json.dumps(result.as_json(), ensure_ascii=False), summary)
    say(f"tracks: {output / 'tracks.jsonl'}")
    return Exit.DONE if all(status.frames for status in result.streams) else Exit.SOME_FAILED


def _seconds(text: str | None) -> float | None:
    """Seconds of ``12.5``, ``1:02.5`` or ``1:00:00``."""
    if text is None:
        return None
    try:
        total = 0.0
        for part in text.split(":"):
            total = total * 60 + float(part)
    except ValueError:
        raise ConfigError(f"time {text!r}", hint="write seconds, or [H:]M:S") from None
    return total


def _write_summary(text: str, summary: str | None) -> None:
    if summary == "-":
        print(text)
    elif summary is not None:
        Path(summary).write_text(text + "\n")


def _report(results: dict[str, VideoResult | FacefleetError], summary: str | None) -> Exit:
    from rich.table import Table
    from rich.text import Text

    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    table = Table(box=None)
    for title in ("video", "frames", "faces", "tracks", "persons", "embedded", "seconds", "result"):
        words = title in ("video", "result")
        table.add_column(title, justify="left" if words else "right", overflow="fold", no_wrap=title != "video")
    good = problems = 0
    for name, result in results.items():
        short = Path(name).name
        if isinstance(result, FacefleetError):
            rows.append({"input": name, "error": result.code, "message": result.message})
            table.add_row(short, *[""] * 6, Text(result.code or "", "red"))
            continue
        good += 1
        rows.append(result.as_json())
        said = Text("ok")
        if result.failed_frames:
            said = Text(f"{sum(result.failed_frames.values())} frames failed", "red")
        if result.damage:
            said = Text("damaged", "yellow")
            notes.append(f"{short}: {result.damage}")
        if result.interrupted:
            said = Text("stopped: run it again to go on")
        problems += said.plain != "ok"
        numbers = (result.frames, result.faces, len(result.tracks), result.persons, result.embedded)
        table.add_row(short, *map(str, numbers), f"{result.seconds:.1f}", said)
        notes.append(f"{short}: {result.output}")
    console = terminal(stderr=True)
    console.print(table, soft_wrap=True)
    for note in notes:
        console.print(note, soft_wrap=True)
    _write_summary(json.dumps(rows, ensure_ascii=False), summary)
    if not good:
        return Exit.NOTHING_DONE
    return Exit.SOME_FAILED if problems or good < len(results) else Exit.DONE
