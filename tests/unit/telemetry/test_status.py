"""Status files: written whole, read with tolerance, gone with their process."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from facefleet.errors import ConfigError
from facefleet.telemetry.status import (
    Status,
    StatusWriter,
    WorkerLoad,
    rates,
    read_statuses,
    status_folder,
)

WORKER = WorkerLoad("cpu:0", "photo", "ready", 2, 10, 80, 4.5, 1, 1 << 30, 8 << 30, 0.5, 61.0)


def a_status(**changes: object) -> Status:
    now = time.time()
    status = Status(os.getpid(), now - 60, now, "default", "data", 80, 120, {"photo": 3}, (WORKER,))
    return replace(status, **changes)  # type: ignore[arg-type]


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "facefleet"


class TestFolder:
    def test_of_the_session(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
        assert status_folder() == tmp_path / "facefleet"

    @pytest.mark.parametrize("runtime", [None, "/nowhere"])
    def test_of_the_user(self, runtime: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
        monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
        if runtime:
            monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        assert status_folder() == tmp_path / f"facefleet-{os.getuid()}"
        writer = StatusWriter()
        assert writer.path.parent == status_folder()
        assert stat.S_IMODE(status_folder().stat().st_mode) == 0o700
        writer.close()

    def test_open_to_others(self, folder: Path) -> None:
        folder.mkdir()
        folder.chmod(0o777)
        with pytest.raises(ConfigError, match="others") as caught:
            StatusWriter(folder)
        assert "XDG_RUNTIME_DIR" in caught.value.hint
        (folder / f"{os.getpid()}.json").write_text(json.dumps(a_status().as_json()))
        assert read_statuses(folder) == []

    def test_link_and_file_in_its_place(self, folder: Path, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").mkdir()
        folder.symlink_to(tmp_path / "elsewhere")
        with pytest.raises(ConfigError):
            StatusWriter(folder)
        folder.unlink()
        folder.write_text("")
        with pytest.raises(ConfigError):
            StatusWriter(folder)


class TestWriting:
    def test_what_is_written_is_read(self, folder: Path) -> None:
        writer = StatusWriter(folder)
        status = a_status()
        assert writer.write(status)
        assert writer.path == folder / f"{os.getpid()}.json"
        assert read_statuses(folder) == [status]
        assert writer.write(later := replace(status, images=81, time=status.time + 1))
        assert read_statuses(folder) == [later]
        assert names(folder) == {writer.path.name}
        writer.close()
        writer.close()
        assert names(folder) == set()

    def test_format(self, folder: Path) -> None:
        writer = StatusWriter(folder)
        writer.write(a_status())
        data = json.loads(writer.path.read_text())
        assert list(data) == ["pid", "started", "time", "pack", "placement", "images", "faces", "queue", "workers"]
        assert data["queue"] == {"photo": 3}
        assert data["workers"] == [
            {
                "name": "cpu:0",
                "role": "photo",
                "state": "ready",
                "in_flight": 2,
                "batches": 10,
                "items": 80,
                "busy_s": 4.5,
                "restarts": 1,
                "memory_bytes": 1 << 30,
                "memory_total_bytes": 8 << 30,
                "utilization": 0.5,
                "temperature": 61.0,
            }
        ]
        writer.close()

    def test_engines_of_one_process(self, folder: Path) -> None:
        writers = [StatusWriter(folder) for _ in range(3)]
        for number, writer in enumerate(writers):
            writer.write(a_status(images=number, started=float(number)))
        assert [status.images for status in read_statuses(folder)] == [0, 1, 2]
        writers[1].close()
        again = StatusWriter(folder)
        assert again.path == writers[1].path
        for writer in (*writers, again):
            writer.close()
        assert read_statuses(folder) == []

    def test_what_cannot_be_written_is_said_once(self, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
        writer = StatusWriter(folder)
        folder.rmdir()
        with caplog.at_level("WARNING", "facefleet"):
            assert not writer.write(a_status())
            assert not writer.write(a_status())
        assert len(caplog.records) == 1
        folder.mkdir(mode=0o700)
        assert writer.write(a_status())
        writer.close()

    def test_by_itself_until_closed(self, folder: Path) -> None:
        writer = StatusWriter(folder)
        others = set(threading.enumerate())  # engines that other tests share write, too
        count = 0
        enough = threading.Event()

        def read() -> Status:
            nonlocal count
            count += 1
            if count == 2:
                raise ZeroDivisionError("a bug in what is read")
            if count > 4:
                enough.set()
            return a_status(images=count)

        writer.start(read, interval_s=0.001)
        assert enough.wait(60)
        assert read_statuses(folder)[0].images >= 3
        writer.close()
        assert names(folder) == set()
        assert {thread for thread in threading.enumerate() if thread.name == "facefleet-status"} <= others

    def test_a_reader_never_sees_half_a_file(self, folder: Path) -> None:
        writer = StatusWriter(folder)
        workers = tuple(replace(WORKER, name=f"cpu:{number}") for number in range(200))
        writer.write(a_status(workers=workers))
        writer.start(lambda: a_status(workers=workers), interval_s=0.0)
        for _ in range(100):
            (status,) = read_statuses(folder)
            assert len(status.workers) == 200
        writer.close()


class TestReading:
    def test_dead_processes_are_cleared_away(self, folder: Path) -> None:
        ended = subprocess.Popen([sys.executable, "-c", ""])
        ended.wait()
        folder.mkdir(mode=0o700)
        text = json.dumps(a_status(pid=ended.pid).as_json())
        (folder / f"{ended.pid}.json").write_text(text)
        (folder / f"{ended.pid}-2.json").write_text(text[:20])
        (folder / f".{ended.pid}.json.new").write_text("")
        assert read_statuses(folder) == []
        assert names(folder) == set()

    def test_number_used_again(self, folder: Path) -> None:
        """The process of that number started after the file was written: the file is another's."""
        folder.mkdir(mode=0o700)
        path = folder / f"{os.getpid()}.json"
        path.write_text(json.dumps(a_status(time=time.time() - 1e6, started=0.0).as_json()))
        assert read_statuses(folder) == []
        assert not path.exists()

    def test_foreign_and_damaged_files_are_left_out(self, folder: Path) -> None:
        folder.mkdir(mode=0o700)
        whole = a_status().as_json()
        own = f"{os.getpid()}"
        (folder / f"{own}.json").write_text(json.dumps(whole))
        damaged = {
            "notes.txt": "hello",
            "x.json": "{}",
            f"{own}-2.json": json.dumps(whole)[:-30],
            f"{own}-3.json": "[]",
            f"{own}-4.json": json.dumps({**whole, "workers": [{"name": "cpu:0"}]}),
            f"{own}-5.json": json.dumps({**whole, "pid": 1}),
            f"{own}-6.json": "[" * 100_000,
            f"{own}-7.json": json.dumps({**whole, "queue": [1]}),
            f".{own}.json.new": json.dumps(whole),
        }
        for name, text in damaged.items():
            (folder / name).write_text(text)
        (folder / f"{own}-8.json").write_bytes(b"\xff\xfe")
        (folder / f"{own}-9.json").mkdir()
        (folder / "99999999999999.json").write_text("{}")
        assert read_statuses(folder) == [a_status(time=whole["time"], started=whole["started"])]
        assert damaged.keys() <= names(folder)

    def test_no_folder(self, folder: Path) -> None:
        assert read_statuses(folder) == []
        assert not folder.exists()


