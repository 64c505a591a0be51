"""Jobs in this process: how inputs end, what is done again, what is refused."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from facefleet.config import JobSettings
from facefleet.errors import ClosedError, ConfigError, InternalError, JobError, OutputError, OutputExistsError
from facefleet.jobs import JobSummary, Progress, run_job
from facefleet.jobs import output as output_module
from facefleet.jobs.manifest import JobManifest
from facefleet.sinks import ChipsSink
from facefleet.sources import Inputs
from facefleet.types import Outcome
from tests.unit.jobs.fake import FakeEngine, faces_of

SETTINGS = JobSettings(commit_images=5, retries=2)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(40):
        (folder / f"{number:02d}.jpg").write_bytes(b"photo %d" % number)
    return folder


def job(photos: Path | list[str], output: Path, engine: FakeEngine | None = None, **options: object) -> JobSummary:
    paths = photos if isinstance(photos, list) else [str(photos)]
    return run_job(Inputs(paths), output, engine or FakeEngine(), SETTINGS, **options)


def rows(output: Path) -> list[tuple[str, int]]:
    table = pq.read_table(output, columns=["input", "face"])
    return list(zip(table["input"].to_pylist(), table["face"].to_pylist(), strict=True))


def expected_rows(folder: Path) -> list[tuple[str, int]]:
    wanted = []
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        if not data.startswith((b"bad", b"flaky", b"blank")):
            wanted += [(str(path), face) for face in range(len(faces_of("", data)))]
    return wanted


def changed(path: Path, data: bytes) -> None:
    stamp = path.stat().st_mtime_ns
    path.write_bytes(data)
    os.utime(path, ns=(stamp + 10**9, stamp + 10**9))


def test_answers_out_of_order_give_an_output_in_the_order_of_inputs(photos: Path, tmp_path: Path) -> None:
    engine = FakeEngine(window=16)
    summary = job(photos, tmp_path / "o.parquet", engine)
    assert engine.seen != sorted(engine.seen)
    assert rows(tmp_path / "o.parquet") == expected_rows(photos)
    assert summary.faces == len(expected_rows(photos))


def test_output_does_not_depend_on_commits_or_window(photos: Path, tmp_path: Path) -> None:
    outputs = []
    for number, (window, commit) in enumerate([(1, 1000), (16, 1), (5, 7)]):
        output = tmp_path / f"{number}.parquet"
        run_job(Inputs([str(photos)]), output, FakeEngine(window=window), JobSettings(commit_images=commit))
        outputs.append(output.read_bytes())
    assert outputs[0] == outputs[1] == outputs[2]


def test_every_input_ends_in_one_way_and_totals_add_up(photos: Path, tmp_path: Path) -> None:
    """Fault 55."""
    for name, data in {
        "bad": b"bad",
        "never": b"flaky 99",
        "late": b"flaky 2",
        "none": b"blank",
        "also": b"bad",
    }.items():
        (photos / f"{name}.jpg").write_bytes(data)
    seen: list[Progress] = []
    output = tmp_path / "o.jsonl"
    summary = job([str(photos), str(tmp_path / "missing.jpg")], output, progress=seen.append)

    assert (summary.inputs, summary.processed, summary.failed_retryable) == (46, 46, 1)
    assert summary.failed_permanent == 3
    assert summary.errors == {"corrupt_image": 2, "inference": 1, "source_unreadable": 1}
    assert summary.ok + summary.no_face + summary.failed == summary.inputs
    assert summary.no_face >= 1
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert len(lines) == summary.ok + summary.no_face
    assert sum(len(line["faces"]) for line in lines) == summary.faces
    failed = [json.loads(line) for line in Path(str(summary.failures)).read_text().splitlines()]
    assert [(Path(f["input"]).name, f["status"], f["code"]) for f in failed] == [
        ("also.jpg", "failed_permanent", "corrupt_image"),
        ("bad.jpg", "failed_permanent", "corrupt_image"),
        ("never.jpg", "failed_retryable", "inference"),
        ("missing.jpg", "failed_permanent", "source_unreadable"),
    ]
    assert "damaged" in failed[0]["reason"]
    assert (seen[-1].done, seen[-1].failed, seen[-1].faces, seen[-1].kept) == (46, 4, summary.faces, 0)
    assert json.loads(summary.to_json())["errors"] == summary.errors


def test_a_retry_is_counted_once_and_next_run_tries_again(photos: Path, tmp_path: Path) -> None:
    (photos / "x.jpg").write_bytes(b"flaky 4 photo")
    engine, output = FakeEngine(), tmp_path / "o.parquet"
    first = job(photos, output, engine)
    assert (first.failed_retryable, engine.seen.count(str(photos / "x.jpg"))) == (1, 3)
    second = job(photos, output, engine)
    assert (second.failed, second.processed, second.inputs) == (0, 1, 41)
    assert second.failures is None
    assert not output.with_name("o.parquet.failed.jsonl").exists()


def test_an_unchanged_rerun_does_nothing(photos: Path, tmp_path: Path) -> None:
    (photos / "bad.jpg").write_bytes(b"bad")
    output, engine = tmp_path / "o.parquet", FakeEngine()
    first = job(photos, output)
    before = output.stat()
    second = job(photos, output, engine)
    assert engine.seen == []
    assert (output.stat().st_mtime_ns, output.stat().st_ino) == (before.st_mtime_ns, before.st_ino)
    assert second.processed == 0
    assert replace(second, processed=41, seconds=0) == replace(first, seconds=0)


def test_changed_new_and_vanished_inputs(photos: Path, tmp_path: Path) -> None:
    output, engine = tmp_path / "o.parquet", FakeEngine()
    job(photos, output)
    changed(photos / "03.jpg", b"another photo")
    changed(photos / "05.jpg", b"bad now")
    (photos / "00a.jpg").write_bytes(b"new")
    (photos / "07.jpg").unlink()
    summary = job(photos, output, engine)
    assert sorted(Path(name).name for name in engine.seen) == ["00a.jpg", "03.jpg", "05.jpg"]
    assert rows(output) == expected_rows(photos)
    assert (summary.inputs, summary.processed, summary.dropped) == (40, 3, 1)
    fresh = tmp_path / "fresh.parquet"
    job(photos, fresh)
    assert fresh.read_bytes() == output.read_bytes()


def test_only_an_order_that_changed_makes_a_new_output(photos: Path, tmp_path: Path) -> None:
    output, engine = tmp_path / "o.jsonl", FakeEngine()
    names = [str(path) for path in sorted(photos.iterdir())]
    job(names, output)
    job(names[::-1], output, engine)
    assert engine.seen == []
    assert [json.loads(line)["input"] for line in output.read_text().splitlines()] == names[::-1]


def test_an_input_named_twice_counts_once(photos: Path, tmp_path: Path) -> None:
    one = str(photos / "01.jpg")
    summary = job([one, str(photos), f"{photos}/./01.jpg", one], tmp_path / "o.parquet")
    assert (summary.inputs, summary.duplicates) == (40, 3)
    again = job([one, str(photos), one], tmp_path / "o.parquet")
    assert (again.inputs, again.duplicates, again.processed) == (40, 2, 0)


def test_other_settings_are_refused_until_overwritten(photos: Path, tmp_path: Path) -> None:
    """Fault 19: results of another pipeline are never mixed in."""
    output = tmp_path / "o.parquet"
    job(photos, output)
    with pytest.raises(OutputExistsError, match="other settings") as caught:
        job(photos, output, FakeEngine(fingerprint="0" * 64))
    assert "--overwrite" in caught.value.hint
    summary = job(photos, output, FakeEngine(fingerprint="0" * 64), overwrite=True)
    assert summary.processed == 40
    assert pq.read_schema(output).metadata[b"facefleet.fingerprint"] == b"0" * 64


def test_a_file_that_no_job_made_is_left_alone(photos: Path, tmp_path: Path) -> None:
    output = tmp_path / "o.parquet"
    output.write_text("precious")
    with pytest.raises(OutputExistsError, match="not made by a job"):
        job(photos, output)
    assert output.read_text() == "precious"
    assert [path.name for path in tmp_path.glob("o.parquet*")] == ["o.parquet"]


def test_an_output_that_something_else_changed_is_refused(photos: Path, tmp_path: Path) -> None:
    output = tmp_path / "o.jsonl"
    job(photos, output)
    data = output.read_bytes()
    output.write_bytes(data[100:])
    with pytest.raises(OutputExistsError, match="changed by something else"):
        job(photos, output)
    output.write_bytes(data)  # put back: another time of change, the same bytes
    assert job(photos, output).processed == 0


def test_a_deleted_output_is_made_anew(photos: Path, tmp_path: Path) -> None:
    output = tmp_path / "o.parquet"
    job(photos, output)
    data = output.read_bytes()
    output.unlink()
    assert job(photos, output).processed == 40
    assert output.read_bytes() == data


def test_a_lost_part_is_done_again_and_a_strange_one_goes(photos: Path, tmp_path: Path) -> None:
    output, stop = tmp_path / "o.parquet", threading.Event()
    summary = job(photos, output, progress=lambda state: state.done >= 12 and stop.set(), stop=stop)
    assert summary.interrupted
    parts = sorted((tmp_path / "o.parquet.parts").iterdir())
    assert len(parts) > 2
    parts[0].unlink()
    (tmp_path / "o.parquet.parts" / "000099-00000001.parquet").write_bytes(b"cut off")
    again = job(photos, output)
    assert 40 - again.processed == summary.inputs - 5
    assert rows(output) == expected_rows(photos)
    assert not (tmp_path / "o.parquet.parts").exists()


def test_stop_drains_and_leaves_a_state_to_go_on_with(photos: Path, tmp_path: Path) -> None:
    """Fault 54."""
    output, stop, engine = tmp_path / "o.parquet", threading.Event(), FakeEngine(window=8)
    first = job(photos, output, engine, progress=lambda state: state.done >= 10 and stop.set(), stop=stop)
    assert first.interrupted
    assert 10 <= first.processed <= 18
    assert len(engine.seen) == first.processed == first.inputs
    assert not output.exists()
    second = job(photos, output, engine)
    assert not second.interrupted
    assert first.processed + second.processed == 40
    assert sorted(engine.seen) == [str(path) for path in sorted(photos.iterdir())]
    assert rows(output) == expected_rows(photos)


def test_two_jobs_on_one_output(photos: Path, tmp_path: Path) -> None:
    output, refused = tmp_path / "o.parquet", []

    def second(_: Progress) -> None:
        if not refused:
            with pytest.raises(JobError, match=str(os.getpid())) as caught:
                job(photos, output)
            refused.append(caught.value)

    job(photos, output, progress=second)
    assert refused
    assert rows(output) == expected_rows(photos)
    assert not output.with_name("o.parquet.lock").exists()


def test_a_full_disk_is_an_output_error_and_the_job_goes_on_later(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, real, calls = tmp_path / "o.parquet", output_module.sync, []

    def full(path: Path) -> None:
        calls.append(path)
        if len(calls) > 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path)

    monkeypatch.setattr(output_module, "sync", full)
    with pytest.raises(OutputError, match="No space left"):
        job(photos, output)
    monkeypatch.setattr(output_module, "sync", real)
    summary = job(photos, output)
    assert summary.processed < 40
    assert rows(output) == expected_rows(photos)


def test_a_full_disk_under_the_manifest(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output, real = tmp_path / "o.jsonl", JobManifest._many

    def full(self: JobManifest, query: str, values: object) -> None:
        with self._mapped():
            raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(JobManifest, "_many", full)
    with pytest.raises(OutputError, match="disk is full") as caught:
        job(photos, output)
    assert "run the job again" in caught.value.hint
    monkeypatch.setattr(JobManifest, "_many", real)
    assert job(photos, output).inputs == 40


def test_a_folder_that_cannot_be_written(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="file"):
        job(photos, tmp_path / "file" / "o.parquet")


def test_a_manifest_that_is_none(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "o.parquet.manifest.sqlite").write_bytes(b"this is no database at all" * 100)
    with pytest.raises(OutputError, match="not a database"):
        job(photos, tmp_path / "o.parquet")
    assert job(photos, tmp_path / "o.parquet", overwrite=True).inputs == 40


def test_an_unknown_format_names_the_choices(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\.jsonl"):
        job(photos, tmp_path / "faces.csv")


def test_names_that_are_not_utf8_or_hold_line_ends(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    for number, name in enumerate(
        (b"na\xefve.jpg", "\u732b\n\t\"'.jpg".encode(), b"bad\xff.jpg", b"\xf0\x9f\x98\x80.jpg")
    ):
        Path(os.fsdecode(bytes(folder) + b"/" + name)).write_bytes(
            b"bad" if name[:3] == b"bad" else b"photo %d" % number
        )
    for suffix in (".parquet", ".jsonl"):
        summary = job(folder, tmp_path / f"o{suffix}")
        assert (summary.inputs, summary.failed) == (4, 1)
    lines = [json.loads(line)["input"] for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    assert [line.removeprefix(f"{folder}/") for line in lines] == [
        "na\\xefve.jpg",
        "\u732b\n\t\"'.jpg",
        "\U0001f600.jpg",
    ]


def test_pictures_of_a_redone_input_are_replaced(photos: Path, tmp_path: Path) -> None:
    output, chips = tmp_path / "o.parquet", tmp_path / "chips"
    job(photos, output, pictures=[ChipsSink(chips)])
    many = next(path for path in sorted(photos.iterdir()) if len(faces_of("", path.read_bytes())) > 3)
    stem = f"{many.stem}.jpg-"
    assert len(list(chips.glob(f"{stem}*.png"))) > 1
    changed(many, b"blank")
    job(photos, output, pictures=[ChipsSink(chips)])
    assert list(chips.glob(f"{stem}*")) == []
    good = pq.read_table(output)["status"].to_pylist().count("ok")
    assert len(list(chips.iterdir())) == good > 0


def test_pictures_asked_for_later_are_made(photos: Path, tmp_path: Path) -> None:
    output, engine = tmp_path / "o.parquet", FakeEngine()
    first = job(photos, output)
    data = output.read_bytes()
    later = job(photos, output, engine, pictures=[ChipsSink(tmp_path / "chips")])
    assert later.processed == first.ok
    assert any((tmp_path / "chips").iterdir())
    assert output.read_bytes() == data
    assert job(photos, output, engine).processed == 0
    assert job(photos, output, engine, pictures=[ChipsSink(tmp_path / "chips")]).processed == 0


class _NoSecondLook(ChipsSink):
    """Like drawing: reads the picture again, which has gone by then."""

    def write(self, key: str, source: object, faces: object) -> None:
        if key.endswith("04.jpg"):
            from facefleet.decode import Decoder

            Path(key).unlink(missing_ok=True)
            Decoder().read(key)


def test_a_picture_that_cannot_be_read_again_fails_alone(photos: Path, tmp_path: Path) -> None:
    summary = job(photos, tmp_path / "o.parquet", pictures=[_NoSecondLook(tmp_path / "chips")])
    assert (summary.inputs, summary.failed, summary.errors) == (40, 1, {"source_unreadable": 1})


class _Closing(FakeEngine):
    """Closed by somebody after a few answers."""

    def as_ready(self, images, *, chips=False):  # type: ignore[no-untyped-def]
        for count, (index, outcome) in enumerate(super().as_ready(images, chips=chips)):
            if count > 20:
                raise ClosedError("the engine is closed")
            yield index, Outcome(error=ClosedError("the engine was closed")) if count > 15 else outcome


def test_an_engine_closed_under_a_job(photos: Path, tmp_path: Path) -> None:
    output, engine = tmp_path / "o.parquet", FakeEngine()
    with pytest.raises(ClosedError):
        job(photos, output, _Closing())
    job(photos, output, engine)
    assert len(engine.seen) == 24  # the 16 with results stay done
    assert rows(output) == expected_rows(photos)


class _Forgetful(FakeEngine):
    def as_ready(self, images, *, chips=False):  # type: ignore[no-untyped-def]
        yield from list(super().as_ready(images, chips=chips))[1:]


def test_an_answer_that_is_missing_is_noticed(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(InternalError, match="no answer to 1 input"):
        job(photos, tmp_path / "o.parquet", _Forgetful())


def test_failures_with_a_cause_outside_the_file_are_tried_again(photos: Path, tmp_path: Path) -> None:
    link = photos / "link.jpg"
    link.symlink_to(tmp_path / "later.jpg")
    output = tmp_path / "o.parquet"
    assert job(photos, output).failed == 1
    (tmp_path / "later.jpg").write_bytes(b"photo 1")
    summary = job(photos, output)
    assert (summary.failed, summary.processed) == (0, 1)


def test_no_inputs_give_an_empty_table(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    summary = job(tmp_path / "empty", tmp_path / "o.parquet")
    assert summary.inputs == 0
    assert pq.read_table(tmp_path / "o.parquet").num_rows == 0


def test_memory_of_results_is_bounded_by_faces(tmp_path: Path) -> None:
    """Chips are not held until the commit; a picture full of faces commits early."""
    from facefleet.jobs.buffer import Buffer
    from facefleet.jobs.manifest import Entry, Status

    class Output:
        parts = 0

        class manifest:  # noqa: N801
            commit = staticmethod(lambda *_: None)

        def write_part(self, results):  # type: ignore[no-untyped-def]
            assert all(faces.chips is None for _, faces in results)
            self.parts += 1
            return Path("part"), [None] * len(results)

    output = Output()
    buffer = Buffer(output, 1000)  # type: ignore[arg-type]
    entry = Entry("", 0, 0, 0, "", Status.OK)
    for number in range(9):
        faces = faces_of("", b"%d" % number, chips=False, count=1000)
        chips = np.zeros((1000, 1, 1, 3), np.uint8)
        buffer.add(replace(entry, key=str(number), position=number), replace(faces, chips=chips))
        buffer.commit_if_due()
    assert output.parts == 1
