"""``facefleet bench model``: a grid of settings for single networks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from facefleet.cli import bench_output, options
from facefleet.cli.exits import Exit, command, one_of
from facefleet.errors import ConfigError
from facefleet.telemetry import configure_logging

if TYPE_CHECKING:
    from facefleet.backends.timing import Part
    from facefleet.bench.model import CellResult, Grid
    from facefleet.bench.networks import Network
    from facefleet.packs import Store

_GRID, _EFFORT, _DEVICE = "Grid", "Effort", "Device"
_BACKENDS = ("openvino", "onnxruntime", "torch", "tensorrt")


@command
def model(
    networks: Annotated[list[str], typer.Argument(help="PACK, PACK:detector, PACK:embedder or MODEL.onnx.")],
    backend: Annotated[
        list[str] | None, typer.Option(help="openvino, onnxruntime, torch or tensorrt; repeat.", rich_help_panel=_GRID)
    ] = None,
    batch: Annotated[str, typer.Option(help="1,2,8 or 1..32 for powers of two.", rich_help_panel=_GRID)] = "1..32",
    streams: Annotated[str, typer.Option(help="Runs at a time, as --batch.", rich_help_panel=_GRID)] = "1",
    size: Annotated[
        list[str] | None,
        typer.Option(help="Side, or 480x640 (height first), in pixels; repeat.", rich_help_panel=_GRID),
    ] = None,
    precision: Annotated[
        list[str] | None, typer.Option(help="fp32, bf16 or fp16; repeat.", rich_help_panel=_GRID)
    ] = None,
    cuda_graphs: Annotated[str, typer.Option(help="on, off or both.", rich_help_panel=_DEVICE)] = "on",
    transfers: Annotated[
        str, typer.Option(help="on, off or both: copies to the device and back.", rich_help_panel=_DEVICE)
    ] = "on",
    spin_wait: Annotated[
        str, typer.Option(help="on, off or both: ask the device again and again, or sleep.", rich_help_panel=_DEVICE)
    ] = "on",
    device: Annotated[str, typer.Option(help="cpu, or cuda[:N].", rich_help_panel=_DEVICE)] = "cpu",
    threads: Annotated[int, typer.Option(min=0, help="Processors; 0: all allowed.", rich_help_panel=_DEVICE)] = 0,
    as_engine: Annotated[
        bool, typer.Option("--as-engine", help="Run batches as an engine would, not as one.", rich_help_panel=_DEVICE)
    ] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Times that all are measured.", rich_help_panel=_EFFORT)] = 3,
    seconds: Annotated[float, typer.Option(min=0.01, help="Of one measurement.", rich_help_panel=_EFFORT)] = 1.0,
    iterations: Annotated[
        int, typer.Option(min=0, help="Runs a stream instead of seconds.", rich_help_panel=_EFFORT)
    ] = 0,
    warmup: Annotated[float, typer.Option(min=0, help="Seconds before the first.", rich_help_panel=_EFFORT)] = 0.3,
    layers: Annotated[bool, typer.Option("--layers", help="Time of every layer, for one picture.")] = False,
    timeline: Annotated[
        Path | None, typer.Option(help="Write the last round for Perfetto or chrome://tracing.")
    ] = None,
    roofline: Annotated[bool, typer.Option(help="Measure what the machine gives at most.")] = True,
    json_file: bench_output.Json = None,
    html_file: bench_output.Html = None,
    quiet: bench_output.Quiet = False,
    home: Annotated[Path | None, typer.Option(help="Folder of models; default: that of the settings.")] = None,
    verbose: options.Verbose = False,
) -> Exit:
    """Latency and throughput of networks over batch x streams x size, and where their time goes.

    Settings are measured in turn, round after round; those closer than their spread are ties.
    """
    configure_logging(verbose=verbose)
    bench_output.check_outputs(json_file, html_file, timeline)
    from facefleet.bench.model import Effort, Grid, measure
    from facefleet.bench.networks import find_networks
    from facefleet.bench.results import load_average
    from facefleet.config import available_threads, load_settings
    from facefleet.packs import Store

    where = home or Path(load_settings().settings.home or "")
    store = Store(where if str(where) != "." else None)
    found = find_networks(networks, store)
    backends = tuple(one_of("--backend", name, _BACKENDS) for name in backend or ["openvino"])
    grid = Grid(
        backends=backends,
        precisions=tuple(one_of("--precision", name, ("fp32", "bf16", "fp16")) for name in precision or ["fp32"]),  # type: ignore[misc]
        sizes=tuple(_size(text) for text in size or ()),
        batches=bench_output.numbers("--batch", batch),
        streams=bench_output.numbers("--streams", streams),
        graphs=bench_output.switch("--cuda-graphs", cuda_graphs),
        transfers=bench_output.switch("--transfers", transfers),
        spins=bench_output.switch("--spin-wait", spin_wait),
        device=device,
        threads=threads or available_threads(),
        whole=not as_engine,
    )
    if grid.batches[-1] > 256:
        raise ConfigError(f"--batch {batch}: above 256", hint="larger batches are split by every backend")
    effort = Effort(rounds=rounds, seconds=seconds, iterations=iterations, warmup_s=warmup)
    load = load_average()
    with bench_output.progress_line() as progress:
        results = measure(found, grid, effort, store, progress=progress)
        result = _result(results, found, grid, effort, store, load, layers=layers, roofline=roofline)
    if timeline is not None:
        _write_timeline(results, timeline)
    if not quiet and str(json_file) != "-":
        _show(result)
    bench_output.write(result, json_file, html_file)
    return Exit.DONE


def _size(text: str) -> tuple[int, int]:
    height, _, width = text.lower().partition("x")
    try:
        found = int(height), int(width or height)
    except ValueError:
        found = (0, 0)
    if min(found) < 1:
        raise ConfigError(f"--size {text!r}", hint="write a side in pixels, 640, or height and width, 480x640")
    return found


def _result(
    results: list[CellResult],
    networks: list[Network],
    grid: Grid,
    effort: Any,  # noqa: ANN401  # an Effort
    store: Store,
    load: float | None,
    *,
    layers: bool,
    roofline: bool,
) -> dict[str, Any]:
    from dataclasses import asdict

    from facefleet.bench.advice import stream_advice
    from facefleet.bench.layers import layer_times
    from facefleet.bench.results import envelope
    from facefleet.bench.roofline import network_work, roofs

    works = {
        (network.name, size): network_work(network.prepared(store, "openvino", "fp32").path, *size)
        for network in networks
        for size in grid.sizes or (network.size,)
    }
    held = {}
    points = []
    for result in results:
        cell = result.cell
        work = works[cell.network, (cell.height, cell.width)]
        if work is None:
            continue
        size = 4 if cell.precision == "fp32" else 2
        held[cell.key] = int(cell.batch * work.activation_bytes * size / 4)
        points.append(
            {
                "key": cell.key,
                "network": cell.network,
                "backend": cell.backend,
                "precision": cell.precision,
                "intensity": round(work.intensity(cell.batch, size), 3),
                "gflops": round(work.gflop * result.images_per_s.median, 2),
            }
        )
    body: dict[str, Any] = {
        "cells": [result.as_json() for result in results],
        "advice": [advice.as_json() for advice in stream_advice(results, grid.device, held)],
    }
    if roofline:
        body["roofline"] = {"roofs": roofs(grid.device).as_json(), "points": points}
    if layers:
        body["layers"] = layer_times(networks, grid, store)
    settings = {"grid": asdict(grid), "effort": asdict(effort), "networks": [network.name for network in networks]}
    return envelope("model", settings, body, load)


def _write_timeline(results: list[CellResult], path: Path) -> None:
    from facefleet.bench.results import write_text
    from facefleet.bench.timeline import Trace, summary_lines

    trace = Trace()
    for result in results:
        runs: list[tuple[int, list[Part]]] = result.shots[-1].parts
        for number, (stream, parts) in enumerate(runs, 1):
            trace.run(result.cell.key, stream, number, parts)
    write_text(trace.as_json(), path)
    for line in summary_lines(trace.summary()):
        bench_output.note(line)


def _show(result: dict[str, Any]) -> None:
    from facefleet.bench.report import advice_table, facts, layers_table, model_table

    for line in facts(result)[:1]:
        bench_output.note(line)
    bench_output.print_table(*model_table(result))
    bench_output.print_table(*advice_table(result), heading="\nstreams: min(2 x SMs or processors, what fits memory)")
    bench_output.print_table(*layers_table(result), heading="\nslowest layers, one picture")
