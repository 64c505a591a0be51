"""``facefleet bench`` and ``facefleet tune`` from the command line, on real networks, as short as they can be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from facefleet.bench.tune import trial
from facefleet.cli.bench_output import numbers, switch
from facefleet.cli.main import app
from facefleet.config import read_profile, this_machine, write_profile
from facefleet.errors import ConfigError

QUICK = ("--iterations", "2", "--warmup", "0", "--rounds", "2", "--no-roofline")


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "200", "TERM": "dumb"})


class TestOptions:
    @pytest.mark.parametrize(
        ("text", "found"), [("4", (4,)), ("8,1,8", (1, 8)), ("1..8", (1, 2, 4, 8)), ("2..5,1", (1, 2, 4, 5))]
    )
    def test_numbers(self, text: str, found: tuple[int, ...]) -> None:
        assert numbers("--batch", text) == found

    @pytest.mark.parametrize("text", ["", "x", "0", "1..", "-1", "8..x"])
    def test_no_numbers(self, text: str) -> None:
        with pytest.raises(ConfigError, match="--batch"):
            numbers("--batch", text)

    def test_switch(self) -> None:
        assert switch("--transfers", "both") == (True, False)
        with pytest.raises(ConfigError, match="--transfers 'maybe'"):
            switch("--transfers", "maybe")


class TestModel:
    def test_grid_tables_json_page_timeline_and_layers(self, tmp_path: Path, home: Path) -> None:
        files = {name: tmp_path / f"r.{name}" for name in ("json", "html", "trace")}
        result = run(
            "bench", "model", "opencv:embedder", "--backend", "openvino", "--backend", "onnxruntime",
            "--batch", "1,2", "--streams", "1,2", "--layers", *QUICK,
            "--json", files["json"], "--html", files["html"], "--timeline", files["trace"], "--home", home,
        )  # fmt: skip
        assert result.exit_code == 0, result.output
        found = json.loads(files["json"].read_text())
        assert len(found["cells"]) == 8
        for cell in found["cells"]:
            assert cell["runs"] == 2 * 2 * cell["streams"]
            assert len(cell["images_per_s"]["rounds"]) == 2
            assert cell["parts_ms"]["compute"] > 0
        assert {entry["backend"] for entry in found["layers"]} == {"openvino", "onnxruntime"}
        assert all(len(entry["milliseconds"]) > 20 for entry in found["layers"])
        assert len(found["advice"]) == 4
        assert "prefers-color-scheme" in files["html"].read_text()
        trace = json.loads(files["trace"].read_text())["traceEvents"]
        assert sum(event["name"] == "kernel" for event in trace) == sum(c["runs"] // 2 for c in found["cells"])
        assert "opencv:embedder" in result.stdout
        assert "images/s" in result.stdout

    def test_an_onnx_file(self, tmp_path: Path, home: Path, data_dir: Path) -> None:
        file = data_dir / "models" / "scrfd" / "scrfd_500m.onnx"
        result = run(
            "bench", "model", file, "--batch", "2", "--size", "320", *QUICK, "--json", "-", "--home", home,
        )  # fmt: skip
        assert result.exit_code == 0, result.output
        (cell,) = json.loads(result.stdout)["cells"]
        assert cell["key"] == "scrfd_500m openvino fp32 320x320 batch 2 streams 1"

    def test_compare_two_results(self, tmp_path: Path, home: Path) -> None:
        files = [tmp_path / "a.json", tmp_path / "b.json"]
        for file in files:
            ran = run(
                "bench", "model", "opencv:embedder", "--batch", "1", *QUICK, "--quiet", "--json", file, "--home", home
            )
            assert ran.exit_code == 0, ran.output
        for file, rounds in zip(files, ([2.0, 2.001], [1.0, 1.001]), strict=True):
            document = json.loads(file.read_text())
            document["cells"][0]["images_per_s"]["rounds"] = rounds
            file.write_text(json.dumps(document))
        result = run("bench", "compare", *files)
        assert result.exit_code == 0
        assert "slower: " in result.stdout
        assert run("bench", "compare", *files, "--fail-on-slower").exit_code == 1
        assert json.loads(run("bench", "compare", *files, "--json").stdout)["verdict"] == "slower"
        assert run("bench", "compare", files[0], tmp_path / "none.json").exit_code == 2

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (("--backend", "caffe"), "--backend 'caffe'"),
            (("--batch", "512"), "above 256"),
            (("--size", "big"), "--size 'big'"),
            (("--json", "/nowhere/r.json"), "no folder"),
            (("--backend", "onnxruntime", "--precision", "bf16"), "nothing to measure"),
        ],
    )
    def test_wrong_options(self, options: tuple[str, ...], message: str, home: Path) -> None:
        result = run("bench", "model", "opencv:embedder", *options, "--home", home)
        assert result.exit_code == 2
        assert message in result.output

    def test_unknown_network(self, home: Path) -> None:
        assert run("bench", "model", "nobody", "--home", home).exit_code == 3


class TestPipeline:
    def test_stages_batches_and_timeline(self, tmp_path: Path, astronaut_jpeg: bytes) -> None:
        photo = tmp_path / "a.jpg"
        photo.write_bytes(astronaut_jpeg)
        (tmp_path / "broken.jpg").write_bytes(astronaut_jpeg[:100])
        files = {name: tmp_path / f"r.{name}" for name in ("json", "html", "trace")}
        result = run(
            "bench", "pipeline", photo, tmp_path / "broken.jpg", "--rounds", "2", "--seconds", "0.1",
            "--in-flight", "4", "--json", files["json"], "--html", files["html"], "--timeline", files["trace"],
        )  # fmt: skip
        assert result.exit_code == 0, result.output
        found = json.loads(files["json"].read_text())
        assert (found["photos"], found["failed_photos"], found["faces_per_image"]) == (1, 1, {"1": 1})
        assert list(found["stages"]) == ["load", "decode", "detect", "align", "embed"]
        assert found["stages"]["embed"]["items"] == found["latency"]["count"]
        assert len(found["images_per_s"]["rounds"]) == 2
        trace = json.loads(files["trace"].read_text())["traceEvents"]
        phases = {event["ph"] for event in trace}
        assert {"X", "M", "b", "e", "s", "t", "f"} <= phases
        assert "images/s" in result.stdout
        assert "<svg" in files["html"].read_text()

    def test_no_photo(self, tmp_path: Path) -> None:
        (tmp_path / "broken.jpg").write_bytes(b"x")
        assert run("bench", "pipeline", tmp_path / "broken.jpg").exit_code == 2


class TestServe:
    def test_against_the_null_server(self, tmp_path: Path) -> None:
        page, data = tmp_path / "r.html", tmp_path / "r.json"
        trace = tmp_path / "trace.txt"
        trace.write_text("\n".join(str(index * 0.01) for index in range(20)))
        result = run(
            "bench", "serve", "null", "--users", "1,2", "--rate", "200", "--trace", trace, "--seconds", "0.2",
            "--rounds", "2", "--json", data, "--html", page,
        )  # fmt: skip
        assert result.exit_code == 0, result.output
        loads = {load["key"]: load for load in json.loads(data.read_text())["loads"]}
        assert list(loads) == ["1 user", "2 users", "poisson 200/s", "trace trace.txt"]
        assert loads["poisson 200/s"]["latency"]["count"] == 80
        assert loads["trace trace.txt"]["latency"]["count"] == 40
        assert loads["1 user"]["failed"] == 0
        assert "<svg" in page.read_text()

    def test_refusals(self, tmp_path: Path) -> None:
        assert run("bench", "serve", "http://127.0.0.1:9", "--rate", "1").exit_code == 2  # no photos
        assert run("bench", "serve", "null", "--arrivals", "never").exit_code == 2
        assert run("bench", "serve", "null", "--header", "nothing").exit_code == 2


class TestTune:
    def test_writes_a_profile_with_its_evidence(self, tmp_path: Path) -> None:
        profile = tmp_path / "p.toml"
        result = run(
            "tune", "opencv", "--p99-ms", "60000", "--measurements", "8", "--seconds", "0.2",
            "--faces-per-image", "1,2", "--memory", "64GiB", "--precision", "fp32", "-o", profile,
        )  # fmt: skip
        assert result.exit_code == 0, result.output
        found = read_profile(profile)
        assert found.pack == "opencv"
        assert found.tuned["p99_ms"] == 60000
        assert found.values["runtime.precision"] == "fp32"
        evidence = json.loads((tmp_path / str(found.tuned["evidence"])).read_text())
        assert evidence["kind"] == "tune"
        assert evidence["measurements"] <= 8
        assert evidence["chosen"] in {point["key"] for point in evidence["points"]}
        assert "Pareto front" in profile.with_suffix(".html").read_text()
        shown = run("config", "show", "--profile", profile)
        assert shown.exit_code == 0, shown.output

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (("--rate", "fast"), "--rate 'fast'"),
            (("--memory", "lots"), "--memory 'lots'"),
            (("--faces-per-image", "99"), "above 24"),
            (("-o", "/nowhere/p.toml"), "no folder"),
        ],
    )
    def test_wrong_options(self, options: tuple[str, ...], message: str) -> None:
        result = run("tune", "opencv", "--p99-ms", "50", *options)
        assert result.exit_code == 2
        assert message in result.output

    def test_drawn_photos_have_the_faces_that_were_asked_for(self, home: Path) -> None:
        from facefleet import Engine, Settings

        photos = trial.drawn_photos((0, 1, 4), 6)
        assert len(photos) == 6
        with Engine(Settings(home=str(home))) as engine:
            found = [len(outcome.unwrap()) for outcome in engine.map(photos)]
        assert found == [0, 1, 4, 0, 1, 4]

    def test_a_trial_that_cannot_be(self, home: Path) -> None:
        from facefleet import Settings

        failed = trial.isolated(
            trial.Trial(settings=Settings(home=str(home), pack="nobody"), photos=(b"x",), in_flight=1, seconds=0.1)
        )
        assert "nobody" in failed.error


class TestProfile:
    def test_extract_runs_with_it_and_refuses_it_elsewhere(self, tmp_path: Path, astronaut_jpeg: bytes) -> None:
        photo, profile, table = tmp_path / "a.jpg", tmp_path / "p.toml", tmp_path / "faces.jsonl"
        photo.write_bytes(astronaut_jpeg)
        values = {"runtime.precision": "fp32", "runtime.instances": 1, "batch.embed": 2, "batch.max_images": 3}
        write_profile(profile, {"pack": "opencv"}, values)
        result = run("extract", photo, "-o", table, "--profile", profile, "--verbose")
        assert result.exit_code == 0, result.output
        assert "precision=fp32" in result.output
        assert len(table.read_text().splitlines()) == 1
        shown = json.loads(run("config", "show", "--json", "--profile", profile).stdout)
        assert shown["batch.max_images"] == {"value": 3, "from": f"profile {profile} batch.max_images"}
        profile.write_text(profile.read_text().replace(this_machine().instructions, "0123456789abcdef"))
        refused = run("extract", photo, "-o", tmp_path / "other.jsonl", "--profile", profile)
        assert refused.exit_code == 2
        assert "was made on another machine: instructions: 0123456789abcdef there" in refused.output
        assert not (tmp_path / "other.jsonl").exists()
