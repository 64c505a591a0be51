"""`facefleet serve` as a process: signals under load, and an engine process that is killed. Answers are known ones."""

from __future__ import annotations

import collections
import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest

from facefleet import Engine
from facefleet.types import EncodedImage

RAW = {"content-type": "application/octet-stream"}


class Process:
    """A server of its own."""

    def __init__(self, folder: Path, *options: str) -> None:
        script = Path(sys.executable).with_name("facefleet")
        ports = ["--port", "0", "--ops-port", "0", "--grpc-port", "-1"]
        self.log = folder / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [str(script), "serve", *ports, *options], stderr=log, stdout=log, env=os.environ, cwd=folder
            )

    def ready(self) -> str:
        """Its address, once it is ready."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and self.process.poll() is None:
            found = re.search(r"ready: http (\S+)", self.log.read_text())
            if found:
                return f"http://{found[1]}"
            time.sleep(0.05)
        raise AssertionError(self.log.read_text())

    @property
    def ops(self) -> str:
        found = re.search(r"health and metrics (\S+)", self.log.read_text())
        assert found
        return f"http://{found[1]}"


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    running = Process(tmp_path, "--drain", "20", "--verbose", "--log-format", "json")
    yield running
    if running.process.poll() is None:
        running.process.kill()
    running.process.wait()


class Load:
    """Clients that each send a picture of their own, over and over, and know its right answer.

    Args:
        url: Where to.
        pictures: Name -> (bytes, what `key_of` makes of the right answer).
        clients: How many.
    """

    def __init__(self, url: str, pictures: dict[str, tuple[bytes, tuple[object, ...]]], clients: int = 6) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self.wrong: list[str] = []
        self.lost: list[str] = []
        self.stop = threading.Event()
        self._url = url
        names = sorted(pictures)
        self._threads = [
            threading.Thread(target=self._ask, args=(n, *pictures[names[n % len(names)]]), daemon=True)
            for n in range(clients)
        ]
        for thread in self._threads:
            thread.start()

    def _ask(self, client: int, data: bytes, expected: tuple[object, ...]) -> None:
        with httpx.Client(base_url=self._url, timeout=60) as http:
            for number in itertools.count():
                if self.stop.is_set():
                    return
                name = f"ask-{client}-{number}"
                try:
                    response = http.post("/v1/faces", content=data, headers=RAW | {"x-request-id": name})
                except httpx.ConnectError:
                    self.counts["not taken"] += 1
                    return
                except httpx.TransportError:
                    self.lost.append(name)
                    continue
                self.counts[str(response.status_code)] += 1
                if response.status_code == 200:
                    if key_of(response.json()) != expected:
                        self.wrong.append(response.text[:200])
                elif not response.json()["retryable"]:
                    self.wrong.append(response.text[:200])

    def end(self) -> None:
        self.stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()


def key_of(tree: dict[str, object]) -> tuple[object, ...]:
    faces = tree["faces"]
    assert isinstance(faces, list)
    return tree["width"], tuple(np.array(face["embedding"], np.float32).tobytes() for face in faces)


@pytest.fixture
def pictures(
    engine: Engine, astronaut_jpeg: bytes, half_jpeg: bytes, no_face_jpeg: bytes
) -> dict[str, tuple[bytes, tuple[object, ...]]]:
    found = {}
    for name, data in (("whole", astronaut_jpeg), ("half", half_jpeg), ("none", no_face_jpeg)):
        faces = engine.analyze(EncodedImage(data, name))
        found[name] = data, (faces.width, tuple(vector.tobytes() for vector in faces.embeddings))
    return found


def wait_for(load: Load, answers: int) -> None:
    deadline = time.monotonic() + 60
    aim = load.counts["200"] + answers
    while load.counts["200"] < aim and time.monotonic() < deadline:
        time.sleep(0.02)
    assert load.counts["200"] >= aim, load.counts


def test_sigterm_under_load_loses_nothing(
    process: Process, pictures: dict[str, tuple[bytes, tuple[object, ...]]]
) -> None:
    load = Load(process.ready(), pictures)
    wait_for(load, 30)
    process.process.send_signal(signal.SIGTERM)
    assert process.process.wait(40) == 0, process.log.read_text()
    load.end()
    assert not load.wrong
    assert set(load.counts) <= {"200", "503", "not taken"}, load.counts
    log = process.log.read_text()
    assert "ask-0-0" in log, "every request that was taken in is logged with its id"
    # Of a connection that waited to be accepted when the listener closed, the kernel tells its client by a reset.
    assert not [name for name in load.lost if f'"{name}"' in log], "lost, though it was taken in"


def test_sighup_reloads_under_load(process: Process, pictures: dict[str, tuple[bytes, tuple[object, ...]]]) -> None:
    load = Load(process.ready(), pictures)
    wait_for(load, 10)
    process.process.send_signal(signal.SIGHUP)
    deadline = time.monotonic() + 60
    while "reloaded" not in process.log.read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert "reloaded: opencv" in process.log.read_text()
    wait_for(load, 10)
    load.end()
    assert not load.wrong
    assert not load.lost
    assert set(load.counts) == {"200"}, load.counts


def test_an_engine_process_that_is_killed(
    process: Process, pictures: dict[str, tuple[bytes, tuple[object, ...]]]
) -> None:
    url = process.ready()
    load = Load(url, pictures)
    wait_for(load, 20)
    for _ in range(2):
        workers = [
            child
            for child in psutil.Process(process.process.pid).children(recursive=True)
            if "resource_tracker" not in " ".join(child.cmdline())
        ]
        assert workers
        for worker in workers:
            worker.kill()
        wait_for(load, 20)
    load.end()
    assert not load.wrong, "no mixed answers, and none that cannot be tried again"
    assert not load.lost
    assert set(load.counts) <= {"200", "503"}, load.counts
    assert "facefleet_worker_restarts_total" in httpx.get(f"{process.ops}/metrics").text


def test_refusals_at_the_start(tmp_path: Path) -> None:
    for options, said in (
        (["--host", "0.0.0.0"], "without an API key"),
        (["--galleries", str(tmp_path / "none")], "no such folder"),
        (["--keys", str(tmp_path / "none.toml")], "cannot be read"),
        (["--fetch-urls", "file"], "file"),
    ):
        refused = Process(tmp_path, *options)
        assert refused.process.wait(60) == 2, options
        assert said in refused.log.read_text()
