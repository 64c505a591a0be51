"""What ships for Prometheus and Grafana, against the real thing: promtool, and a server that scrapes an engine."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from facefleet import Engine, Settings
from facefleet.config.settings import BatchSettings
from facefleet.telemetry.metrics import DECLARATIONS
from facefleet.telemetry.record import render
from tests.conftest import skip_without

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yml"
DASHBOARD = DEPLOY / "grafana" / "facefleet.json"
ALERTS = {
    "FacefleetGpuSaturated",
    "FacefleetLatencyHigh",
    "FacefleetMemoryHigh",
    "FacefleetBatchAwayFromOptimum",
}
# Without a GPU, workers, a cache, padding or a server these have no series on this engine.
EMPTY_HERE = re.compile("temperature|worker_state|worker_restarts|cache_hits|padding_rows|tick_age|rebuilds|_request")


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        skip_without("prometheus", f"{name} is not installed (Debian package prometheus)")
    assert found
    return found


def panels() -> list[dict[str, Any]]:
    return [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]


class TestFiles:
    def test_every_metric_that_is_asked_for_is_declared(self) -> None:
        names = {declared.name for declared in DECLARATIONS}
        text = RULES.read_text() + DASHBOARD.read_text()
        asked = {re.sub("_(bucket|sum|count)$", "", name) for name in re.findall(r"facefleet_[a-z_]+", text)}
        assert asked
        assert asked <= names

    def test_every_metric_is_on_the_dashboard(self) -> None:
        text = DASHBOARD.read_text()
        missing = {declared.name for declared in DECLARATIONS if declared.name not in text}
        assert missing == set()

    def test_panels_are_whole_and_do_not_overlap(self) -> None:
        dashboard = json.loads(DASHBOARD.read_text())
        ids = [panel["id"] for panel in dashboard["panels"]]
        assert len(ids) == len(set(ids))
        taken: set[tuple[int, int]] = set()
        for panel in dashboard["panels"]:
            place = panel["gridPos"]
            assert place["x"] + place["w"] <= 24
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert not cells & taken, panel["title"]
            taken |= cells
        for panel in panels():
            assert panel["title"]
            assert panel["targets"]
            assert all(target["expr"] and target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])
        variables = [variable["name"] for variable in dashboard["templating"]["list"]]
        assert variables == ["datasource", "job", "instance"]


class TestPromtool:
    def test_rules_are_right(self) -> None:
        result = subprocess.run(
            [tool("promtool"), "check", "rules", str(RULES)], check=False, capture_output=True, text=True
        )
        assert result.returncode == 0, result.stderr
        assert "4 rules found" in result.stdout

    def test_rules_fire_when_they_should_and_only_then(self) -> None:
        command = [tool("promtool"), "test", "rules", "rules_test.yml"]
        result = subprocess.run(command, check=False, capture_output=True, text=True, cwd=RULES.parent)
        assert result.returncode == 0, result.stdout + result.stderr

    def test_configuration(self) -> None:
        command = [tool("promtool"), "check", "config", "prometheus.yml"]
        result = subprocess.run(command, check=False, capture_output=True, text=True, cwd=RULES.parent)
        assert result.returncode == 0, result.stderr


class _Metrics(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = render()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


def ask(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url, timeout=10) as answer:
        document: dict[str, Any] = json.load(answer)
    assert document["status"] == "success", document
    return document


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory, home: Path, astronaut_jpeg: bytes) -> Iterator[str]:
    """The address of a Prometheus that has scraped an engine at work for some seconds."""
    binary = tool("prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    with ThreadingHTTPServer(("127.0.0.1", 0), _Metrics) as exporter, socket.socket() as probe:
        threading.Thread(target=exporter.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        text = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
        text = text.replace("127.0.0.1:8002", f"127.0.0.1:{exporter.server_port}").replace("5s", "1s")
        (folder / "prometheus.yml").write_text(text)
        shutil.copy(RULES, folder)
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(
                [
                    binary,
                    f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{port}",
                ],
                stdout=log,
                stderr=log,
            )
        url = f"http://127.0.0.1:{port}"
        try:
            with Engine(Settings(home=str(home), batch=BatchSettings(max_images=8))) as engine:
                _work_until_scraped(engine, astronaut_jpeg, url)
                yield url
        finally:
            process.terminate()
            process.wait(30)
            exporter.shutdown()


def _work_until_scraped(engine: Engine, photo: bytes, url: str) -> None:
    """Photos go through, now and then one that is none, until Prometheus has seen five looks."""
    until = time.monotonic() + 60
    # The last series to appear: those of a stage are there once it has worked, and a rate needs several samples.
    seen = 'min(count_over_time(facefleet_stage_duration_seconds_count{stage="embed"}[5m]))'
    query = f"{url}/api/v1/query?query=" + urllib.parse.quote(seen)
    while time.monotonic() < until:
        list(engine.map([photo] * 8 + [b"no picture"]))
        engine.queues()
        time.sleep(0.2)
        try:
            result = ask(query)["data"]["result"]
        except OSError:
            continue  # it is starting
        if result and float(result[0]["value"][1]) >= 5:
            return
    raise AssertionError("Prometheus has not scraped the engine within a minute")


class TestServer:
    def test_rules_are_loaded_and_healthy(self, prometheus: str) -> None:
        (group,) = ask(f"{prometheus}/api/v1/rules")["data"]["groups"]
        until = time.monotonic() + 30
        while any(rule["health"] == "unknown" for rule in group["rules"]) and time.monotonic() < until:
            time.sleep(0.2)
            (group,) = ask(f"{prometheus}/api/v1/rules")["data"]["groups"]
        assert {rule["name"] for rule in group["rules"]} == ALERTS
        assert {rule["health"] for rule in group["rules"]} == {"ok"}

    @pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel["title"])
    def test_every_expression_of_the_dashboard(self, prometheus: str, panel: dict[str, Any]) -> None:
        for target in panel["targets"]:
            expression = (
                target["expr"].replace("$__rate_interval", "5m").replace("$job", ".*").replace("$instance", ".*")
            )
            answer = ask(f"{prometheus}/api/v1/query?query={urllib.parse.quote(expression)}")
            assert answer.get("warnings") is None
            if not EMPTY_HERE.search(expression) or "sum(" in expression:
                assert answer["data"]["result"], expression

    def test_figures_are_those_of_the_engine(self, prometheus: str) -> None:
        query = urllib.parse.quote('sum(facefleet_outcomes_total{outcome="ok"})')
        shown = float(ask(f"{prometheus}/api/v1/query?query={query}")["data"]["result"][0]["value"][1])
        assert shown >= 8

    @pytest.mark.parametrize("rule", sorted(ALERTS))
    def test_alert_expressions_evaluate(self, prometheus: str, rule: str) -> None:
        (group,) = ask(f"{prometheus}/api/v1/rules")["data"]["groups"]
        (query,) = [each["query"] for each in group["rules"] if each["name"] == rule]
        ask(f"{prometheus}/api/v1/query?query={urllib.parse.quote(query)}")
