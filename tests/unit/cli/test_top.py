"""``facefleet top`` over status files of this process, in a pipe and in a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from fcntl import ioctl
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from facefleet.cli.main import app
from facefleet.telemetry.status import Status, StatusWriter, WorkerLoad

GB = 2**30


def run(*arguments: str | Path, width: int = 120) -> Result:
    return CliRunner().invoke(app, ["top", *map(str, arguments)], env={"COLUMNS": str(width), "TERM": "dumb"})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "facefleet"


@pytest.fixture
def engine(folder: Path) -> Iterator[StatusWriter]:
    """An engine whose clock runs a second a write: 40 images/s, 90 faces/s, batches of 8 and 30."""
    started = time.time()
    looks = 0

    def read() -> Status:
        nonlocal looks
        looks += 1
        detect = WorkerLoad(
            "cuda:0", "detect", "ready", 3, 5 * looks, 40 * looks, 0.5 * looks, 0, 3 * GB, 8 * GB, 0.87, 61.0
        )
        embed = WorkerLoad(
            "cuda:1", "embed", "failed", 1, 3 * looks, 90 * looks, 0.25 * looks, 2, 8 * GB, 8 * GB, None, 90.0
        )
        other = WorkerLoad("cpu:0", "detect", "warming")
        queue = {"detect": 1234, "embed": 7}
        images, faces = 40 * looks, 90 * looks
        now = started + looks
        return Status(os.getpid(), started, now, "default", "stage", images, faces, queue, (detect, other, embed))

    writer = StatusWriter(folder)
    writer.start(read, interval_s=0.02)
    yield writer
    writer.close()


def words(text: str) -> list[str]:
    return text.split()


def rows(output: str) -> dict[str, list[str]]:
    lines = [line.split() for line in output.splitlines()]
    return {line[0]: line[1:] for line in lines if line}


class TestNoEngine:
    def test_is_said(self, folder: Path) -> None:
        for options in ((), ("--once",)):
            result = run("--folder", folder, *options)
            assert result.exit_code == 0
            assert result.stdout.startswith("no engine is running")
            assert str(folder) in result.stdout

    def test_as_json(self, folder: Path) -> None:
        result = run("--folder", folder, "--json")
        assert result.exit_code == 0
        assert json.loads(result.stdout) == {"engines": []}


class TestOnce:
    def test_wide(self, folder: Path, engine: StatusWriter) -> None:
        result = run("--folder", folder, "--once", "--interval", "0.1")
        assert result.exit_code == 0, result.output
        assert "default  stage-parallel" in result.stdout
        assert "40.0 img/s  90.0 faces/s" in result.stdout
        found = rows(result.stdout)
        assert found["cuda:0"] == words("detect ready 3 8.0 1,234 40.0 ━━━━━━━━━─ 87% 3.0 / 8 61°C 0")
        assert found["cuda:1"] == words("embed failed 1 30.0 7 90.0 ━━──────── 25% 8.0 / 8 90°C 2")
        assert found["cpu:0"] == words("detect warming 0 0.0 ────────── 0% 0")

    def test_narrow(self, folder: Path, engine: StatusWriter) -> None:
        result = run("--folder", folder, "--once", "--interval", "0.1", width=80)
        found = rows(result.stdout)
        assert found["device"] == words("role state fly batch queue img/s faces/s busy GB temp")
        assert found["cuda:0"] == words("detect ready 3 8.0 1,234 40.0 87% 3.0/8 61°C")
        assert "…" not in result.stdout
        assert max(map(len, result.stdout.splitlines())) <= 80

    def test_json(self, folder: Path, engine: StatusWriter) -> None:
        result = run("--folder", folder, "--once", "--json", "--interval", "0.1")
        (status,) = json.loads(result.stdout)["engines"]
        assert status["images_per_s"] == pytest.approx(40)
        assert status["faces_per_s"] == pytest.approx(90)
        assert status["pid"] == os.getpid()
        assert status["workers"][2]["mean_batch"] == pytest.approx(30)
        assert status["workers"][2]["items_per_s"] == pytest.approx(90)
        assert status["workers"][1]["mean_batch"] is None

    def test_silent_engine(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("facefleet.telemetry.status._alive", lambda *_: True)  # this process is younger
        writer = StatusWriter(folder)
        now = time.time()
        writer.write(Status(os.getpid(), now - 4000, now - 90, "default", "local", 3910, 7820, {}, ()))
        result = run("--folder", folder, "--once", "--interval", "0.1")
        writer.close()
        assert re.search(r"one process .* up 1 h 05 min  silent for 1 min 3\d s", result.stdout)
        assert "1.0 img/s  2.0 faces/s" in result.stdout

    def test_bad_interval(self, folder: Path) -> None:
        assert run("--folder", folder, "--interval", "0").exit_code == 2


class TestLive:
    def test_in_a_terminal(self, folder: Path, engine: StatusWriter) -> None:
        parent, child = pty.openpty()
        ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
        command = [sys.executable, "-m", "facefleet.cli", "top", "--folder", str(folder), "--interval", "0.1"]
        environment = {**os.environ, "TERM": "xterm-256color"}
        environment.pop("COLUMNS", None)
        process = subprocess.Popen(command, stdin=child, stdout=child, stderr=child, env=environment)
        os.close(child)
        screen = b""
        until = time.monotonic() + 120
        while time.monotonic() < until and screen.count(b"cuda:1") < 3:  # three drawings
            if select.select([parent], [], [], 1)[0]:
                screen += os.read(parent, 65536)
        assert screen.count(b"cuda:1") >= 3, screen
        process.send_signal(signal.SIGINT)
        try:
            while chunk := os.read(parent, 65536):
                screen += chunk
        except OSError:
            pass  # Linux says the end of a terminal so
        assert process.wait(60) == 0
        os.close(parent)
        text = screen.decode()
        assert "Traceback" not in text
        assert text.startswith("\x1b[?1049h")
        assert "\x1b[?1049l" in text  # the terminal is as it was
        assert "40.0 img/s" in text


class TestRecording:
    def test_recorded_looks_are_replayed(self, folder: Path, engine: StatusWriter, tmp_path: Path) -> None:
        file = tmp_path / "top.jsonl"
        for _ in range(2):
            assert run("--folder", folder, "--once", "--interval", "0.1", "--record", file).exit_code == 0
        engine.close()
        looks = file.read_text().splitlines()
        assert len(looks) >= 4
        result = run("--replay", file, "--once")
        assert result.exit_code == 0, result.output
        assert "40.0 img/s  90.0 faces/s" in result.stdout
        assert "silent" not in result.stdout
        lines = [json.loads(line) for line in run("--replay", file, "--json").stdout.splitlines()]
        assert len(lines) == len(looks)
        assert [line["at"] for line in lines] == sorted(line["at"] for line in lines)
        assert lines[-1]["engines"][0]["images_per_s"] == pytest.approx(40)
        assert len(run("--replay", file, "--json", "--once").stdout.splitlines()) == 1

    def test_refusals(self, tmp_path: Path) -> None:
        file = tmp_path / "top.jsonl"
        assert run("--replay", file).exit_code == 2
        file.write_text("{}")
        assert run("--replay", file, "--once").exit_code == 2
        assert run("--replay", file, "--record", file).exit_code == 2
