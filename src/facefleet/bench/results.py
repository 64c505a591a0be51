"""Results as files: one envelope for every kind of measurement, with the machine and the versions inside.

Owns the format (docs/bench.md describes it) and its checks. Reads and writes JSON.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from facefleet import __version__
from facefleet.config.machine import this_machine
from facefleet.errors import ConfigError

SCHEMA = 1
KINDS = ("model", "pipeline", "serve", "tune")
_PACKAGES = (
    "numpy",
    "onnxruntime",
    "onnxruntime-gpu",
    "openvino",
    "torch",
    "tensorrt",
    "opencv-python-headless",
    "pillow",
    "simplejpeg",
)


def versions() -> dict[str, str]:
    """Versions of Python, facefleet and what it runs on, as far as it is installed."""
    found = {"python": sys.version.split()[0], "facefleet": __version__}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def load_average() -> float | None:
    """Processes that wanted to run, over the last minute; None where the system does not say."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def envelope(kind: str, settings: Mapping[str, Any], body: Mapping[str, Any], load: float | None) -> dict[str, Any]:
    """What every result begins with, and what was measured.

    Args:
        kind: One of `KINDS`.
        settings: What was asked for.
        body: What was found.
        load: `load_average` before the measurement.
    """
    return {
        "schema": SCHEMA,
        "kind": kind,
        "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "machine": this_machine().as_json(),
        "versions": versions(),
        "load_before": load,
        "settings": dict(settings),
        **body,
    }


def write_result(result: Mapping[str, Any], path: Path) -> None:
    """Write a result as JSON, as a whole or not at all.

    Raises:
        ConfigError: The file cannot be written.
    """
    write_text(json.dumps(result, indent=1, sort_keys=False) + "\n", path)


def write_text(text: str, path: Path) -> None:
    """Replace a file by this text, as a whole or not at all.

    Raises:
        ConfigError: It cannot be written.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(text)
        part.replace(path)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}", hint="name a file in a folder that is"
        ) from error


def read_result(path: Path) -> dict[str, Any]:
    """A result that `write_result` wrote.

    Raises:
        ConfigError: It cannot be read, or is none.
    """
    try:
        result = json.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is no result of facefleet bench: not JSON ({error})") from error
    if not isinstance(result, dict) or result.get("kind") not in KINDS or "machine" not in result:
        raise ConfigError(f"{path} is no result of facefleet bench", hint="write one with --json FILE")
    if result.get("schema") != SCHEMA:
        raise ConfigError(
            f"{path} has schema {result.get('schema')!r}, not {SCHEMA}", hint="measure again with this version"
        )
    return result
