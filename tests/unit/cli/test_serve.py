"""What `facefleet serve` makes of settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from facefleet.cli.serve import stepping_back
from facefleet.config import load_settings


@pytest.mark.parametrize("value", ["0", "7"])
def test_who_sets_the_niceness(value: str, tmp_path: Path) -> None:
    file = tmp_path / "facefleet.toml"
    file.write_text(f"[runtime]\nniceness = {value}\n")
    empty = tmp_path / "empty.toml"
    empty.write_text("")
    for loaded in (
        load_settings(cli={"runtime.niceness": value}, env={}, toml=empty),
        load_settings(env={"FACEFLEET_RUNTIME_NICENESS": value}, toml=empty),
        load_settings(env={}, toml=file),
    ):
        assert stepping_back(loaded).runtime.niceness == int(value)


def test_an_engine_steps_back_where_nobody_says_how_far(tmp_path: Path) -> None:
    empty = tmp_path / "empty.toml"
    empty.write_text("")
    loaded = load_settings(cli={"pack": "opencv"}, env={}, toml=empty)
    assert loaded.settings.runtime.niceness == 0
    found = stepping_back(loaded)
    assert (found.runtime.niceness, found.pack) == (5, "opencv")
