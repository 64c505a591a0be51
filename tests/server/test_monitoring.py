"""The rules and the board that ship, fed by a real Prometheus that scrapes a running server's own lane."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as tgrpc

from facefleet import Settings
from facefleet.errors import QueueFullError
from facefleet.server.grpc.run import grpc_code
from facefleet.server.limits import Limits
from tests.contract.test_monitoring import ALERTS, DEPLOY, RULES, ask, panels, tool
from tests.server.conftest import Running

RAW = {"content-type": "application/octet-stream"}
SERVER_ROW = ("Requests a second by status", "p99 of a request by route", "Share refused (429, 503)")


class Watched:
    """A server and the Prometheus that scrapes it."""

    def __init__(self, running: Running, prometheus: str) -> None:
        self.running, self.prometheus = running, prometheus

    def query(self, expression: str) -> list[dict[str, Any]]:
        expression = expression.replace("$__rate_interval", "5m").replace("$job", ".*").replace("$instance", ".*")
        found: list[dict[str, Any]] = ask(f"{self.prometheus}/api/v1/query?query={urllib.parse.quote(expression)}")[
            "data"
        ]["result"]
        return found


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory, home: Path, astronaut_jpeg: bytes) -> Iterator[Watched]:
    binary = tool("prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    with Running(Settings(home=str(home)), limits=Limits(max_requests=2)) as running:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        text = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
        assert "127.0.0.1:8002" in text, "the operator's lane, where `facefleet serve` has it"
        text = text.replace("127.0.0.1:8002", running.ops_url.removeprefix("http://")).replace("5s", "1s")
        (folder / "prometheus.yml").write_text(text)
        shutil.copy(RULES, folder)
        command = [binary, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(
                [*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log, cwd=folder
            )
        try:
            found = Watched(running, f"http://127.0.0.1:{port}")
            _ask_until_scraped(found, astronaut_jpeg)
            yield found
        finally:
            process.terminate()
            process.wait(30)


def _ask_until_scraped(watched: Watched, picture: bytes) -> None:
    """Requests over both protocols, now and then one that is refused, until Prometheus has several looks at all."""
    running, until = watched.running, time.monotonic() + 60
    refused = 'count_over_time(facefleet_requests_total{status=~"503|UNAVAILABLE"}[5m]) >= 3'
    with (
        httpx.Client(base_url=running.url) as http,
        tgrpc.InferenceServerClient(f"127.0.0.1:{running.serving.grpc_port}") as triton,
    ):
        entry = tgrpc.InferInput("faces", [1, 112, 112, 3], "UINT8")
        entry.set_data_from_numpy(np.zeros((1, 112, 112, 3), np.uint8))
        while time.monotonic() < until:
            assert http.post("/v1/faces", content=picture, headers=RAW).status_code == 200
            triton.infer("face_embedder", [entry])
            running.service.room.requests += 2  # as if the house were full
            assert http.post("/v1/faces", content=picture, headers=RAW).status_code == 503
            with pytest.raises(tgrpc.InferenceServerException):
                triton.infer("face_embedder", [entry])
            running.service.room.requests -= 2
            time.sleep(0.2)
            try:
                if len(watched.query(refused)) >= 2:
                    return
            except OSError:
                continue  # it is starting
    raise AssertionError("Prometheus has not scraped the server within a minute")


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel["title"])
def test_every_panel_of_the_board(watched: Watched, panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        found = watched.query(target["expr"])
        if panel["title"] in SERVER_ROW:
            assert found, target["expr"]


def test_share_refused_counts_what_the_fronts_record(watched: Watched) -> None:
    (panel,) = [each for each in panels() if each["title"] == "Share refused (429, 503)"]
    (target,) = panel["targets"]
    (series,) = watched.query(target["expr"])
    assert 0.05 < float(series["value"][1]) < 1.0
    named = set(re.search(r'status=~"([^"]+)"', target["expr"])[1].split("|"))  # type: ignore[index]
    recorded = {
        (each["metric"]["protocol"], each["metric"]["status"]) for each in watched.query("facefleet_requests_total")
    }
    refused = {("http", "503"), ("grpc", grpc_code(QueueFullError("full")).name)}
    assert refused <= recorded
    assert {status for _, status in refused} <= named
    assert {"429", "RESOURCE_EXHAUSTED"} <= named


def test_rules_are_healthy(watched: Watched) -> None:
    until = time.monotonic() + 30
    while True:
        (group,) = ask(f"{watched.prometheus}/api/v1/rules")["data"]["groups"]
        if all(rule["health"] != "unknown" for rule in group["rules"]) or time.monotonic() > until:
            break
        time.sleep(0.2)
    assert {rule["name"]: rule["health"] for rule in group["rules"]} == dict.fromkeys(ALERTS, "ok")
