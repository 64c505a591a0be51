"""``facefleet build``: engines of a pack, each held against ONNX Runtime before it is published."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from facefleet.cli.exits import Exit, command, one_of, say

if TYPE_CHECKING:
    from facefleet.models.build.search import SearchResult
    from facefleet.packs import LocatedManifest, Store

_BACKENDS = "openvino, onnxruntime, torch or tensorrt."


@command
def build(
    pack: Annotated[str, typer.Argument(help="Name of a pack, a manifest.toml, or a MODEL.onnx.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of engines.")] = Path("engines"),
    backend: Annotated[str, typer.Option("--backend", help=_BACKENDS)] = "openvino",
    batch_min: Annotated[int, typer.Option("--min", help="Least batch.")] = 1,
    batch_opt: Annotated[int, typer.Option("--opt", help="Batch that is tuned for.")] = 8,
    batch_max: Annotated[int, typer.Option("--max", help="Largest batch.")] = 16,
    size: Annotated[
        str, typer.Option("--size", help="Detector sides: 640, 320..1280, 320..640..1280, or HxW of these.")
    ] = "640",
    profile: Annotated[
        list[str] | None,
        typer.Option("--profile", help="Instead of --min, --opt, --max: MIN:OPT:MAX[@SIZE]; repeat for several."),
    ] = None,
    precision: Annotated[str, typer.Option("--precision", help="fp32, bf16, fp16, int8 or auto.")] = "fp32",
    recipe: Annotated[
        list[Path] | None, typer.Option("--recipe", help="TOML file with the precision of each layer; one a network.")
    ] = None,
    cosine_mean: Annotated[float, typer.Option("--guard-mean", help="With auto: least mean cosine to fp32.")] = 0.999,
    cosine_min: Annotated[float, typer.Option("--guard-min", help="With auto: least cosine to fp32.")] = 0.99,
    calibration: Annotated[
        str, typer.Option("--calibration", help="Ranges of int8: percentile or entropy.")
    ] = "percentile",
    pairs: Annotated[
        Path | None,
        typer.Option("--pairs", help="With auto: a line a pair, two photos and 1 or 0 between tabs; guards accuracy."),
    ] = None,
    accuracy_loss: Annotated[
        float, typer.Option("--guard-accuracy", help="With pairs: most loss of accuracy in points.")
    ] = 0.1,
    iou_min: Annotated[
        float, typer.Option("--guard-iou", help="With auto: least overlap of a box with fp32's.")
    ] = 0.97,
    landmark_max: Annotated[
        float, typer.Option("--guard-landmarks", help="With auto: most that a landmark moves, of the face's side.")
    ] = 0.03,
    mode: Annotated[str, typer.Option("--mode", help="throughput or latency.")] = "throughput",
    pictures: Annotated[
        Path | None, typer.Option("--pictures", help="Folder of photos with faces to gate with; else drawn faces.")
    ] = None,
    memory_pool: Annotated[
        list[str] | None, typer.Option("--memory-pool", help="TensorRT: NAME=SIZE, e.g. workspace=1GiB; repeat.")
    ] = None,
    hardware_compat: Annotated[
        bool, typer.Option("--hardware-compat", help="TensorRT: a plan for every GPU of Ampere and later.")
    ] = False,
    color: Annotated[str, typer.Option("--color", help="Of a MODEL.onnx: rgb or bgr; default: usual for it.")] = "",
    mean: Annotated[str, typer.Option("--mean", help="Likewise: 127.5, or three with commas, in that order.")] = "",
    std: Annotated[str, typer.Option("--std", help="Likewise: the divisor after the mean.")] = "",
    device: Annotated[str, typer.Option("--device", help="cpu, cuda or cuda:N.")] = "cpu",
    threads: Annotated[int, typer.Option("--threads", help="Processor threads; 0: all allowed.")] = 0,
) -> Exit:
    """Build engines with a min/opt/max profile; nothing is published that answers differently."""
    from facefleet.config import available_threads, load_settings
    from facefleet.models.build.build import Wanted, build_pack
    from facefleet.models.build.engines import EngineStore
    from facefleet.models.build.judge import Guard
    from facefleet.models.build.profile import Profile, Span, parse_profile, parse_sizes
    from facefleet.models.build.recipe import read_recipe
    from facefleet.packs import Store

    home = load_settings().settings.home
    store = Store(Path(home) if home else None)
    sizes = parse_sizes(size, what="--size")
    profiles = tuple(parse_profile(text, sizes) for text in profile or ())
    wanted = Wanted(
        backend=backend,
        profiles=profiles or (Profile(Span(batch_min, batch_opt, batch_max), *sizes),),
        precision=one_of("--precision", precision, ("fp32", "bf16", "fp16", "int8", "auto")),  # type: ignore[arg-type]
        mode=one_of("--mode", mode, ("throughput", "latency")),  # type: ignore[arg-type]
        threads=threads or available_threads(),
        pictures=pictures,
        guard=Guard(cosine_mean, cosine_min, accuracy_loss, iou_min=iou_min, landmark_max=landmark_max),
        calibration=one_of("--calibration", calibration, ("percentile", "entropy")),  # type: ignore[arg-type]
        pairs=pairs,
        hardware_compatible=hardware_compat,
        recipes={each.role: each for each in map(read_recipe, recipe or ())},
        pools=dict(_pool(text) for text in memory_pool or ()),
        device=device,
    )
    located, roles = _located(pack, store, color, mean, std)
    for built in build_pack(store, located, wanted, EngineStore(output), roles=roles, progress=say):
        for result in built.searches:
            _write_search(result, output / f"{built.engine.folder.name}.{result.low}.recipe.toml")
        for estimate in built.memory:
            say(estimate.summary())
        say(
            built.report.summary()
            if built.report
            else "built already: the model, runtime, device and options are the same"
        )
        print(built.engine.folder)
    return Exit.DONE


def _located(name: str, store: Store, color: str, mean: str, std: str) -> tuple[LocatedManifest, tuple[str, ...]]:
    """A pack with both roles, or one ONNX file with the role that it has; says what its input is taken to be."""
    from facefleet.errors import ConfigError
    from facefleet.models.build.single import Input, manifest_of, recognize_model

    path = Path(name)
    if path.suffix != ".onnx":
        if color or mean or std:
            raise ConfigError("--color, --mean and --std are for a MODEL.onnx", hint="a pack's manifest has its own")
        return store.manifest(name), ("detector", "embedder")
    model = recognize_model(path)
    reads = Input(
        one_of("--color", color or model.input.color, ("rgb", "bgr")),  # type: ignore[arg-type]
        _triple("--mean", mean) if mean else model.input.mean,
        _triple("--std", std) if std else model.input.std,
    )
    say(f"{path.name}: {model.family}, {reads.color}, mean {reads.mean}, std {reads.std}")
    located, role = manifest_of(replace(model, input=reads), store)
    return located, (role,)


def _triple(option: str, text: str) -> tuple[float, float, float]:
    """``127.5`` or ``104,117,123``."""
    from facefleet.errors import ConfigError

    try:
        numbers = [float(part) for part in text.split(",")]
        first, second, third = numbers * 3 if len(numbers) == 1 else numbers
    except ValueError:
        raise ConfigError(f"{option} {text!r}", hint="one number, or three with commas") from None
    return first, second, third


def _pool(text: str) -> tuple[str, int]:
    """``workspace=1GiB`` as a name and bytes."""
    from facefleet.errors import ConfigError

    name, _, size = text.partition("=")
    units = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "B": 1, "": 1}
    number = size.rstrip("KMGiB")
    try:
        return name, int(float(number) * units[size[len(number) :]])
    except (ValueError, KeyError):
        raise ConfigError(f"--memory-pool {text!r}", hint="write NAME=SIZE, e.g. workspace=1GiB") from None


def _write_search(result: SearchResult, recipe: Path) -> None:
    """The recipe, the table of the most sensitive layers, and the plot where matplotlib is installed."""
    from facefleet.models.build.plot import plot_search
    from facefleet.models.build.recipe import recipe_text
    from facefleet.models.build.search import shown, table

    recipe.write_text(recipe_text(result))
    kept = f"{len(result.chosen.high)} of {len(result.layers)} layers stay in fp32"
    say(f"{result.role}, {result.low}: {kept}, {result.speedup:.2f} times as fast; {shown(result.chosen.figures)}")
    say("layer                            sensitivity      ms  precision")
    for layer, sensitivity, milliseconds, precision in table(result):
        say(f"{layer[:32]:32} {sensitivity:11.2e} {milliseconds:7.3f}  {precision}")
    print(recipe)
    picture = plot_search(result, recipe.with_suffix("").with_suffix(".png"))
    print(picture) if picture else say('no plot: pip install "facefleet[bench]" for matplotlib')
