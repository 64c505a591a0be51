from __future__ import annotations

from pathlib import Path

import pytest

from facefleet.errors import ConfigError
from facefleet.telemetry.recording import Look, StatusRecorder, read_recording
from facefleet.telemetry.status import Status, WorkerLoad

LOOKS = [
    Look(100.0 + second, [Status(7, 90.0, 100.0 + second, "opencv", "local", 10 * second, 20 * second, {"embed": 3}, (
        WorkerLoad("cpu", "photo", "ready", 1, 2 * second, 10 * second, 0.5 * second, 0, 1, 2, 0.5, None),
    ))])
    for second in range(3)
]  # fmt: skip


def written(path: Path, looks: list[Look]) -> Path:
    with StatusRecorder(path) as recorder:
        for look in looks:
            recorder.write(look)
    return path


def test_what_is_recorded_is_read(tmp_path: Path) -> None:
    assert read_recording(written(tmp_path / "r.jsonl", LOOKS)) == LOOKS


def test_a_recording_goes_on(tmp_path: Path) -> None:
    path = written(tmp_path / "r.jsonl", LOOKS[:1])
    assert read_recording(written(path, LOOKS[1:])) == LOOKS


def test_cut_off_in_its_last_line(tmp_path: Path) -> None:
    path = written(tmp_path / "r.jsonl", LOOKS)
    path.write_text(path.read_text()[:-40])
    assert read_recording(path) == LOOKS[:2]


@pytest.mark.parametrize("text", ["", "{}\n", "x\n", '{"at": 1, "engines": [{}]}\n'])
def test_other_files(tmp_path: Path, text: str) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"r\.jsonl"):
        read_recording(path)


def test_unreadable_and_unwritable(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_recording(tmp_path / "none")
    with pytest.raises(ConfigError, match="cannot be written"), StatusRecorder(tmp_path / "none" / "r"):
        pass
