"""Tables and charts of `facefleet tune`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from facefleet.bench.page import Rows, chart_section, table_section
from facefleet.bench.svg import Chart, Series


def tune_table(result: Mapping[str, Any]) -> Rows:
    """A row a configuration that was measured, the fastest first."""
    titles = ("configuration", "images/s", "p50 ms", "p99 ms", "memory MiB", "seconds", "target", "")
    rows = [
        [
            point["key"],
            f"{point['images_per_s']:,.1f}",
            f"{1000 * point['p50_s']:.1f}",
            f"{1000 * point['p99_s']:.1f}",
            f"{point['memory_bytes'] / 2**20:,.0f}",
            f"{point['seconds']:.1f}",
            "held" if point["holds"] else "missed",
            "chosen" if point["key"] == result["chosen"] else "",
        ]
        for point in sorted(result["points"], key=lambda point: -point["images_per_s"])
    ]
    return titles, rows


def tune_sections(result: Mapping[str, Any]) -> list[str]:
    """The Pareto front, and every measurement."""
    points = result["points"]

    def places(chosen: list[Mapping[str, Any]]) -> list[tuple[float, float]]:
        return [(1000 * point["p99_s"], point["images_per_s"]) for point in chosen]

    held = [point for point in points if point["holds"]]
    missed = [point for point in points if not point["holds"]]
    front = [point for point in sorted(points, key=lambda point: point["p99_s"]) if point["key"] in result["pareto"]]
    best = [point for point in points if point["key"] == result["chosen"]]
    target = float(result["settings"]["p99_ms"])
    top = max((point["images_per_s"] for point in points), default=1.0)
    series = [
        Series("", [(target, 0.0), (target, top)], "roof", ["", f"p99 {target:g} ms"]),
        Series("target held", places(held), "points", color=2),
        Series("missed", places(missed), "points", color=5),
        Series("Pareto front", places(front), "step", color=0),
        Series("chosen", places(best), "points", color=1),
    ]
    chart = Chart("Throughput against p99", "p99, ms", "images/s", series, log_x=True)
    note = (
        f"{result['measured']} of {result['grid']} configurations were measured; the model expected less of the rest."
    )
    for each in result.get("arrivals", ()):
        seen = each.get("error") or f"p99 {1000 * each['p99_s']:.1f} ms"
        note += f" At random moments, {each['arrivals_per_s']:,.1f} a second, {each['key']}: {seen}."
    return [
        chart_section("Pareto front", [chart]),
        table_section("Measured configurations", *tune_table(result), note=note),
    ]
