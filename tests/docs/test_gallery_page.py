"""The Python of docs/gallery.md, run as it stands."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pytest

from tests.docs.test_readme import blocks


def test_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("docs/gallery.md", "python")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "docs/gallery.md", "exec"), {})
    said = [line.rpartition("  # ")[2] for line in code.splitlines() if "print(" in line]
    assert printed.getvalue().splitlines() == said
