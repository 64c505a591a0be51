"""Tables and charts of `bench pipeline` and `bench serve`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from facefleet.bench.page import Rows, chart_section, table_section
from facefleet.bench.svg import SERIES, Chart, Series

_PERCENTILES = ("p50", "p90", "p95", "p99", "max")


def pipeline_table(result: Mapping[str, Any]) -> Rows:
    """A row a stage."""
    titles = (
        "stage", "items", "batch", "ms an item", "share", "run p50", "run p99", "queue p50", "queue p99",
        "host ms", "transfer", "compute",
    )  # fmt: skip
    stages = result["stages"]
    total = sum(stage["busy_s"] for stage in stages.values()) or 1.0
    rows = []
    for name, stage in stages.items():
        parts = stage["parts_ms"]
        moved = parts.get("transfer_in", 0.0) + parts.get("transfer_out", 0.0)
        shown = [parts.get("host", 0.0), moved, parts.get("compute", 0.0)]
        queued = [f"{stage['queue_p50_ms']:.2f}", f"{stage['queue_p99_ms']:.2f}"] if stage["batches"] else ["", ""]
        rows.append(
            [
                name,
                f"{stage['items']:,}",
                f"{stage['items'] / stage['runs']:.1f}",
                f"{stage['ms_an_item']:.2f}",
                f"{100 * stage['busy_s'] / total:.0f} %",
                f"{stage['run']['p50_ms']:.2f}",
                f"{stage['run']['p99_ms']:.2f}",
                *queued,
                *(f"{value:.2f}" if parts else "" for value in shown),
            ]
        )
    return titles, rows


def pipeline_headline(result: Mapping[str, Any]) -> str:
    """One line on the whole."""
    images, latency = result["images_per_s"], result["latency"]
    spread = 100 * images["spread"] / images["median"] / 2
    quantiles = ", ".join(f"{name} {latency[f'{name}_ms']:.1f}" for name in _PERCENTILES)
    return (
        f"{images['median']:,.1f} images/s ± {spread:.1f} %, {result['faces_per_s']['median']:,.1f} faces/s with "
        f"{result['in_flight']} photos in flight; ms: {quantiles}"
    )


def pipeline_sections(result: Mapping[str, Any]) -> list[str]:
    """Charts and tables of the whole way."""
    stages = result["stages"]
    charts = [
        Chart(
            f"Batches of {name}",
            "items a batch",
            "batches",
            [Series("", [(float(size), float(count)) for size, count in stage["batches"].items()], "bars")],
        )
        for name, stage in stages.items()
        if stage["batches"]
    ]
    cdf = Chart("From submission to answer", "ms", "share", [Series("", result["cdf"], "step")], y_top=1.02)
    faces = [(float(count), float(photos)) for count, photos in result["faces_per_image"].items()]
    shapes = Chart("Faces in the photos", "faces", "photos", [Series("", faces, "bars")])
    engine = ", ".join(f"{key} {value}" for key, value in result["engine"].items() if key not in ("license", "chosen"))
    return [
        f"<p><strong>{pipeline_headline(result)}</strong></p>",
        chart_section("Latency and input", [cdf, shapes]),
        chart_section("Batch sizes", charts),
        table_section("Stages", *pipeline_table(result), note=engine),
    ]


def serve_table(result: Mapping[str, Any]) -> Rows:
    """A row a load."""
    titles = (
        "load", "offered/s", "answers/s", "±", *(f"{name} ms" for name in _PERCENTILES),
        "service p99", "failed", "late by", "faces/s",
    )  # fmt: skip
    rows = []
    for load in result["loads"]:
        rate, latency = load["answers_per_s"], load["latency"]
        known = bool(latency)
        rows.append(
            [
                load["key"],
                "" if load["offered_per_s"] is None else f"{load['offered_per_s']:,.1f}",
                f"{rate['median']:,.1f}",
                f"{100 * rate['spread'] / rate['median'] / 2:.1f} %" if rate["median"] else "",
                *(f"{latency[f'{name}_ms']:.1f}" if known else "" for name in _PERCENTILES),
                f"{load['service']['p99_ms']:.1f}" if load["service"] else "",
                f"{load['failed']:,}",
                "" if load["schedule_error"] is None else f"{100 * load['schedule_error']:.2f} %",
                f"{load['faces_per_s']:,.1f}",
            ]
        )
    return titles, rows


def serve_sections(result: Mapping[str, Any]) -> list[str]:
    """Charts and tables of a server."""
    loads = [load for load in result["loads"] if load["latency"]]
    kinds = {"closed loop": [load for load in loads if load["offered_per_s"] is None]}
    kinds["open loop"] = [load for load in loads if load["offered_per_s"] is not None]
    series = [
        Series(
            f"{kind}, {name}",
            sorted((load["answers_per_s"]["median"], load["latency"][f"{name}_ms"]) for load in mine),
        )
        for kind, mine in kinds.items()
        for name in ("p50", "p99")
        if mine
    ]
    speed = Chart("Latency against throughput", "answers/s", "ms", series, log_y=True)
    lines = [Series(load["key"], load["cdf"], "step") for load in loads[-SERIES:]]
    cdf = Chart("Latency: share of answers that are no slower", "ms", "share", lines, log_x=True, y_top=1.02)
    faces = [(float(count), float(number)) for count, number in result["faces_per_image"].items()]
    mixed = [Chart("Faces in the answers", "faces", "answers", [Series("", faces, "bars")])] if faces else []
    limit = result.get("saturation")
    found = (
        []
        if limit is None
        else [
            f"<p><strong>Saturation: {limit['rate_per_s']:,.1f} requests/s are answered with p99 within "
            f"{limit['p99_ms']:.0f} ms</strong></p>"
        ]
    )
    note = "Open loops: latency begins when a request was due, service when it was sent."
    return [
        *found,
        chart_section("Load", [speed, cdf, *mixed]),
        table_section("Loads", *serve_table(result), note=note),
    ]
