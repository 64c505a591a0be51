"""Charts as SVG that takes its colors from the page: lines, points, bars, steps; linear or logarithmic axes.

Pure text. A chart names its series by number (``s0`` to ``s7``); the page's style sheet says what these look like in
light and in dark.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from html import escape
from itertools import pairwise
from typing import Literal

Kind = Literal["line", "points", "step", "bars", "roof"]
SERIES = 8
"""Series that look different from each other."""
_WIDTH, _HEIGHT = 640, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 16, 14, 46
_LEGEND_ROW = 20


@dataclass(frozen=True, slots=True)
class Series:
    """One thing that is drawn.

    Attributes:
        name: In the legend; empty: none there.
        points: (x, y).
        kind: How.
        labels: Beside the points, or nothing.
        color: Number of its color; None: its position.
    """

    name: str
    points: Sequence[tuple[float, float]]
    kind: Kind = "line"
    labels: Sequence[str] = ()
    color: int | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """Axes and series.

    Attributes:
        title: Above it.
        x: Name of the horizontal axis, with its unit.
        y: Of the vertical one.
        series: What is drawn.
        log_x: Whether x is logarithmic.
        log_y: Whether y is.
        note: A sentence below it.
        y_top: Upper end of a linear y axis; None: as the points need.
    """

    title: str
    x: str
    y: str
    series: Sequence[Series] = field(default_factory=list)
    log_x: bool = False
    log_y: bool = False
    note: str = ""
    y_top: float | None = None


class _Axis:
    """Values to places, and where the ticks are."""

    def __init__(self, values: Sequence[float], *, log: bool, start: float, end: float, top: float | None) -> None:
        self._log = log
        self._start, self._end = start, end
        finite = [value for value in values if math.isfinite(value) and (value > 0 or not log)] or [1.0]
        low, high = min(finite), max(finite)
        if log:
            self.low, self.high = math.log10(low) - 0.04, math.log10(high) + 0.04
            if self.high - self.low < 0.3:
                self.low, self.high = self.low - 0.12, self.high + 0.12
        else:
            self.low, self.high = min(0.0, low), top if top is not None else high * 1.06 or 1.0

    def place(self, value: float) -> float:
        value = math.log10(max(value, 1e-12)) if self._log else value
        share = (value - self.low) / ((self.high - self.low) or 1.0)
        return self._start + share * (self._end - self._start)

    def ticks(self) -> list[float]:
        if not self._log:
            step = _nice((self.high - self.low) / 5)
            first = math.ceil(self.low / step)
            return [index * step for index in range(first, int(self.high / step + 1e-9) + 1)]
        wide = self.high - self.low > 2.2
        steps = (1.0,) if self.high - self.low > 5 else (1.0, 3.0) if wide else (1.0, 2.0, 5.0)
        ticks = [
            step * 10.0**power
            for power in range(math.floor(self.low), math.ceil(self.high) + 1)
            for step in steps
            if self.low <= math.log10(step * 10.0**power) <= self.high
        ]
        return ticks or [10 ** ((self.low + self.high) / 2)]


def chart_svg(chart: Chart) -> str:
    """The chart as an ``<svg>`` element; it says so where there is nothing to draw."""
    points = [point for series in chart.series for point in series.points]
    if not points:
        return '<p class="empty">nothing was measured for this chart</p>'
    names: list[str] = []
    if all(series.kind == "bars" for series in chart.series):
        chart, names = _in_categories(chart)
        points = [point for series in chart.series for point in series.points]
    named = [series for series in chart.series if series.name]
    rows = _legend_rows([series.name for series in named])
    height = _HEIGHT + _LEGEND_ROW * len(rows)
    bottom = _HEIGHT - _BOTTOM
    side = (_WIDTH - _RIGHT - _LEFT) / (2 * len(names)) if names else 0.0
    x = _Axis(
        [point[0] for point in points],
        log=chart.log_x,
        start=_LEFT + side,
        end=_WIDTH - _RIGHT - side,
        top=float(len(names) - 1) if names else None,
    )
    y = _Axis([point[1] for point in points], log=chart.log_y, start=bottom, end=_TOP, top=chart.y_top)
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(chart.title)}">',
        *_grid(chart, x, y, bottom, names),
    ]
    for index, series in enumerate(chart.series):
        color = (index if series.color is None else series.color) % SERIES
        parts += _drawn(series, color, x, y, bottom)
    parts += _legend(chart, rows)
    return "\n".join([*parts, "</svg>"])


def _in_categories(chart: Chart) -> tuple[Chart, list[str]]:
    """Bars stand side by side, whatever lies between their values."""
    values = sorted({point[0] for series in chart.series for point in series.points})
    series = [replace(each, points=[(float(values.index(x)), y) for x, y in each.points]) for each in chart.series]
    return replace(chart, series=series, log_x=False), [shown(value) for value in values]


def _grid(chart: Chart, x: _Axis, y: _Axis, bottom: float, names: Sequence[str]) -> list[str]:
    """Lines and numbers; of categories their names, as many as there is room for."""
    parts = []
    for value in y.ticks():
        at = y.place(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{shown(value)}</text>')
    for index, name in enumerate(names):
        if index % (len(names) // 16 + 1) == 0:
            at = x.place(float(index))
            parts.append(f'<text class="tick" x="{at:.1f}" y="{bottom + 18}" text-anchor="middle">{name}</text>')
    for value in () if names else x.ticks():
        at = x.place(value)
        parts.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{bottom}"/>')
        parts.append(f'<text class="tick" x="{at:.1f}" y="{bottom + 18}" text-anchor="middle">{shown(value)}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text class="axis" x="{middle}" y="{bottom + 38}" text-anchor="middle">{escape(chart.x)}</text>')
    up = (_TOP + bottom) / 2
    parts.append(
        f'<text class="axis" transform="translate(16 {up}) rotate(-90)" text-anchor="middle">{escape(chart.y)}</text>'
    )
    return parts


def _drawn(series: Series, color: int, x: _Axis, y: _Axis, bottom: float) -> list[str]:
    places = [(x.place(left), y.place(up)) for left, up in series.points]
    parts = []
    if series.kind == "bars":
        apart = min((right[0] - left[0] for left, right in pairwise(places)), default=80.0)
        width = min(max(3.0, 0.7 * apart), 60.0)
        for (left, up), (value, count) in zip(places, series.points, strict=True):
            parts.append(
                f'<rect class="fill s{color}" x="{left - width / 2:.1f}" y="{up:.1f}" width="{width:.1f}" '
                f'height="{max(bottom - up, 0):.1f}"><title>{escape(_point(series, value, count))}</title></rect>'
            )
        return parts
    if series.kind != "points" and len(places) > 1:
        way = _steps(places) if series.kind == "step" else places
        text = " ".join(f"{left:.1f},{up:.1f}" for left, up in way)
        style = "roof" if series.kind == "roof" else f"line s{color}"
        parts.append(f'<polyline class="{style}" points="{text}"/>')
    if series.kind in ("line", "points"):
        for (left, up), (value, high) in zip(places, series.points, strict=True):
            parts.append(
                f'<circle class="fill s{color}" cx="{left:.1f}" cy="{up:.1f}" r="4">'
                f"<title>{escape(_point(series, value, high))}</title></circle>"
            )
    for (left, up), label in zip(places, series.labels, strict=False):
        if label:
            flip = left > _WIDTH - 90
            parts.append(
                f'<text class="label" x="{left + (-8 if flip else 8):.1f}" y="{up - 6:.1f}" '
                f'text-anchor="{"end" if flip else "start"}">{escape(label)}</text>'
            )
    return parts


def _legend_rows(names: Sequence[str]) -> list[list[str]]:
    rows: list[list[str]] = []
    used = 0.0
    for name in names:
        width = 34 + 7.0 * len(name)
        if not rows or used + width > _WIDTH - _LEFT:
            rows.append([])
            used = 0.0
        rows[-1].append(name)
        used += width
    return rows


def _legend(chart: Chart, rows: list[list[str]]) -> list[str]:
    colors = {
        series.name: (index if series.color is None else series.color) % SERIES
        for index, series in enumerate(chart.series)
    }
    parts = []
    for number, row in enumerate(rows):
        left, up = float(_LEFT), _HEIGHT + _LEGEND_ROW * number + 8
        for name in row:
            parts.append(f'<rect class="fill s{colors[name]}" x="{left}" y="{up - 9}" width="12" height="12" rx="3"/>')
            parts.append(f'<text class="tick" x="{left + 18}" y="{up + 1}">{escape(name)}</text>')
            left += 34 + 7.0 * len(name)
    return parts


def _steps(places: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    way = [places[0]]
    for left, up in places[1:]:
        way += [(left, way[-1][1]), (left, up)]
    return way


def _point(series: Series, x: float, y: float) -> str:
    return f"{series.name}: {shown(x)}, {shown(y)}".removeprefix(": ")


def _nice(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step)) if step > 0 else 1.0
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * 0.999)


def shown(value: float) -> str:
    """A number as people write it: three figures, no exponent."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
