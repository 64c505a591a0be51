"""When requests are due: evenly, at random, in bursts, or as they once were.

Pure; times are seconds from the beginning, rising.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path

from facefleet.errors import ConfigError

_SEED = 20261201


def even(rate: float, seconds: float) -> list[float]:
    """Every ``1 / rate`` seconds."""
    return [index / rate for index in range(max(1, round(rate * seconds)))]


def poisson(rate: float, seconds: float, seed: int = _SEED) -> list[float]:
    """Independent of each other, as many small callers are: gaps are exponentially distributed.

    As many come as the rate says, which a Poisson process does only on average: given their number, its times are
    independent and uniform.
    """
    draw = random.Random(seed)  # noqa: S311  # a load, no secret
    return sorted(draw.uniform(0.0, seconds) for _ in range(max(1, round(rate * seconds))))


def bursty(
    rate: float, seconds: float, seed: int = _SEED, *, factor: float = 5.0, period_s: float = 1.0
) -> list[float]:
    """The same mean rate, but all within bursts: ``factor`` times the rate for a ``factor``-th of every period."""
    return [at - at % period_s * (1 - 1 / factor) for at in poisson(rate, seconds, seed)]


ARRIVALS: dict[str, Callable[[float, float], list[float]]] = {"even": even, "poisson": poisson, "bursty": bursty}


def from_trace(path: Path, *, speed: float = 1.0) -> list[float]:
    """Times of a file: a number a line, or JSON objects with ``t`` or ``time``; seconds, any origin, any order.

    Args:
        path: The file.
        speed: How many times as fast it is played.

    Raises:
        ConfigError: It cannot be read, or a line is no time.
    """
    try:
        lines = [line.strip() for line in path.read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"trace {path} cannot be read: {error}") from error
    times = []
    for number, line in enumerate(lines, 1):
        if not line or line.startswith("#"):
            continue
        try:
            value = json.loads(line.partition(",")[0] if not line.startswith("{") else line)
            at = float((value["t"] if "t" in value else value["time"]) if isinstance(value, dict) else value)
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(
                f"trace {path}, line {number}: {line[:60]!r} is no time", hint="write seconds, one a line"
            ) from error
        if not math.isfinite(at):
            raise ConfigError(
                f"trace {path}, line {number}: {line[:60]!r} is no time", hint="write seconds, one a line"
            )
        times.append(at)
    if not times:
        raise ConfigError(f"trace {path} has no times", hint="write seconds, one a line")
    first = min(times)
    return sorted((at - first) / speed for at in times)
