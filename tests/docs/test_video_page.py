"""The Python of docs/how-to/video.md, run as it stands."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.conftest import need_video
from tests.docs.test_readme import blocks
from tests.unit.sources.video.make import write_video


def test_the_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, astronaut: np.ndarray, capsys: pytest.CaptureFixture[str]
) -> None:
    need_video()
    monkeypatch.chdir(tmp_path)
    write_video(tmp_path / "talk.mp4", [np.roll(astronaut, 2 * number, axis=1) for number in range(30)])
    (code,) = blocks("docs/how-to/video.md", "python")
    exec(compile(code, "docs/how-to/video.md", "exec"), {})
    assert capsys.readouterr().out == "person 1: 0.00 to 1.00 s, 6 faces\n"
    assert (tmp_path / "out/talk/redacted.mp4").exists()
