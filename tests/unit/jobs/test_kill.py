"""A job killed at any moment goes on where it was, and its output is that of a job nobody disturbed."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("fake.py")
ROOT = Path(__file__).resolve().parents[3]
FILES = 240
KILLS = 12


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    starts = [b"photo"] * 8 + [b"blank", b"bad", b"flaky 1"]
    for number in range(FILES):
        inner = folder / f"{number % 3}"
        inner.mkdir(exist_ok=True)
        (inner / f"{number:04d}.jpg").write_bytes(starts[number % len(starts)] + b" %d" % number)
    return folder


def start(photos: Path, output: Path, delay_s: float) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), str(photos), str(output), str(delay_s)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )


def finish(process: subprocess.Popen[str]) -> dict[str, object]:
    stdout, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return json.loads(stdout.splitlines()[-1])


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_killed_at_random_moments(photos: Path, tmp_path: Path, suffix: str) -> None:
    """Part of fault 55: nothing is lost, done twice, or counted wrongly."""
    calm = tmp_path / f"calm{suffix}"
    expected = finish(start(photos, calm, 0))
    output = tmp_path / f"killed{suffix}"
    moments = random.Random(20240 + len(suffix))
    killed = progressed = 0
    for _ in range(KILLS):
        process = start(photos, output, 0.001)
        assert process.stdout is not None
        for _ in range(moments.randrange(40)):
            process.stdout.readline()
        time.sleep(moments.uniform(0, 0.01))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        killed += process.returncode == -signal.SIGKILL
        progressed += any(output.with_name(f"{output.name}.parts").glob("*"))
    summary = finish(start(photos, output, 0))

    assert killed >= 10
    assert progressed, "no kill came after a commit: the moments test nothing"
    assert digest(output) == digest(calm)
    same = ("inputs", "ok", "no_face", "failed_retryable", "failed_permanent", "faces", "errors")
    assert {key: summary[key] for key in same} == {key: expected[key] for key in same}
    assert summary["inputs"] == FILES
    assert sorted(path.name for path in tmp_path.glob("killed*")) == [
        output.name,
        f"{output.name}.failed.jsonl",
        f"{output.name}.manifest.sqlite",
    ]


POINTS = ["plan", "begin", "put", "moved", "parts", "part_written", "committed"]
KILLER = """
import os, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import facefleet.jobs.output as output
from facefleet.jobs.manifest import JobManifest

def kill(*_, **__):
    os.kill(os.getpid(), 9)

def after(owner, name):
    original = getattr(owner, name)
    def wrapped(*args, **kwargs):
        result = original(*args, **kwargs)
        kill()
        return result
    setattr(owner, name, wrapped)

point = {point!r}
if point == "plan": after(JobManifest, "plan_move")
if point == "begin": after(JobManifest, "begin_move")
if point == "put":
    original = output.put
    output.put = lambda a, b: (original(a, b), kill() if b.suffix != ".jsonl" or "failed" not in b.name else None)
if point == "moved": JobManifest.finish_move = kill
if point == "parts": after(JobManifest, "finish_move")
if point == "part_written": after(output.JobOutput, "write_part")
if point == "committed": after(JobManifest, "commit")
from fake import main
main({photos!r}, {output!r}, "0")
"""


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_every_step_that_counts(photos: Path, tmp_path: Path, point: str) -> None:
    calm = tmp_path / "calm.parquet"
    finish(start(photos, calm, 0))
    output = tmp_path / "killed.parquet"
    script = KILLER.format(tests=str(SCRIPT.parent), point=point, photos=str(photos), output=str(output))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    process = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, check=False)
    assert process.returncode == -signal.SIGKILL, process.stderr.decode()

    summary = finish(start(photos, output, 0))

    assert digest(output) == digest(calm)
    assert summary["inputs"] == FILES
    assert not output.with_name("killed.parquet.parts").exists()
    assert not output.with_name("killed.parquet.tmp").exists()
