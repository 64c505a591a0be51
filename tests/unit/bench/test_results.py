"""Envelopes, comparisons, tables and pages."""

from __future__ import annotations

import copy
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from facefleet.bench.compare import compare
from facefleet.bench.page import chart_section, page, table_section
from facefleet.bench.report import advice_table, html_report, layers_table, model_table
from facefleet.bench.results import envelope, load_average, read_result, write_result
from facefleet.bench.stats import Repeated, distribution, latencies
from facefleet.bench.svg import Chart, Series, chart_svg, shown
from facefleet.errors import ConfigError


def cell(batch: int, streams: int, *rounds: float, network: str = "net") -> dict[str, Any]:
    seconds = [batch / rate for rate in rounds for _ in range(20)]
    return {
        "key": f"{network} openvino fp32 640x640 batch {batch} streams {streams}",
        "network": network,
        "backend": "openvino",
        "precision": "fp32",
        "height": 640,
        "width": 640,
        "batch": batch,
        "streams": streams,
        "graphs": True,
        "transfers": True,
        "spin": True,
        "runs": len(seconds),
        "images_per_s": Repeated(rounds).as_json(),
        "latency": latencies(seconds).as_json(),
        "parts_ms": {"wait": 0.1, "host": 0.2, "transfer_in": 0.3, "compute": 4.0, "transfer_out": 0.4, "other": 0.1},
        "padding_waste": 0.25,
        "cpu": 1.9,
        "memory_peak_bytes": 2**28,
        "device_busy": None,
        "device_memory_peak_bytes": None,
        "cdf": distribution(sorted(seconds)),
    }


def model_result(*cells: dict[str, Any]) -> dict[str, Any]:
    advice = {
        "network": "net", "backend": "openvino", "precision": "fp32", "size": [640, 640], "batch": 1, "units": 2,
        "fits": None, "rule": 2, "measured": 1, "tied": [1, 2], "gain": 1.0,
    }  # fmt: skip
    points = [{"network": "net", "backend": "openvino", "precision": "fp32", "intensity": 10.0, "gflops": 50.0}]
    body = {
        "cells": list(cells),
        "advice": [advice],
        "roofline": {"roofs": {"gflops": {"fp32": 100.0}, "bytes_per_s": 2e10}, "points": points},
        "layers": [{"network": "net", "backend": "openvino", "size": [640, 640], "milliseconds": {"a<b": 1.0, "c": 3}}],
    }
    return envelope("model", {"grid": {}}, body, 0.1)


class TestEnvelope:
    def test_machine_and_versions_are_inside(self, tmp_path: Path) -> None:
        file = tmp_path / "r.json"
        write_result(model_result(cell(1, 1, 100, 101)), file)
        result = read_result(file)
        assert result["machine"]["threads"] >= 1
        assert result["machine"]["cpu"]
        assert {"python", "facefleet", "numpy", "onnxruntime"} <= result["versions"].keys()
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", result["made"])
        assert result["load_before"] == 0.1
        assert not list(tmp_path.glob(".*"))

    def test_load_average(self) -> None:
        load = load_average()
        assert load is None or load >= 0

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("{", "not JSON"),
            ("[]", "no result"),
            ('{"kind": "other", "machine": {}}', "no result"),
            ('{"kind": "model", "machine": {}, "schema": 99}', "schema 99"),
        ],
    )
    def test_other_files(self, tmp_path: Path, text: str, message: str) -> None:
        file = tmp_path / "r.json"
        file.write_text(text)
        with pytest.raises(ConfigError, match=message):
            read_result(file)

    def test_missing_and_unwritable(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="cannot be read"):
            read_result(tmp_path / "none.json")
        with pytest.raises(ConfigError, match="cannot be written"):
            write_result({}, tmp_path / "none" / "r.json")


class TestCompare:
    def test_verdicts_by_setting_and_as_a_whole(self) -> None:
        before = model_result(cell(1, 1, 99, 100, 101), cell(2, 1, 148, 150, 152), cell(4, 1, 200, 201))
        after = model_result(cell(1, 1, 129, 130, 131), cell(2, 1, 148, 151, 152), cell(8, 1, 300, 301))
        found = compare(before, after)
        assert [row.change.verdict for row in found.rows] == ["faster", "no difference"]
        assert found.verdict == "faster"
        assert found.ratio == pytest.approx((1.3 * 151 / 150) ** 0.5, abs=1e-3)
        assert len(found.missing) == 2
        json.dumps(found.as_json())

    def test_mixed_slower_and_unknown(self) -> None:
        one = model_result(cell(1, 1, 99, 100, 101), cell(2, 1, 99, 100, 101))
        other = model_result(cell(1, 1, 199, 200, 201), cell(2, 1, 49, 50, 51))
        assert compare(one, other).verdict == "mixed"
        assert compare(other, one).verdict == "mixed"
        assert compare(model_result(cell(1, 1, 100, 101)), model_result(cell(1, 1, 50, 51))).verdict == "slower"
        assert compare(model_result(cell(1, 1, 100)), model_result(cell(1, 1, 50))).verdict == "unknown"

    def test_cautions(self) -> None:
        before, after = model_result(cell(1, 1, 99, 101)), model_result(cell(1, 1, 99, 101))
        assert compare(before, after).cautions == []
        after = copy.deepcopy(after)
        after["machine"]["cpu"] = "Another CPU"
        after["versions"]["numpy"] = "0.0"
        after["load_before"] = 64.0
        cautions = "\n".join(compare(before, after).cautions)
        assert "another machine: cpu: " in cautions
        assert "Another CPU then" in cautions
        assert "numpy" in cautions
        assert "not idle before the second measurement: load 64.0" in cautions

    def test_refusals(self) -> None:
        one = model_result(cell(1, 1, 99, 101))
        with pytest.raises(ConfigError, match="one of bench serve"):
            compare(one, {**one, "kind": "serve"})
        with pytest.raises(ConfigError, match="no setting in common"):
            compare(one, model_result(cell(2, 1, 99, 101)))


