"""The command line as people use it: exit codes, messages, files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from facefleet.cli import doctor
from facefleet.cli.main import app
from tests.conftest import encode, smooth_picture


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def photos(tmp_path: Path, astronaut_jpeg: bytes) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "astronaut.jpg").write_bytes(astronaut_jpeg)
    (folder / "nobody.png").write_bytes(encode(smooth_picture(80, 80), "PNG"))
    (folder / "notes.txt").write_text("no photo")
    return folder


class TestExtract:
    def test_everything_at_once(self, photos: Path, tmp_path: Path) -> None:
        out = tmp_path / "out" / "faces.parquet"
        result = run(
            "extract", photos, "-o", out, "--draw", tmp_path / "drawn", "--chips", tmp_path / "chips", "--summary", "-"
        )
        assert result.exit_code == 0, result.output
        summary = json.loads(result.stdout)
        assert (summary["inputs"], summary["ok"], summary["no_face"], summary["skipped"]) == (2, 1, 1, 1)
        rows = pq.read_table(out).to_pylist()
        assert len(rows) == 1
        assert rows[0]["input"].endswith("astronaut.jpg")
        assert np.linalg.norm(rows[0]["embedding"]) == pytest.approx(1, abs=1e-5)
        metadata = pq.read_schema(out).metadata
        assert metadata[b"facefleet.pack"] == b"opencv"
        assert len(metadata[b"facefleet.fingerprint"]) == 64
        assert len(list((tmp_path / "drawn").iterdir())) == 1
        assert len(list((tmp_path / "chips").iterdir())) == 1
        assert "1 " in result.stderr
        again = run("extract", photos, "-o", out, "--draw", tmp_path / "drawn", "--chips", tmp_path / "chips")
        assert again.exit_code == 0
        assert "done in this run  0 " in " ".join(again.stderr.split("\n")) or "0 in" in again.stderr

    def test_some_fail(self, photos: Path, tmp_path: Path) -> None:
        (photos / "broken.jpg").write_bytes(b"\xff\xd8 not really")
        out = tmp_path / "faces.jsonl"
        result = run("extract", photos, "-o", out)
        assert result.exit_code == 1
        assert "corrupt_image" in result.stderr
        failed = [json.loads(line) for line in (tmp_path / "faces.jsonl.failed.jsonl").read_text().splitlines()]
        assert [entry["status"] for entry in failed] == ["failed_permanent"]
        assert len(out.read_text().splitlines()) == 2

    def test_names_with_brackets_are_printed_as_they_are(self, photos: Path, tmp_path: Path) -> None:
        out = tmp_path / "[red]faces[0].parquet"
        result = run("extract", photos, "-o", out)
        assert result.exit_code == 0, result.output
        assert str(out) in result.stderr.replace("\n", "")

    def test_all_fail(self, tmp_path: Path) -> None:
        (tmp_path / "x.jpg").write_bytes(b"nonsense")
        assert run("extract", tmp_path / "x.jpg", "-o", tmp_path / "f.parquet").exit_code == 3

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ([], "no inputs"),
            (["/nowhere/at/all"], "no input exists"),
            (["{photos}", "-o", "faces.csv"], "unknown format"),
            (["{photos}", "--det-size", "7"], "at least 32"),
            (["{photos}", "--set", "detect.scor=1"], "did you mean detect.score"),
            (["{photos}", "--set", "nonsense"], "KEY=VALUE"),
            (["{photos}", "--backend", "tpu"], "openvino, onnxruntime"),
        ],
    )
    def test_usage(
        self, photos: Path, tmp_path: Path, arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        result = run("extract", *(argument.format(photos=photos) for argument in arguments))
        assert result.exit_code == 2, result.output
        assert message in " ".join(result.stderr.split())
        assert "Traceback" not in result.output

    def test_nothing_could_be_done(self, photos: Path, tmp_path: Path) -> None:
        result = run("extract", photos, "-o", tmp_path / "f.parquet", "--pack", "buffalo_l")
        assert result.exit_code == 3
        assert "--accept-license" in result.stderr

    def test_other_settings_are_refused(self, photos: Path, tmp_path: Path) -> None:
        out = tmp_path / "f.parquet"
        assert run("extract", photos, "-o", out).exit_code == 0
        result = run("extract", photos, "-o", out, "--score", "0.9")
        assert result.exit_code == 3
        assert "--overwrite" in result.stderr
        assert run("extract", photos, "-o", out, "--score", "0.9", "--overwrite").exit_code == 0

    def test_ctrl_c_leaves_a_state_to_go_on_from(self, tmp_path: Path, astronaut_jpeg: bytes, home: Path) -> None:
        folder = tmp_path / "many"
        folder.mkdir()
        for i in range(400):
            (folder / f"{i:04d}.jpg").write_bytes(astronaut_jpeg)
        out = tmp_path / "f.parquet"
        command = [sys.executable, "-m", "facefleet.cli", "extract", str(folder), "-o", str(out)]
        environment = {**os.environ, "FACEFLEET_HOME": str(home), "FACEFLEET_JOB_COMMIT_IMAGES": "20"}
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        parts = tmp_path / "f.parquet.parts"
        deadline = time.monotonic() + 60
        while not (parts.is_dir() and list(parts.glob("*.parquet"))) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 1, stderr
        assert "stopping" in stderr
        assert "run it again" in stderr
        assert not out.exists()
        done = subprocess.run(
            [*command, "--summary", "-"], capture_output=True, text=True, env=environment, check=False
        )
        assert done.returncode == 0, done.stderr
        summary = json.loads(done.stdout)
        assert summary["ok"] == 400
        assert 0 < summary["processed"] < 400
        assert pq.read_table(out).num_rows == 400


class TestVerify:
    def test_same_and_different(self, tmp_path: Path, astronaut: np.ndarray, astronaut_jpeg: bytes) -> None:
        one, two = tmp_path / "1.jpg", tmp_path / "2.png"
        one.write_bytes(astronaut_jpeg)
        two.write_bytes(encode(np.ascontiguousarray(astronaut[:, ::-1]), "PNG"))
        result = run("verify", one, two, "--draw", tmp_path / "both.png")
        assert result.exit_code == 0
        assert result.stdout.startswith("same person: cosine 0.")
        assert (tmp_path / "both.png").stat().st_size > 10_000
        report = json.loads(run("verify", one, two, "--json", "--threshold", "0.99999").stdout)
        assert report["same"] is False
        assert report["metric"] == "cosine"

    def test_no_face(self, photos: Path) -> None:
        result = run("verify", photos / "astronaut.jpg", photos / "nobody.png")
        assert result.exit_code == 1
        assert "no face to compare" in result.stderr
        assert "best rejected detector score" in " ".join(result.stderr.split())

    def test_unreadable(self, photos: Path) -> None:
        assert run("verify", photos / "astronaut.jpg", photos / "notes.txt").exit_code == 3


class TestOthers:
    def test_help_and_version(self) -> None:
        for arguments in (["--help"], ["extract", "--help"], ["models", "--help"]):
            assert run(*arguments).exit_code == 0
        assert run("--version").stdout.startswith("facefleet ")

    def test_config_show(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FACEFLEET_DETECT_SCORE", "0.25")
        shown = json.loads(run("config", "show", "--json", "--set", "pack=other").stdout)
        assert shown["detect.score"] == {"value": 0.25, "from": "environment FACEFLEET_DETECT_SCORE"}
        assert shown["pack"] == {"value": "other", "from": "command line"}
        assert "detect.score" in run("config", "show").stdout

    def test_models(self, tmp_path: Path) -> None:
        listed = run("models", "list")
        assert listed.exit_code == 0
        assert "opencv" in listed.stdout
        assert run("models", "verify", "opencv").exit_code == 0
        assert run("models", "verify", "auraface").exit_code == 1
        assert 'name = "opencv"' in run("models", "show", "opencv").stdout
        assert run("models", "show", "nothing").exit_code == 3
        assert run("models", "install", "antelopev2").exit_code == 3
        assert run("models", "install", "opencv").exit_code == 0

    def test_inspect(self, tmp_path: Path) -> None:
        from tests.unit.models.test_rewrites import embedder

        path = tmp_path / "m.onnx"
        path.write_bytes(embedder().SerializeToString())
        assert "has a batch of 1" in run("inspect", path).stdout
        report = json.loads(run("inspect", path, "--json").stdout)
        assert report["parameters"] > 0
        assert report["verified_batch"] in (0, 1), "as published it takes one picture at most"
        assert report["reason"]
        assert run("inspect", tmp_path / "none.onnx").exit_code == 3

    def test_bench_quick(self, photos: Path) -> None:
        report = json.loads(run("bench", "quick", photos, "--seconds", "0.5", "--json").stdout)
        assert report["photos"] == 2
        assert report["faces"] * 2 == pytest.approx(report["images"], abs=2)
        assert set(report["stages"]) == {"load", "decode", "detect", "align", "embed"}
        assert "images/s" in run("bench", "quick", photos, "--seconds", "0.5").stdout

    def test_doctor(self) -> None:
        result = run("doctor")
        assert "threads" in result.stdout
        assert result.exit_code in (0, 1)

    def test_doctor_finds_conflicting_wheels(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Faults 36 and 58."""
        versions = {"onnxruntime": "1", "onnxruntime-gpu": "2", "opencv-python": "4", "opencv-python-headless": "4"}
        monkeypatch.setattr(doctor, "installed_version", versions.get)
        found = list(doctor.wheel_conflicts())
        assert len(found) == 2
        assert all("pip uninstall" in finding.problem for finding in found)

    def test_help_loads_nothing_heavy(self) -> None:
        code = (
            "import sys; sys.argv = ['facefleet', '--help']\n"
            "from facefleet.cli.main import main\n"
            "try: main()\nexcept SystemExit: pass\n"
            "sys.exit(bool({'cv2', 'openvino', 'onnxruntime', 'pyarrow', 'onnx'} & set(sys.modules)))"
        )
        assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