class TestRates:
    def test_between_two_looks(self) -> None:
        before = a_status()
        later = replace(WORKER, batches=15, items=120, busy_s=6.0)
        now = replace(before, time=before.time + 2, images=180, faces=300, workers=(later,))
        found = rates(before, now)
        assert (found.images_per_s, found.faces_per_s) == (pytest.approx(50), pytest.approx(90))
        assert found.workers[0].items_per_s == pytest.approx(20)
        assert found.workers[0].mean_batch == 8
        assert found.workers[0].busy == pytest.approx(0.75)

    def test_since_the_start(self) -> None:
        now = a_status()
        for before in (None, now, a_status(started=1.0)):
            found = rates(before, now)
            assert found.images_per_s == pytest.approx(80 / 60)
            assert found.workers[0].mean_batch == 8

    def test_idle_restarted_and_new_workers(self) -> None:
        before = a_status()
        new = WorkerLoad("cpu:1", "embed", "starting", items=5, batches=1)
        now = replace(before, time=before.time + 1, workers=(replace(WORKER, items=2, batches=1, busy_s=0.1), new))
        first, second = rates(before, now).workers
        assert (first.items_per_s, first.mean_batch, first.busy) == (0, None, 0)
        assert (second.items_per_s, second.mean_batch) == (pytest.approx(5), 5)
