"""``facefleet build``: engines of a pack, each held against ONNX Runtime before it is published."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from facefleet.cli.exits import Exit, command, say

_BACKENDS = "openvino or onnxruntime."


@command
def build(
    pack: Annotated[str, typer.Argument(help="Name of a pack, or a manifest.toml.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of engines.")] = Path("engines"),
    backend: Annotated[str, typer.Option("--backend", help=_BACKENDS)] = "openvino",
    batch_min: Annotated[int, typer.Option("--min", help="Least batch.")] = 1,
    batch_opt: Annotated[int, typer.Option("--opt", help="Batch that is tuned for.")] = 8,
    batch_max: Annotated[int, typer.Option("--max", help="Largest batch.")] = 16,
    size: Annotated[str, typer.Option("--size", help="Detector sides: 640, 320..1280 or 320..640..1280.")] = "640",
    precision: Annotated[str, typer.Option("--precision", help="fp32, bf16, fp16 or int8.")] = "fp32",
    mode: Annotated[str, typer.Option("--mode", help="throughput or latency.")] = "throughput",
    pictures: Annotated[
        Path | None, typer.Option("--pictures", help="Folder of photos with faces to gate with; else drawn faces.")
    ] = None,
    threads: Annotated[int, typer.Option("--threads", help="Processor threads; 0: all allowed.")] = 0,
) -> Exit:
    """Build engines with a min/opt/max profile; nothing is published that answers differently."""
    from facefleet.config import available_threads, load_settings
    from facefleet.models.build.build import Wanted, build_pack
    from facefleet.models.build.engines import EngineStore
    from facefleet.models.build.profile import Span, parse_span
    from facefleet.packs import Store

    home = load_settings().settings.home
    store = Store(Path(home) if home else None)
    wanted = Wanted(
        backend=backend,
        batch=Span(batch_min, batch_opt, batch_max),
        size=parse_span(size, what="--size"),
        precision=_one_of("--precision", precision, ("fp32", "bf16", "fp16", "int8")),  # type: ignore[arg-type]
        mode=_one_of("--mode", mode, ("throughput", "latency")),  # type: ignore[arg-type]
        threads=threads or available_threads(),
        pictures=pictures,
    )
    for built in build_pack(store, store.manifest(pack), wanted, EngineStore(output)):
        say(built.memory.summary())
        say(
            built.report.summary()
            if built.report
            else "built already: the model, runtime, device and options are the same"
        )
        print(built.engine.folder)
    return Exit.DONE


def _one_of(option: str, value: str, choices: tuple[str, ...]) -> str:
    from facefleet.errors import ConfigError

    if value not in choices:
        raise ConfigError(f"{option} {value!r}", hint=f"choose one of {', '.join(choices)}")
    return value
