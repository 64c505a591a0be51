"""``facefleet convert``: a checkpoint or a published ONNX file to a graph with a free batch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from facefleet.cli.exits import Exit, command, one_of, say


@command
def convert(
    source: Annotated[Path, typer.Argument(help="A checkpoint (.pth, .pt, .ckpt, .safetensors) or an ONNX file.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="ONNX file to write.")],
    name: Annotated[
        str | None, typer.Option("--name", help="Network of a checkpoint that does not say, e.g. adaface_ir101.")
    ] = None,
    exporter: Annotated[str, typer.Option("--exporter", help="auto, dynamo or script.")] = "auto",
    simplify: Annotated[bool, typer.Option("--simplify/--no-simplify", help="Try onnxslim or onnxsim.")] = True,
    batch_max: Annotated[int, typer.Option("--max", help="Largest batch that must run.")] = 16,
    pictures: Annotated[
        Path | None, typer.Option("--pictures", help="Folder of photos, or of aligned faces, to try it with.")
    ] = None,
) -> Exit:
    """Make a graph with a free batch, compared with its source before it is written."""
    import onnx

    from facefleet.errors import SourceError
    from facefleet.models.build.convert import convert as run
    from facefleet.packs.fetch import publish

    if not source.is_file():
        raise SourceError(f"{source}: no such file", hint="give a checkpoint or an ONNX file")
    one_of("--exporter", exporter, ("auto", "dynamo", "script"))
    made = run(
        source,
        name=name,
        exporter=exporter,  # type: ignore[arg-type]
        simplified=simplify,
        max_batch=batch_max,
        pictures=pictures,
        progress=say,
    )
    output.parent.mkdir(parents=True, exist_ok=True)
    part = output.with_name(f".{output.name}.part")
    onnx.save(made.model, part)
    publish(part, output)
    say(f"{made.kind}, {made.role}")
    for note in made.notes:
        say(f"  {note}")
    for what, error in made.errors.items():
        say(f"  {what}: differs from its source by at most {error:.1e} of its largest value")
    say(f"  runs at every batch tried, up to {made.trial.verified}")
    print(output)
    return Exit.DONE
