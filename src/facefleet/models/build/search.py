"""Which layers a lower precision may take: measured one by one, decided together, under an accuracy guard.

Owns the search, its table, its recipe file. Knows functions from a set of layers to embeddings and seconds; how they
are run is the caller's.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from facefleet.errors import ConfigError
from facefleet.ops.vector import l2_normalize
from facefleet.ops.verification import verification
from facefleet.types import F32Array

Embed = Callable[[frozenset[str], bool], tuple[F32Array, float]]
"""From the layers kept in high precision to embeddings of the pictures and milliseconds a picture, if they are asked
for."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of the pictures, for accuracy.

    Attributes:
        first: (n,) row of the one picture.
        second: (n,) row of the other.
        same: (n,) whether both show one person.
        fold: (n,) fold of each pair.
    """

    first: NDArray[np.intp]
    second: NDArray[np.intp]
    same: NDArray[np.bool_]
    fold: NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Guard:
    """What a lower precision must hold against float32.

    Attributes:
        cosine_mean: Least mean cosine of embeddings.
        cosine_min: Least cosine.
        accuracy_loss: Most loss of verification accuracy, in points of a hundred, where pairs are given.
        tar_loss: Most loss of TAR at FAR 1e-3 in points, where pairs are given.
    """

    cosine_mean: float = 0.999
    cosine_min: float = 0.99
    accuracy_loss: float = 0.1
    tar_loss: float = 1.0


@dataclass(frozen=True, slots=True)
class Point:
    """One choice of layers, measured.

    Attributes:
        high: Layers in high precision.
        milliseconds: Time a picture.
        cosine_mean: Against float32.
        cosine_min: The same.
        accuracy_loss: In points; NaN without pairs.
        tar_loss: In points; NaN without pairs.
        holds: Whether the guard holds.
    """

    high: frozenset[str]
    milliseconds: float
    cosine_mean: float
    cosine_min: float
    accuracy_loss: float
    tar_loss: float
    holds: bool


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What the search found.

    Attributes:
        low: The lower precision.
        layers: All layers that could take it.
        sensitivity: Layer -> loss of mean cosine where it alone is in low precision.
        milliseconds: Layer -> measured time in high precision, or its work in GFLOP where the backend measures none.
        points: Every choice that was measured, in order; the first is all high, the second all low.
        chosen: The fastest that holds the guard.
    """

    low: str
    layers: tuple[str, ...]
    sensitivity: Mapping[str, float]
    milliseconds: Mapping[str, float]
    points: tuple[Point, ...]
    chosen: Point

    @property
    def speedup(self) -> float:
        """Times faster than all high, both measured in this search."""
        return self.points[0].milliseconds / self.chosen.milliseconds

    def recipe(self) -> str:
        """A TOML file, ``layer = precision``, that `read_recipe` reads; meant to be edited by hand."""
        chosen = self.chosen
        head = [
            f"# {len(chosen.high)} of {len(self.layers)} layers stay in fp32; the numbers are their sensitivity.",
            f"# Mean cosine {chosen.cosine_mean:.5f}, least {chosen.cosine_min:.5f}, {self.speedup:.2f} times as fast.",
            "[layers]",
        ]
        lines = [
            f"{json.dumps(name)} = {json.dumps('fp32' if name in self.chosen.high else self.low)}"
            f"  # {self.sensitivity[name]:.2e}"
            for name in self.layers
        ]
        return "\n".join([*head, *lines]) + "\n"


def read_recipe(path: Path, layers: Sequence[str], low: str) -> frozenset[str]:
    """Layers in high precision by a recipe.

    Raises:
        ConfigError: It is not TOML, names no layer of the network, or gives a precision that is neither.
    """
    try:
        content = tomllib.loads(path.read_text())["layers"]
    except (OSError, tomllib.TOMLDecodeError, KeyError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: not a recipe ({error})", hint="it needs a table [layers]: layer = precision"
        ) from error
    for name, precision in content.items():
        if name not in layers:
            raise ConfigError(f"{path}: no layer is called {name!r}", hint=f"layers are {', '.join(layers[:5])} …")
        if precision not in ("fp32", low):
            raise ConfigError(f"{path}: {name} = {precision!r}", hint=f"use fp32 or {low}")
    return frozenset(name for name in layers if content.get(name, low) == "fp32")


