"""Kills and crowds, in small: `benchmarks/gallery_crash.py` does the same 500 times, and for a minute."""

from __future__ import annotations

from pathlib import Path

from gallery_crash import readers_and_writer, rounds


def test_killed_again_and_again(tmp_path: Path) -> None:
    result = rounds(tmp_path / "g", 6, seed=5)
    assert result["acknowledged"] > 0
    assert result["rounds"] == 6


def test_one_writer_and_readers(tmp_path: Path) -> None:
    result = readers_and_writer(tmp_path / "g", 3.0, 3)
    assert result["writes"] > 0
    assert result["searches"] > 0
