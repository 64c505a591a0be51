"""Which layers a lower precision may take: measured one by one, decided together, under an accuracy guard.

Owns the search and its table. Knows a function from a set of layers to answers and milliseconds, and a judge of
answers; how layers are lowered and run is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from facefleet.models.build.judge import Judge

Answer = Any
"""What a network says of all pictures; only the judge looks into it."""
Run = Callable[[frozenset[str], bool], tuple[Answer, float]]
"""From the layers kept in high precision to the answer, and milliseconds a picture if they are asked for."""


@dataclass(frozen=True, slots=True)
class Point:
    """One choice of layers, measured.

    Attributes:
        high: Layers in high precision.
        milliseconds: Time a picture.
        loss: How far the answer is from that of fp32; 0 is the same.
        figures: What the guard looks at, by name.
        holds: Whether the guard holds.
    """

    high: frozenset[str]
    milliseconds: float
    loss: float
    figures: Mapping[str, float]
    holds: bool


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What the search found.

    Attributes:
        role: ``detector`` or ``embedder``.
        low: The lower precision.
        layers: All layers that could take it.
        sensitivity: Layer -> loss where it alone is in low precision.
        milliseconds: Layer -> measured time in high precision, or its work in GFLOP where the backend measures none.
        points: Every choice that was measured, in order; the first is all high, the second all low.
        chosen: The fewest high layers that hold the guard.
    """

    role: str
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


def search(
    run: Run,
    layers: Sequence[str],
    times: Mapping[str, float],
    *,
    low: str,
    judge: Judge,
    role: str = "embedder",
    progress: Callable[[str], None] = lambda _: None,
) -> SearchResult:
    """Find the fewest layers that have to stay in high precision.

    Each layer is tried alone in low precision; layers are then raised, the worst loss for the time they save first,
    until the guard holds (the least number is found by halving); at last every raised layer is tried low again.

    Args:
        run: Runs the network.
        layers: Layers that can be lowered.
        times: What each layer costs in high precision.
        low: Name of the lower precision.
        judge: Compares answers with those of all layers high, and knows what must hold.
        role: What the network does.
        progress: Told what is being measured.
    """
    everything = frozenset(layers)
    searcher = _Search(run, everything, judge, progress)
    searcher.measure(everything)
    lowest = searcher.measure(frozenset())
    sensitivity = {}
    for number, name in enumerate(layers):
        progress(f"layer {number + 1} of {len(layers)}: {name}")
        sensitivity[name] = searcher.loss(everything - {name})
    ranked = sorted(layers, key=lambda name: -sensitivity[name] / max(times.get(name, 0.0), 1e-9))
    chosen = lowest if lowest.holds else searcher.prune(searcher.fewest(ranked), times)
    return SearchResult(role, low, tuple(layers), sensitivity, dict(times), tuple(searcher.points), chosen)


class _Search:
    def __init__(self, run: Run, layers: frozenset[str], judge: Judge, progress: Callable[[str], None]) -> None:
        self._run, self._layers, self._judge, self._progress = run, layers, judge, progress
        self._reference: Answer = None
        self.points: list[Point] = []

    def loss(self, high: frozenset[str]) -> float:
        """How far the answer of a choice is from the reference."""
        return self._judge.compare(self._reference, self._run(high, False)[0]).loss

    def measure(self, high: frozenset[str]) -> Point:
        """Run a choice and keep the point."""
        answer, milliseconds = self._run(high, True)
        if self._reference is None:
            self._reference = answer
        verdict = self._judge.compare(self._reference, answer)
        point = Point(high, milliseconds, verdict.loss, verdict.figures, verdict.holds)
        self.points.append(point)
        self._progress(
            f"{len(high)} of {len(self._layers)} layers high: {milliseconds:.2f} ms, {shown(point.figures)}: "
            f"{'holds' if point.holds else 'does not hold'}"
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


def shown(figures: Mapping[str, float]) -> str:
    """Figures for people."""
    return ", ".join(f"{name.replace('_', ' ')} {value:.5g}" for name, value in figures.items())


def table(result: SearchResult, worst: int = 12) -> list[tuple[str, float, float, str]]:
    """(layer, sensitivity, milliseconds, precision) of the most sensitive layers."""
    ranked = sorted(result.layers, key=lambda name: -result.sensitivity[name])[:worst]
    high = result.chosen.high
    return [
        (name, result.sensitivity[name], result.milliseconds.get(name, 0.0), "fp32" if name in high else result.low)
        for name in ranked
    ]