def search(
    embed: Embed,
    layers: Sequence[str],
    times: Mapping[str, float],
    *,
    low: str,
    guard: Guard,
    pairs: Pairs | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> SearchResult:
    """Find the fewest layers that have to stay in high precision.

    Each layer is tried alone in low precision; layers are then raised, the worst loss for the time they save first,
    until the guard holds (the least number is found by halving); at last every raised layer is tried low again.

    Args:
        embed: Runs the network.
        layers: Layers that can be lowered.
        times: What each layer costs in high precision.
        low: Name of the lower precision.
        guard: What must hold.
        pairs: For losses of accuracy.
        progress: Told what is being measured.

    Raises:
        ConfigError: Too few pairs for the loss that the guard allows: one pair would decide.
    """
    if pairs is not None and len(pairs.same) * guard.accuracy_loss < 100:
        raise ConfigError(
            f"a loss of {guard.accuracy_loss} points cannot be seen in {len(pairs.same)} pairs",
            hint=f"give at least {int(100 / max(guard.accuracy_loss, 1e-6))} pairs, or a wider guard",
        )
    searcher = _Search(embed, frozenset(layers), guard, pairs, progress)
    everything = frozenset(layers)
    searcher.measure(everything)
    lowest = searcher.measure(frozenset())
    sensitivity = {}
    for number, name in enumerate(layers):
        progress(f"layer {number + 1} of {len(layers)}: {name}")
        sensitivity[name] = 1 - searcher.cosines(everything - {name}).mean()
    ranked = sorted(layers, key=lambda name: -sensitivity[name] / max(times.get(name, 0.0), 1e-9))
    chosen = lowest if lowest.holds else searcher.prune(searcher.fewest(ranked), times)
    return SearchResult(low, tuple(layers), sensitivity, dict(times), tuple(searcher.points), chosen)


class _Search:
    def __init__(
        self,
        embed: Embed,
        layers: frozenset[str],
        guard: Guard,
        pairs: Pairs | None,
        progress: Callable[[str], None],
    ) -> None:
        self._embed, self._layers, self._guard, self._pairs = embed, layers, guard, pairs
        self._progress = progress
        self._reference: F32Array | None = None
        self.points: list[Point] = []

    def cosines(self, high: frozenset[str]) -> F32Array:
        assert self._reference is not None
        vectors, _ = self._embed(high, False)
        return np.asarray(np.einsum("nd,nd->n", l2_normalize(vectors)[0], self._reference))

    def measure(self, high: frozenset[str]) -> Point:
        """Run a choice and keep the point."""
        vectors, milliseconds = self._embed(high, True)
        unit = l2_normalize(vectors)[0]
        if self._reference is None:
            self._reference = unit
        cosine = np.einsum("nd,nd->n", unit, self._reference)
        accuracy, tar = self._losses(unit)
        guard = self._guard
        holds = bool(
            cosine.mean() >= guard.cosine_mean
            and cosine.min() >= guard.cosine_min
            and not accuracy > guard.accuracy_loss
            and not tar > guard.tar_loss
        )
        point = Point(high, milliseconds, float(cosine.mean()), float(cosine.min()), accuracy, tar, holds)
        self.points.append(point)
        self._progress(
            f"{len(high)} of {len(self._layers)} layers high: {milliseconds:.2f} ms, mean cosine "
            f"{point.cosine_mean:.5f}, least {point.cosine_min:.5f}: {'holds' if holds else 'does not hold'}"
        )
        return point

    def fewest(self, ranked: Sequence[str]) -> Point:
        """The shortest prefix of `ranked` that holds, by halving; all of them always hold."""
        low, high = 0, len(ranked)
        best = self.points[0]
        while high - low > 1:
            middle = (low + high) // 2
            point = self.measure(frozenset(ranked[:middle]))
            if point.holds:
                high, best = middle, point
            else:
                low = middle
        return best

    def prune(self, point: Point, times: Mapping[str, float]) -> Point:
        """Lower again what need not be high, the most expensive first."""
        for name in sorted(point.high, key=lambda each: -times.get(each, 0.0)):
            trial = self.measure(point.high - {name})
            if trial.holds:
                point = trial
        return point

    def _losses(self, unit: F32Array) -> tuple[float, float]:
        """Accuracy and TAR lost against the reference, in points."""
        if self._pairs is None:
            return float("nan"), float("nan")
        assert self._reference is not None
        figures = []
        for vectors in (self._reference, unit):
            scores = np.einsum("nd,nd->n", vectors[self._pairs.first], vectors[self._pairs.second])
            figures.append(verification(scores, self._pairs.same, self._pairs.fold))
        return 100 * (figures[0].accuracy - figures[1].accuracy), 100 * (figures[0].tar - figures[1].tar)


def table(result: SearchResult, worst: int = 12) -> list[tuple[str, float, float, str]]:
    """(layer, sensitivity, milliseconds, precision) of the most sensitive layers."""
    ranked = sorted(result.layers, key=lambda name: -result.sensitivity[name])[:worst]
    high = result.chosen.high
    return [
        (name, result.sensitivity[name], result.milliseconds.get(name, 0.0), "fp32" if name in high else result.low)
        for name in ranked
    ]
