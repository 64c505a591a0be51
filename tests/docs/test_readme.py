"""The README's Python, run as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def blocks(file: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / file).read_text(), re.DOTALL)


def test_python(
    tmp_path: Path, astronaut_jpeg: bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("photo.jpg", "a.jpg", "b.jpg"):
        (tmp_path / name).write_bytes(astronaut_jpeg)
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8")
    monkeypatch.chdir(tmp_path)
    engine, switch = blocks("README.md", "python")
    exec(compile(engine, "README", "exec"), {})
    out = capsys.readouterr().out
    assert "(128,)" in out
    assert out.count("1 faces") == 2
    assert "broken.jpg" in out
    import cv2
    import numpy as np

    image = cv2.imdecode(np.frombuffer(astronaut_jpeg, np.uint8), cv2.IMREAD_COLOR)
    names: dict[str, object] = {"img_bgr": image}
    exec(compile(switch.replace('"buffalo_l"', '"opencv"'), "README", "exec"), names)
    assert len(names["faces"]) == 1  # type: ignore[arg-type]


def test_pack_of_ones_own() -> None:
    from facefleet.packs import parse

    (manifest,) = blocks("docs/packs.md", "toml")
    assert parse(manifest, origin="docs").name == "mine"


def test_settings_file(tmp_path: Path) -> None:
    from facefleet.config import load_settings

    (text,) = blocks("docs/cli.md", "toml")
    file = tmp_path / "facefleet.toml"
    file.write_text(text)
    assert load_settings(env={}, toml=file).settings.detect.sizes == (640, 128)


def test_links_lead_somewhere() -> None:
    for file in ROOT.glob("**/*.md"):
        if any(part.startswith(".") or part in ("out", "node_modules") for part in file.relative_to(ROOT).parts):
            continue
        for target in re.findall(r"\]\(([^)#:]+)\)", file.read_text()):
            assert (file.parent / target).exists(), f"{file.name}: {target}"
