"""``facefleet tune``: the settings that are fastest within a latency target, on this machine."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Annotated

import typer

from facefleet.cli import bench_output, options
from facefleet.cli.exits import Exit, command, say
from facefleet.errors import ConfigError
from facefleet.telemetry import configure_logging

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}
_MOST_FACES = 24


@command
def tune(
    pack: Annotated[str, typer.Argument(help="Model pack: a name, or a manifest.toml.")],
    p99_ms: Annotated[float, typer.Option("--p99-ms", min=0.1, help="99 of 100 photos are answered within it.")],
    rate: Annotated[str, typer.Option(help="Photos a second that come, e.g. 300/s; none: as many as possible.")] = "",
    memory: Annotated[str, typer.Option(help="Most memory, e.g. 8GiB.")] = "",
    faces_per_image: Annotated[str, typer.Option(help="Faces in the drawn photos, e.g. 1,4.")] = "1,4",
    photos: Annotated[list[str] | None, typer.Option(help="Photos of your own instead of drawn ones; repeat.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Profile to write.")] = Path("facefleet-profile.toml"),
    measurements: Annotated[int, typer.Option(min=0, help="Most; 0: three tenths of the grid, 8 to 48.")] = 0,
    seconds: Annotated[float, typer.Option(min=0.2, help="Of each measurement.")] = 3.0,
    backend: options.Backend = None,
    devices: options.Devices = None,
    precision: options.Precision = None,
    threads: options.Threads = None,
    det_size: options.DetSize = None,
    sets: options.Set = None,
    config: options.Config = None,
    verbose: options.Verbose = False,
) -> Exit:
    """Find batch bounds, delay, instances, placement, precision and photos in flight; write them as a profile.

    Beside the profile lie the evidence (.evidence.json) and a page with the Pareto front (.html). `extract --profile`,
    FACEFLEET_PROFILE and Engine(profile=...) load it, on this machine alone.
    """
    configure_logging(verbose=verbose)
    bench_output.check_outputs(output)
    loaded = options.effective(
        config=config,
        sets=sets,
        det_size=det_size,
        pack=pack,
        runtime__backend=backend,
        runtime__devices=devices,
        runtime__precision=precision,
        runtime__threads=threads,
    )
    from facefleet.bench.report_tune import tune_table
    from facefleet.bench.tune import tune as tuning
    from facefleet.bench.tune.trial import drawn_photos

    faces = bench_output.numbers("--faces-per-image", faces_per_image, least=0)
    if faces[-1] > _MOST_FACES:
        raise ConfigError(f"--faces-per-image {faces_per_image}: above {_MOST_FACES}", hint="give --photos instead")
    goal = tuning.Goal(p99_s=p99_ms / 1000, rate=_rate(rate), memory_bytes=_bytes(memory), faces=faces)
    bodies = _own(photos) if photos else drawn_photos(faces)
    with bench_output.progress_line() as progress:
        tuned = tuning.tune(
            loaded.settings, goal, bodies, measurements=measurements, seconds=seconds, progress=progress
        )
    evidence = output.with_suffix(".evidence.json")
    bench_output.write(tuned.result, evidence, output.with_suffix(".html"))
    bench_output.print_table(*tune_table(tuned.result), left=1)
    if tuned.found.best is None:
        message, hint = tuned.missed()
        say(f"error: {message}\nhint: {hint}\nno profile was written; the measurements are in {evidence}")
        return Exit.SOME_FAILED
    tuned.write(output, loaded.settings.pack, evidence)
    best = tuned.found.best
    for each in tuned.arrivals:
        if each.choice == best.choice and not each.holds:
            seen = each.seen.error or f"its p99 is {1000 * each.seen.p99_s:.1f} ms"
            say(
                f"warning: when photos come at random moments, {each.rate:.1f} a second, {seen}: for a server allow "
                "more time, or give --rate"
            )
    print(
        f"{output}: {best.choice.key}: {best.images_per_s:,.1f} images/s, p99 {1000 * best.p99_s:.1f} ms, after "
        f"{tuned.found.measurements} measurements of {tuned.result['grid']} configurations"
    )
    return Exit.DONE


def _rate(text: str) -> float:
    if not text:
        return 0.0
    try:
        value = float(text.strip().removesuffix("/s"))
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ConfigError(f"--rate {text!r}", hint="write photos a second: 300/s")
    return value


def _bytes(text: str) -> int:
    if not text:
        return 0
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]?i?)b?", text.strip().lower())
    if match is None or match[2] not in _UNITS or not float(match[1]):
        raise ConfigError(f"--memory {text!r}", hint="write a number with a unit: 8GiB, 500MB")
    return int(float(match[1]) * _UNITS[match[2]])


def _own(names: list[str]) -> tuple[bytes, ...]:
    from facefleet.bench.quick import held_photos
    from facefleet.sources import Inputs
    from facefleet.types import EncodedImage

    found, _ = held_photos(Inputs(names))
    bodies = tuple(photo.data for photo in found if isinstance(photo, EncodedImage))
    if not bodies:
        raise ConfigError("none of the photos can be read", hint="name photos, or folders that hold some")
    mixed = random.Random(0)  # noqa: S311  # a short measurement sees some of every folder, always the same
    return tuple(mixed.sample(bodies, len(bodies)))
