"""``facefleet bench serve``: a server under load, over the wire."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from facefleet.cli import bench_output, options
from facefleet.cli.exits import Exit, command, one_of
from facefleet.errors import ConfigError
from facefleet.telemetry import configure_logging

if TYPE_CHECKING:
    from collections.abc import Callable

    from facefleet.bench.load.serve import Client

_LOAD, _CLIENT = "Load", "Client"


@command
def serve(
    url: Annotated[str, typer.Argument(help="Of the server, or `null` to measure the generator itself.")],
    photos: Annotated[list[str] | None, typer.Argument(help="Files, folders or globs to send.")] = None,
    users: Annotated[
        str, typer.Option(help="Closed loop: callers at a time, as 1,4,16 or 1..16.", rich_help_panel=_LOAD)
    ] = "",
    rate: Annotated[
        str, typer.Option(help="Open loop: requests a second, as 10,100 or 10..160.", rich_help_panel=_LOAD)
    ] = "",
    arrivals: Annotated[
        str, typer.Option(help="Of an open loop: poisson, bursty or even.", rich_help_panel=_LOAD)
    ] = "poisson",
    trace: Annotated[
        Path | None, typer.Option(help="Open loop: seconds at which requests come, one a line.", rich_help_panel=_LOAD)
    ] = None,
    speed: Annotated[float, typer.Option(min=0.001, help="Of the trace.", rich_help_panel=_LOAD)] = 1.0,
    saturate: Annotated[
        float, typer.Option(min=0, help="Find the highest rate within this p99, in ms.", rich_help_panel=_LOAD)
    ] = 0.0,
    seconds: Annotated[float, typer.Option(min=0.1, help="Of each load and round.")] = 5.0,
    rounds: Annotated[int, typer.Option(min=1, help="Of each load.")] = 3,
    header: Annotated[
        list[str] | None, typer.Option(help="Header of every request, NAME: VALUE; repeat.", rich_help_panel=_CLIENT)
    ] = None,
    connections: Annotated[int, typer.Option(min=1, help="Most at a time.", rich_help_panel=_CLIENT)] = 256,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for an answer.", rich_help_panel=_CLIENT)] = 30.0,
    json_file: bench_output.Json = None,
    html_file: bench_output.Html = None,
    quiet: bench_output.Quiet = False,
    verbose: options.Verbose = False,
) -> Exit:
    """POST photos as they are to a URL: closed loops, open loops, a trace, or the search for saturation.

    In open loops a latency begins when the request was due, so a stall of the server counts for all that it delayed.
    """
    configure_logging(verbose=verbose)
    bench_output.check_outputs(json_file, html_file)
    from facefleet.bench.load.connection import Target
    from facefleet.bench.load.null_server import null_server
    from facefleet.bench.load.schedule import ARRIVALS
    from facefleet.bench.load.serve import Client, saturation
    from facefleet.bench.report_load import serve_table
    from facefleet.bench.results import envelope, load_average

    one_of("--arrivals", arrivals, tuple(ARRIVALS))
    bodies = _bodies(photos or [], null=url == "null")
    load = load_average()
    with ExitStack() as stack, bench_output.progress_line() as progress:
        where = stack.enter_context(null_server()) if url == "null" else url
        client = Client(
            target=Target.of(where),
            bodies=bodies,
            headers=_headers(header or []),
            connections=connections,
            timeout_s=timeout,
        )
        loads = _loads(client, users, rate, arrivals, trace, speed, seconds, rounds, bool(saturate), progress)
        body: dict[str, Any] = {"loads": loads}
        if saturate:
            found, tried = saturation(client, p99_ms=saturate, seconds=seconds, arrivals=arrivals, progress=progress)
            body["saturation"] = found
            loads += sorted(tried, key=lambda each: float(each["offered_per_s"]))
    if not loads:
        raise ConfigError("no load was named", hint="give --users 1..16, --rate 100, --trace FILE or --saturate 150")
    body["faces_per_image"] = _faces(loads)
    settings = {"url": url, "photos": len(bodies), "seconds": seconds, "rounds": rounds, "arrivals": arrivals}
    result = envelope("serve", settings, body, load)
    if not quiet and str(json_file) != "-":
        bench_output.print_table(*serve_table(result), left=1)
        if saturate:
            print(f"saturation: {body['saturation']['rate_per_s']:,.1f} requests/s within p99 {saturate:g} ms")
    bench_output.write(result, json_file, html_file)
    return Exit.SOME_FAILED if any(each["failed"] for each in loads if not saturate) else Exit.DONE


def _loads(
    client: Client,
    users: str,
    rate: str,
    arrivals: str,
    trace: Path | None,
    speed: float,
    seconds: float,
    rounds: int,
    other: bool,
    progress: Callable[[str], None],
) -> list[dict[str, Any]]:
    """The figures of every load; rounds of all loads in turn."""
    from facefleet.bench.load.schedule import ARRIVALS, from_trace
    from facefleet.bench.load.serve import load_figures

    if not (users or rate or trace) and not other:
        users = "1..16"
    planned: list[tuple[str, float | None, Callable[[], Any]]] = [
        (f"{count} users" if count > 1 else "1 user", None, lambda count=count: client.closed(count, seconds))  # type: ignore[misc]
        for count in (bench_output.numbers("--users", users) if users else ())
    ]
    for each in bench_output.numbers("--rate", rate) if rate else ():
        due = ARRIVALS[arrivals](float(each), seconds)
        planned.append((f"{arrivals} {each}/s", float(each), lambda due=due: client.open(due)))  # type: ignore[misc]
    if trace is not None:
        times = from_trace(trace, speed=speed)
        mean = len(times) / max(times[-1], 1e-9)
        planned.append((f"trace {trace.name}", mean, lambda: client.open(times)))
    found: list[list[Any]] = [[] for _ in planned]
    for number in range(rounds):
        for (key, _, go), mine in zip(planned, found, strict=True):
            progress(f"round {number + 1}/{rounds}: {key}")
            mine.append(go())
    return [load_figures(key, offered, mine) for (key, offered, _), mine in zip(planned, found, strict=True)]


def _bodies(photos: list[str], *, null: bool) -> list[bytes]:
    from facefleet.bench.quick import held_photos
    from facefleet.sources import Inputs
    from facefleet.types import EncodedImage

    if null and not photos:
        return [bytes(1000)]
    if not photos:
        raise ConfigError("no photos to send", hint="name photos, or folders that hold some")
    found, _ = held_photos(Inputs(photos))
    bodies = [photo.data for photo in found if isinstance(photo, EncodedImage)]
    if not bodies:
        raise ConfigError("none of the photos can be read", hint="name photos, or folders that hold some")
    return bodies


def _headers(lines: list[str]) -> dict[str, str]:
    found = {"Content-Type": "application/octet-stream"}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or "\r" in line or "\n" in line or not name.strip():
            raise ConfigError(f"--header {line!r}", hint="write --header 'NAME: VALUE'")
        found[name.strip()] = value.strip()
    return found


def _faces(loads: list[dict[str, Any]]) -> dict[str, int]:
    """Faces an answer -> answers, all loads together."""
    total: dict[int, int] = {}
    for load in loads:
        for count, figures in load["by_faces"].items():
            total[int(count)] = total.get(int(count), 0) + int(figures["count"])
    return {str(count): total[count] for count in sorted(total)}