class TestTables:
    def test_model(self) -> None:
        result = model_result(cell(1, 1, 99, 100, 101), cell(1, 2, 100, 100, 101), cell(4, 1, 199, 200, 201))
        titles, rows = model_table(result)
        assert all(len(row) == len(titles) for row in rows)
        best = dict(zip([row[3] + "x" + row[4] for row in rows], [row[7] for row in rows], strict=True))
        assert best == {"1x1": "", "1x2": "", "4x1": "best"}
        first = dict(zip(titles, rows[0], strict=True))
        assert first["images/s"] == "100.0"
        assert first["±"] == "1.0 %"
        assert first["transfer"] == "0.70"
        assert first["host"] == "0.30"
        assert first["pad"] == "25 %"

    def test_ties_are_named(self) -> None:
        _, rows = model_table(model_result(cell(1, 1, 90, 110), cell(2, 1, 95, 107)))
        assert [row[7] for row in rows] == ["tie", "best, tie"]

    def test_advice_and_layers(self) -> None:
        result = model_result(cell(1, 1, 100, 101))
        assert advice_table(result)[1] == [["net", "openvino fp32", "640x640", "1", "2", "2", "", "1", "1, 2", "1.00"]]
        assert layers_table(result)[1][0] == ["c", "net", "openvino", "3.0000", "75.0 %"]


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.outside: list[str] = []
        self.tags: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "br"):
            self.open.append(tag)
        self.outside += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "srcset", "data")]

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop() != tag:
            raise AssertionError(f"</{tag}> closes something else")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)


class TestPage:
    def test_needs_nothing_else_and_knows_both_schemes(self) -> None:
        text = html_report(model_result(cell(1, 1, 99, 100), cell(1, 2, 120, 121), cell(4, 1, 199, 200, network="b<c")))
        links = _Links()
        links.feed(text)
        assert links.outside == []
        assert links.open == []
        assert not {"script", "link", "img", "iframe"} & set(links.tags)
        assert "@import" not in text
        assert "url(" not in text
        assert "prefers-color-scheme: dark" in text
        assert links.tags.count("svg") == 5  # two networks twice, one roofline
        assert "b<c" not in text
        assert "b&lt;c" in text
        assert "a&lt;b" in text

    def test_every_series_has_a_color_in_both_schemes(self) -> None:
        text = page("t", [], [])
        assert len(re.findall(r"--s\d: #[0-9a-f]{6};", text)) == 16

    def test_empty_sections_are_left_out(self) -> None:
        assert chart_section("x", []) == ""
        assert table_section("x", ["a"], []) == ""


class TestSvg:
    def chart(self, **options: Any) -> ElementTree.Element:
        series = [
            Series("line & co", [(1.0, 10.0), (10.0, 100.0)], labels=["a", "b"]),
            Series("steps", [(2.0, 20.0), (5.0, 50.0)], "step"),
            Series("points", [(3.0, 30.0)], "points"),
            Series("", [(1.0, 5.0), (10.0, 80.0)], "roof"),
        ]
        return ElementTree.fromstring(chart_svg(Chart("t", "x", "y", series, **options)))

    @pytest.mark.parametrize("log", [False, True])
    def test_well_formed_and_inside_its_frame(self, log: bool) -> None:
        root = self.chart(log_x=log, log_y=log)
        _, _, width, height = map(float, root.attrib["viewBox"].split())
        circles = list(root.iter("circle"))
        assert len(circles) == 3
        for circle in circles:
            assert 0 <= float(circle.attrib["cx"]) <= width
            assert 0 <= float(circle.attrib["cy"]) <= height
        texts = ["".join(text.itertext()) for text in root.iter("text")]
        assert {"line & co", "steps", "points", "x", "y", "a", "b"} <= set(texts)

    def test_places_follow_values(self) -> None:
        circles = list(self.chart().iter("circle"))
        x = [float(circle.attrib["cx"]) for circle in circles]
        y = [float(circle.attrib["cy"]) for circle in circles]
        assert x[0] < x[2] < x[1]
        assert y[0] > y[2] > y[1]

    def test_bars_are_categories(self) -> None:
        chart = Chart("t", "x", "y", [Series("", [(0.0, 3.0), (1.0, 5.0), (168.0, 1.0)], "bars")])
        root = ElementTree.fromstring(chart_svg(chart))
        bars = [(float(bar.attrib["x"]), float(bar.attrib["height"])) for bar in root.iter("rect")]
        assert bars[1][0] - bars[0][0] == pytest.approx(bars[2][0] - bars[1][0], abs=0.2)
        assert bars[1][1] > bars[0][1] > bars[2][1] > 0
        assert "168" in [text.text for text in root.iter("text")]

    def test_nothing_to_draw(self) -> None:
        assert "nothing was measured" in chart_svg(Chart("t", "x", "y", []))

    @pytest.mark.parametrize(
        ("value", "text"),
        [(0, "0"), (0.05, "0.05"), (1234.4, "1,234"), (2.0, "2"), (0.123456, "0.123"), (99.96, "100")],
    )
    def test_numbers(self, value: float, text: str) -> None:
        assert shown(value) == text
