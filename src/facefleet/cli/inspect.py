"""``facefleet inspect``: what an ONNX file really is."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from facefleet.cli.exits import Exit, command
from facefleet.cli.terminal import terminal


@command
def inspect(
    model: Annotated[Path, typer.Argument(help="An ONNX file.")],
    batch: Annotated[int, typer.Option("--batch", help="Run batches up to this with ONNX Runtime; 0: do not.")] = 16,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> Exit:
    """Show real dimensions, whether the batch is fixed and where, the layout recognised, and operators."""
    from facefleet.errors import SourceError
    from facefleet.models.build import inspect_model
    from facefleet.models.build.inspect import verified_batch

    if not model.is_file():
        raise SourceError(f"{model}: no such file", hint="give the path of an ONNX file")
    report = inspect_model(model)
    trial = verified_batch(model, batch) if batch and len(report.inputs) == 1 and report.gflop_at != (0, 0) else None
    if as_json:
        tried = (
            {} if trial is None else {"verified_batch": trial.verified, "failed": trial.node, "reason": trial.reason}
        )
        print(json.dumps(dataclasses.asdict(report) | {"path": str(model)} | tried))
        return Exit.DONE
    from rich.table import Table
    from rich.text import Text

    table = Table(title=str(model), show_header=False, title_justify="left", box=None)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    table.add_row("layout", report.layout)
    table.add_row("opset", str(report.opset))
    for name, shape in report.inputs.items():
        table.add_row("input", f"{name} {_shape(shape)}")
    for name, shape in report.outputs.items():
        table.add_row("output", f"{name} {_shape(shape)}")
    table.add_row(
        "parameters",
        f"{report.parameters:,}" + (f", {report.quantized:,} stored as integers" if report.quantized else ""),
    )
    if report.gflop is not None:
        table.add_row("work", f"{report.gflop:.3g} GFLOP a picture of {report.gflop_at[0]} x {report.gflop_at[1]}")
    if report.stale_inputs:
        table.add_row(
            "stale inputs", f"{len(report.stale_inputs)} weights declared as inputs, e.g. {report.stale_inputs[0]}"
        )
    table.add_row("batch", "free" if not report.fixed_batch else Text("not free as published", "yellow"))
    for reason in report.fixed_batch[:12]:
        table.add_row("", reason)
    if len(report.fixed_batch) > 12:
        table.add_row("", f"and {len(report.fixed_batch) - 12} more")
    if trial is not None:
        table.add_row("largest batch run", str(trial.verified) if trial.verified else Text("none", "yellow"))
        if trial.reason:
            table.add_row("", f"above it fails {trial.node}: {trial.reason}" if trial.node else trial.reason)
    table.add_row("operators", ", ".join(f"{name} {count}" for name, count in report.operators.items()))
    terminal().print(table)
    return Exit.DONE


def _shape(shape: list[int | str]) -> str:
    return " x ".join(str(dim) for dim in shape)
