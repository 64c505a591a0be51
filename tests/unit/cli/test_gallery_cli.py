"""``facefleet gallery``, ``search`` and ``cluster`` as people use them."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.conftest import encode, skip_without, smooth_picture
from tests.unit.cli.test_cli import run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, astronaut: np.ndarray) -> Path:
    """People folders: one with three views of the astronaut, one without a face."""
    root = tmp_path_factory.mktemp("people")
    (root / "Eileen").mkdir()
    (root / "Nobody").mkdir()
    for number, shift in enumerate((0, 10, 25)):
        (root / "Eileen" / f"{number}.png").write_bytes(encode(np.roll(astronaut, shift, axis=1), "PNG"))
    (root / "Nobody" / "0.png").write_bytes(encode(smooth_picture(200, 200), "PNG"))
    (root / "stray.png").write_bytes(encode(smooth_picture(64, 64), "PNG"))
    return root


@pytest.fixture
def gallery(tmp_path: Path, folder: Path) -> Path:
    path = tmp_path / "g"
    assert run("gallery", "create", path, "--keep-chips", "--actor", "me").exit_code == 0
    result = run("gallery", "enrol", path, folder)
    assert result.exit_code == 1, result.output
    assert "3 enrolled, 1 not" in result.stderr
    assert "not in a person's folder" in result.stderr
    return path


def test_identify_verify_list_show(gallery: Path, folder: Path, tmp_path: Path) -> None:
    photo = folder / "Eileen" / "0.png"
    sheet = tmp_path / "sheet.png"
    found = run("gallery", "identify", gallery, photo, folder / "Nobody", "--json", "--sheet", sheet)
    assert found.exit_code == 0, found.output
    entries = json.loads(found.stdout)
    assert len(entries) == 1
    assert entries[0]["matches"][0]["name"] == "Eileen"
    assert entries[0]["metric"] == "cosine"
    assert sheet.stat().st_size > 5000
    assert "Eileen" in run("gallery", "identify", gallery, photo).stdout
    assert "unknown" in run("gallery", "identify", gallery, photo, "--threshold", "1.5").stdout
    assert "unknown" in run("gallery", "identify", gallery, photo, "--where", "team=red").stdout
    assert run("gallery", "identify", gallery, tmp_path / "nothing.png").exit_code == 2
    verified = json.loads(run("gallery", "verify", gallery, "Eileen", photo, "--json").stdout)
    assert verified["same"] is True
    assert run("gallery", "verify", gallery, "1", photo).stdout.startswith("is Eileen: cosine")
    assert run("gallery", "verify", gallery, "1", folder / "Nobody" / "0.png").exit_code == 1
    assert run("gallery", "verify", gallery, "Bert", photo).exit_code == 3
    people = json.loads(run("gallery", "list", gallery, "--json").stdout)
    assert [(person["id"], person["name"], person["samples"]) for person in people] == [(1, "Eileen", 3)]
    assert "Eileen" in run("gallery", "list", gallery).stdout
    shown = json.loads(run("gallery", "show", gallery, "1", "--json").stdout)
    assert len(shown["samples"]) == 3
    assert shown["history"][0]["action"] == "enrol"
    assert str(gallery) in run("gallery", "list", gallery.parent).stdout


def test_update_erase_export_import_check(gallery: Path, folder: Path, tmp_path: Path) -> None:
    assert (
        run("gallery", "update", gallery, "Eileen", "--name", "E. C.", "--metadata", '{"team": "red"}').exit_code == 0
    )
    assert run("gallery", "update", gallery, "1").exit_code == 2
    assert run("gallery", "update", gallery, "1", "--metadata", "[1]").exit_code == 2
    assert json.loads(run("gallery", "list", gallery, "--where", "team=red", "--json").stdout)[0]["name"] == "E. C."
    again = run("gallery", "enrol", gallery, folder / "Eileen" / "0.png", "--name", "Other", "--json")
    assert again.exit_code == 0
    assert any("E. C." in warning for warning in json.loads(again.stdout)[0]["warnings"])
    assert run("gallery", "update", gallery, "1", "--merge", "Other").exit_code == 0
    assert run("gallery", "export", gallery, tmp_path / "g.parquet").exit_code == 0
    assert run("gallery", "import", tmp_path / "copy", tmp_path / "g.parquet").exit_code == 0
    erased = run("gallery", "erase", gallery, "E. C.")
    assert erased.exit_code == 0, erased.output
    assert "nothing left" in erased.stderr
    assert run("gallery", "erase", gallery, "E. C.").exit_code == 3
    assert json.loads(run("gallery", "list", gallery, "--json").stdout) == []
    assert "stay so" in run("gallery", "import", gallery, tmp_path / "g.parquet").stderr
    for path in (gallery, tmp_path / "copy"):
        assert run("gallery", "check", path).exit_code == 0
    stats = json.loads(run("gallery", "stats", tmp_path / "copy", "--json").stdout)
    assert (stats["people"], stats["samples"], stats["chips"]) == (1, 4, 0)
    assert run("gallery", "check", tmp_path).exit_code == 3


def test_csv(tmp_path: Path, folder: Path) -> None:
    table = tmp_path / "people.csv"
    picture = folder / "Eileen" / "1.png"
    table.write_text(f"name,path,team\nEileen,{picture},red\nBert,missing.png,blue\n")
    assert run("gallery", "create", tmp_path / "g").exit_code == 0
    result = run("gallery", "enrol", tmp_path / "g", table)
    assert result.exit_code == 1
    assert "missing.png" in result.stderr
    assert json.loads(run("gallery", "list", tmp_path / "g", "--json").stdout)[0]["metadata"] == {"team": "red"}
    table.write_text("who,where\na,b\n")
    assert run("gallery", "enrol", tmp_path / "g", table).exit_code == 2
    assert run("gallery", "enrol", tmp_path / "g", picture).exit_code == 2, "whose is it?"


def test_calibrate_needs_people(gallery: Path) -> None:
    result = run("gallery", "calibrate", gallery)
    assert result.exit_code == 3
    assert "two people" in result.stderr


def test_other_options_are_another_pipeline(gallery: Path, folder: Path) -> None:
    photo = folder / "Eileen" / "0.png"
    result = run("gallery", "identify", gallery, photo, "--set", "embed.flip=true")
    assert result.exit_code == 3
    assert "reembed" in result.stderr
    moved = run("gallery", "reembed", gallery, "--set", "embed.flip=true", "--json")
    assert moved.exit_code == 0, moved.output
    assert json.loads(moved.stdout)["done"] == 3
    found = json.loads(run("gallery", "identify", gallery, photo, "--json").stdout)
    assert found[0]["matches"][0]["score"] == pytest.approx(1, abs=1e-3), "it opens with its own options"


def test_search_and_cluster(tmp_path: Path, folder: Path) -> None:
    if importlib.util.find_spec("sklearn") is None:
        skip_without("sklearn", "scikit-learn is not installed")
    faces = tmp_path / "faces.parquet"
    assert run("extract", folder, "-o", faces).exit_code == 0
    photo = folder / "Eileen" / "0.png"
    found = run("search", faces, "--query", photo, "--json", "--sheet", tmp_path / "s.png")
    assert found.exit_code == 0, found.output
    hits = json.loads(found.stdout)[0]["found"]
    assert Path(hits[0]["input"]).name == "0.png"
    assert len(hits) == 3
    assert (tmp_path / "s.png").stat().st_size > 5000
    assert run("search", faces, "--query", folder / "Nobody" / "0.png").exit_code == 1
    assert run("search", faces, "--query", photo, "--set", "embed.flip=true").exit_code == 3
    out = tmp_path / "clusters.parquet"
    grouped = run("cluster", faces, "-o", out, "--sheets", tmp_path / "sheets", "--json")
    assert grouped.exit_code == 0, grouped.output
    assert json.loads(grouped.stdout)["clusters"][0]["faces"] == 3
    assert pq.read_table(out)["cluster"].to_pylist() == [0, 0, 0]
    assert (tmp_path / "sheets" / "cluster-0000.png").exists()
    assert run("cluster", faces, "--method", "x").exit_code == 2
    assert run("cluster", tmp_path / "none.parquet").exit_code == 3


def test_a_job_with_a_cache(tmp_path: Path, folder: Path) -> None:
    cache = tmp_path / "cache.sqlite"
    first = run("extract", folder, "-o", tmp_path / "a.parquet", "--set", f"cache.path={cache}")
    assert first.exit_code == 0, first.output
    assert "cache: 0 hits" in first.stderr
    second = run("extract", folder, "-o", tmp_path / "b.parquet", "--set", f"cache.path={cache}")
    assert "cache: 5 hits" in second.stderr
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
