"""Results as tables and pages, by kind of measurement.

Owns which columns and charts a kind has. The same rows go to the terminal and into the page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from facefleet.bench.page import Rows, chart_section, page, table_section
from facefleet.bench.stats import Repeated, tied_with_best
from facefleet.bench.svg import SERIES, Chart, Series

_TITLES = {
    "model": "Networks alone",
    "pipeline": "The whole way",
    "serve": "A server under load",
    "tune": "Tuning",
}


def facts(result: Mapping[str, Any]) -> list[str]:
    """Where and how a result was measured, in sentences."""
    machine, versions = result["machine"], result["versions"]
    gpus = f"; {', '.join(machine['gpus'])}" if machine["gpus"] else ""
    load = result.get("load_before")
    return [
        f"{machine['cpu']}, {machine['threads']} processors{gpus}; {machine.get('system', '')}",
        ", ".join(f"{name} {number}" for name, number in versions.items()),
        f"{result['made']}" + ("" if load is None else f", load before it {load}"),
        str(result["command"]),
    ]


def html_report(result: Mapping[str, Any]) -> str:
    """The page of a result."""
    from facefleet.bench import report_load, report_tune

    builders: dict[str, Callable[[Mapping[str, Any]], Iterable[str]]] = {
        "model": model_sections,
        "pipeline": report_load.pipeline_sections,
        "serve": report_load.serve_sections,
        "tune": report_tune.tune_sections,
    }
    kind = str(result["kind"])
    return page(f"facefleet bench: {_TITLES[kind].lower()}", facts(result), builders[kind](result))


def model_table(result: Mapping[str, Any]) -> Rows:
    """A row a setting."""
    titles = (
        "network", "backend", "size", "batch", "streams", "images/s", "±", "best",
        "p50 ms", "p90", "p95", "p99", "max", "queue ms", "host", "transfer", "compute", "pad", "CPU", "busy", "MiB",
    )  # fmt: skip
    best = _bests(result["cells"])
    rows = []
    for cell in result["cells"]:
        latency, rate, parts = cell["latency"], cell["images_per_s"], cell["parts_ms"]
        host = parts.get("host", 0.0) + parts.get("other", 0.0)
        moved = parts.get("transfer_in", 0.0) + parts.get("transfer_out", 0.0)
        flags = [
            word
            for word, on in (("no graph", cell["graphs"]), ("no copies", cell["transfers"]), ("blocking", cell["spin"]))
            if not on
        ]
        memory = cell["device_memory_peak_bytes"] or cell["memory_peak_bytes"]
        rows.append(
            [
                cell["network"],
                " ".join([cell["backend"], cell["precision"], *flags]),
                f"{cell['height']}x{cell['width']}",
                str(cell["batch"]),
                str(cell["streams"]),
                f"{rate['median']:,.1f}",
                f"{100 * rate['spread'] / rate['median'] / 2:.1f} %",
                best.get(cell["key"], ""),
                *(f"{latency[f'{name}_ms']:.2f}" for name in ("p50", "p90", "p95", "p99", "max")),
                *(f"{value:.2f}" if parts else "" for value in (parts.get("wait", 0.0), host, moved)),
                f"{parts['compute']:.2f}" if parts else "",
                f"{100 * cell['padding_waste']:.0f} %",
                f"{cell['cpu']:.2f}",
                "" if cell["device_busy"] is None else f"{100 * cell['device_busy']:.0f} %",
                f"{memory / 2**20:,.0f}",
            ]
        )
    return titles, rows


def _bests(cells: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Key -> ``best`` or ``tie``, among the settings of one network."""
    found: dict[str, str] = {}
    for name in dict.fromkeys(cell["network"] for cell in cells):
        figures = {
            cell["key"]: Repeated(tuple(cell["images_per_s"]["rounds"])) for cell in cells if cell["network"] == name
        }
        tied = tied_with_best(figures)
        top = max(figures, key=lambda key: figures[key].median)
        found |= dict.fromkeys(tied, "tie") | {top: "best" if len(tied) == 1 else "best, tie"}
    return found


def advice_table(result: Mapping[str, Any]) -> Rows:
    """The rule for streams beside the measured best."""
    titles = ("network", "backend", "size", "batch", "rule", "of", "fits memory", "measured best", "tied", "gain")
    rows = [
        [
            entry["network"],
            f"{entry['backend']} {entry['precision']}",
            f"{entry['size'][0]}x{entry['size'][1]}",
            str(entry["batch"]),
            str(entry["rule"]),
            str(entry["units"]),
            "" if entry["fits"] is None else f"{entry['fits']:,}",
            str(entry["measured"]),
            ", ".join(map(str, entry["tied"])),
            f"{entry['gain']:.2f}",
        ]
        for entry in result.get("advice", [])
    ]
    return titles, rows


