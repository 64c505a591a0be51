"""Options that several commands share, and how they become settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from facefleet.config import Loaded, load_settings
from facefleet.errors import ConfigError
from facefleet.telemetry.logs import FORMATS, Format

_MODELS, _DETECT = "Models and runtime", "Detection"

Pack = Annotated[
    str | None, typer.Option("--pack", help="Model pack: a name, or a manifest.toml.", rich_help_panel=_MODELS)
]
Backend = Annotated[
    str | None, typer.Option("--backend", help="auto, openvino, onnxruntime or torch.", rich_help_panel=_MODELS)
]
Devices = Annotated[
    str | None,
    typer.Option("--devices", "--device", help="auto, cpu, cpu:0,1, cuda or cuda:0,1.", rich_help_panel=_MODELS),
]
Precision = Annotated[
    str | None, typer.Option("--precision", help="auto, fp32, bf16, fp16 or int8.", rich_help_panel=_MODELS)
]
Threads = Annotated[
    int | None, typer.Option("--threads", help="Processor threads; 0: all allowed.", rich_help_panel=_MODELS)
]
DetSize = Annotated[
    list[str] | None,
    typer.Option("--det-size", help="Detector size in pixels, or native; repeat for several.", rich_help_panel=_DETECT),
]
Score = Annotated[float | None, typer.Option("--score", help="Least detector score.", rich_help_panel=_DETECT)]
Set = Annotated[list[str] | None, typer.Option("--set", help="Any setting, KEY=VALUE; see `facefleet config show`.")]
Config = Annotated[Path | None, typer.Option("--config", help="TOML file to read instead of facefleet.toml.")]
Profile = Annotated[
    Path | None,
    typer.Option("--profile", help="What `facefleet tune` found for this machine.", rich_help_panel=_MODELS),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log what is chosen and done, on stderr.")]

LogFormat = Annotated[str, typer.Option("--log-format", help="human or json.")]


def log_format(name: str) -> Format:
    """A format that there is.

    Raises:
        ConfigError: There is none of that name.
    """
    for known in FORMATS:
        if known == name:
            return known
    raise ConfigError(f"--log-format {name!r}", hint=f"choose one of {', '.join(FORMATS)}")


def effective(
    *,
    config: Path | None,
    sets: Sequence[str] | None,
    det_size: Sequence[str] | None = None,
    profile: Path | None = None,
    **options: object,
) -> Loaded:
    """Settings with the command line on top.

    Args:
        config: TOML file.
        sets: ``KEY=VALUE`` texts.
        det_size: Detector sizes.
        profile: Of this machine, below everything but the defaults.
        options: Dotted keys, dots written as two underscores; None where not given.

    Raises:
        ConfigError: Something is unknown or malformed.
    """
    values: dict[str, object] = {}
    for text in sets or ():
        key, sign, value = text.partition("=")
        if not sign:
            raise ConfigError(f"--set {text!r}", hint="write --set KEY=VALUE, e.g. --set detect.score=0.6")
        values[key.strip()] = value.strip()
    values |= {key.replace("__", "."): value for key, value in options.items() if value is not None}
    if det_size:
        values["detect.sizes"] = ",".join(det_size)
    return load_settings(cli=values, toml=config, profile=profile)
