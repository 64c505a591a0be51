"""Recipes: which precision each layer of a network has, as a file that is built again and may be edited by hand."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from facefleet.errors import ConfigError
from facefleet.models.build.search import SearchResult, shown

LOW = ("bf16", "fp16", "int8")
ROLES = ("detector", "embedder")


@dataclass(frozen=True, slots=True)
class Recipe:
    """Precisions of a network's layers.

    Attributes:
        role: ``detector`` or ``embedder``.
        low: The precision of every layer that is not named.
        layers: Layer -> ``fp32`` or `low`.
        source: Where it was read, for errors.
    """

    role: str
    low: str
    layers: Mapping[str, str]
    source: str = "recipe"

    def high(self, layers: Sequence[str]) -> frozenset[str]:
        """Which of the network's `layers` stay in fp32.

        Raises:
            ConfigError: The recipe names a layer that the network does not have.
        """
        for name in self.layers:
            if name not in layers:
                raise ConfigError(
                    f"{self.source}: no layer is called {name!r}", hint=f"layers are {', '.join(layers[:5])} …"
                )
        return frozenset(name for name in layers if self.layers.get(name, self.low) == "fp32")


def recipe_text(result: SearchResult) -> str:
    """A TOML file, ``layer = precision``, that `read_recipe` reads; meant to be edited by hand."""
    chosen = result.chosen
    head = [
        f"# {len(chosen.high)} of {len(result.layers)} layers stay in fp32; the numbers are their sensitivity.",
        f"# {shown(chosen.figures)}; {result.speedup:.2f} times as fast.",
        f"role = {json.dumps(result.role)}",
        f"low = {json.dumps(result.low)}",
        "[layers]",
    ]
    lines = [
        f"{json.dumps(name)} = {json.dumps('fp32' if name in chosen.high else result.low)}"
        f"  # {result.sensitivity[name]:.2e}"
        for name in result.layers
    ]
    return "\n".join([*head, *lines]) + "\n"


def read_recipe(path: Path) -> Recipe:
    """Read a recipe.

    Raises:
        ConfigError: It is not TOML, lacks a part, or gives a precision that is neither.
    """
    try:
        content = tomllib.loads(path.read_text())
        role, low, layers = content["role"], content["low"], content["layers"]
    except (OSError, tomllib.TOMLDecodeError, KeyError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: not a recipe ({error})",
            hint='it needs role = "embedder" or "detector", low = "bf16", and a table [layers]: layer = precision',
        ) from error
    for name, value, allowed in (("role", role, ROLES), ("low", low, LOW)):
        if value not in allowed:
            raise ConfigError(f"{path}: {name} = {value!r}", hint=f"use {' or '.join(allowed)}")
    for name, precision in dict(layers).items():
        if precision not in ("fp32", low):
            raise ConfigError(f"{path}: {name} = {precision!r}", hint=f"use fp32 or {low}")
    return Recipe(role, low, layers, str(path))