def layers_table(result: Mapping[str, Any], most: int = 15) -> Rows:
    """The slowest layers of every network that they were measured of."""
    titles = ("layer", "network", "backend", "ms", "share")
    rows = []
    for entry in result.get("layers", []):
        total = sum(entry["milliseconds"].values()) or 1.0
        slowest = sorted(entry["milliseconds"].items(), key=lambda item: -item[1])[:most]
        rows += [
            [name[:60], entry["network"], entry["backend"], f"{value:.4f}", f"{100 * value / total:.1f} %"]
            for name, value in slowest
        ]
    return titles, rows


def model_sections(result: Mapping[str, Any]) -> list[str]:
    """Charts and tables of a grid."""
    cells = result["cells"]
    networks = list(dict.fromkeys(cell["network"] for cell in cells))
    titles, rows = model_table(result)
    note = "± is half the spread of the rounds; settings within the spread of the best are ties."
    return [
        chart_section("Throughput against latency", [_speed_chart(name, cells) for name in networks]),
        chart_section("Latency: share of runs that are no slower", [_cdf_chart(name, cells) for name in networks]),
        chart_section("Roofline", _roof_charts(result)),
        table_section("Streams: the rule of thumb and the measured best", *advice_table(result)),
        table_section("Slowest layers", *layers_table(result)),
        table_section("All settings", titles, rows, note),
    ]


def _groups(name: str, cells: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Legend entry -> cells, batches rising."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for cell in cells:
        if cell["network"] == name:
            flags = [word for word in ("no graphs", "no transfers", "blocking") if word in cell["key"]]
            size = f"{cell['height']}px"
            title = " ".join([cell["backend"], cell["precision"], size, f"{cell['streams']} streams", *flags])
            found.setdefault(title, []).append(cell)
    return {title: sorted(group, key=lambda cell: cell["batch"]) for title, group in found.items()}


def _speed_chart(name: str, cells: Sequence[Mapping[str, Any]]) -> Chart:
    series = []
    for title, group in _groups(name, cells).items():
        points = [(cell["latency"]["p50_ms"], cell["images_per_s"]["median"]) for cell in group]
        series.append(Series(title, points, labels=[str(cell["batch"]) for cell in group]))
    note = "A point is a batch size, written beside it."
    return Chart(name, "p50 of a batch, ms", "images/s", series, log_x=True, log_y=False, note=note)


def _cdf_chart(name: str, cells: Sequence[Mapping[str, Any]]) -> Chart:
    series = []
    for title, group in list(_groups(name, cells).items())[:SERIES]:
        cell = max(group, key=lambda each: each["images_per_s"]["median"])
        points = [(milliseconds, share) for milliseconds, share in cell["cdf"]]
        series.append(Series(f"{title}, batch {cell['batch']}", points, "step"))
    return Chart(name, "ms", "share", series, log_x=True, y_top=1.02, note="Each line at its fastest batch.")


def _roof_charts(result: Mapping[str, Any]) -> list[Chart]:
    roofline = result.get("roofline")
    if not roofline or not roofline["points"]:
        return []
    series = []
    xs = [point["intensity"] for point in roofline["points"]]
    bandwidth = roofline["roofs"]["bytes_per_s"] / 1e9
    low, high = min(xs) / 4, max(xs) * 4
    for name, gflops in roofline["roofs"]["gflops"].items():
        ridge = gflops / bandwidth
        corners = [x for x in (low, ridge, max(high, ridge * 2)) if x >= low]
        points = [(x, min(gflops, bandwidth * x)) for x in corners]
        series.append(Series("", points, "roof", ["", f"{name}: {gflops:,.0f} GFLOP/s"]))
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for point in roofline["points"]:
        groups.setdefault(f"{point['network']} {point['backend']} {point['precision']}", []).append(point)
    for color, (title, points_of) in enumerate(groups.items()):
        where = [(point["intensity"], point["gflops"]) for point in points_of]
        series.append(Series(title, where, "points", color=color))
    note = (
        f"Dashed: what a large matrix product and a copy of memory ({bandwidth:,.1f} GB/s) reach here. Bytes are "
        "counted as if nothing stayed in a cache, so points may lie above the slope."
    )
    return [Chart("Work against bytes", "operations a byte", "GFLOP/s", series, log_x=True, log_y=True, note=note)]
