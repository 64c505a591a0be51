"""The files of a job beside its output: parts, manifest, lock, list of failures; and how the output is put together.

Owns names and atomicity. At any moment after a kill, opening it again brings output and manifest into step.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from facefleet.errors import OutputExistsError
from facefleet.jobs.durable import digest, disk_errors, put, stamp, sync
from facefleet.jobs.lock import exclusive
from facefleet.jobs.manifest import JobManifest
from facefleet.sinks import Span, Table
from facefleet.types import Faces


class JobOutput:
    """The output of a job and what lies beside it.

    Args:
        path: The table that is made.
        table: Its format.
        settings: What results depend on.
        overwrite: Whether an output that is there, and everything beside it, is deleted first.

    Raises:
        JobError: Another job is writing this output.
        OutputExistsError: It was made with other settings, changed since, or not made by a job at all.
        OutputError: It cannot be written.
    """

    def __init__(self, path: Path, table: Table, settings: str, *, overwrite: bool) -> None:
        self.path = path
        self.failures_path = path.with_name(f"{path.name}.failed.jsonl")
        self._temporary = path.with_name(f"{path.name}.tmp")
        self._table = table
        self._folder = path.with_name(f"{path.name}.parts")
        self._parts = 0
        with disk_errors(path), contextlib.ExitStack() as stack:
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(exclusive(path.with_name(f"{path.name}.lock")))
            manifest_path = path.with_name(f"{path.name}.manifest.sqlite")
            if overwrite:
                self._delete(manifest_path)
            elif path.exists() and not manifest_path.exists():
                raise OutputExistsError(
                    f"{path}: exists and was not made by a job", hint="use --overwrite, or another name"
                )
            self.manifest = JobManifest(manifest_path, settings)
            stack.callback(self.manifest.close)
            self._folder.mkdir(exist_ok=True)
            stack.callback(self._tidy)
            self._recover()
            self._resources = stack.pop_all()

    def close(self) -> None:
        """Let the output go; an empty folder of parts is removed."""
        with disk_errors(self.path):
            self._resources.close()

    def write_part(self, results: Sequence[tuple[str, Faces]]) -> tuple[Path, list[Span]]:
        """Write results durably; they count once the manifest names the part."""
        self._parts += 1
        part = self._folder / f"{self.manifest.run:06d}-{self._parts:08d}{self.path.suffix}"
        with disk_errors(part):
            spans = self._table.write_part(part, results)
            sync(part)
        return part, spans

    def merge(self) -> int:
        """Put the output together from what the manifest knows, in order, and replace the old one in one step.

        Returns:
            How many inputs of runs before were not named in this one, and are not in the output any more.
        """
        if self.path.exists() and not self.manifest.order_changed():
            return self.manifest.forget_unseen()
        keys: list[str] = []  # of the pieces that the table has asked for and not written yet

        def pieces() -> Iterator[tuple[Path, Span]]:
            for key, file, span in self.manifest.spans(self.path, self._folder):
                keys.append(key)
                yield file, span

        def moved() -> Iterator[tuple[str, Span]]:
            for span in self._table.merge(self._temporary, pieces()):
                yield keys.pop(0), span

        with disk_errors(self._temporary):
            self.manifest.plan_move(moved())
            sync(self._temporary)
            self.manifest.begin_move(digest(self._temporary))
            dropped = self.manifest.forget_unseen()
            self._finish_move()
        return dropped

    def write_failures(self) -> Path | None:
        """List failed inputs, one JSON object a line; no file where there are none."""
        temporary = self.failures_path.with_name(f"{self.failures_path.name}.tmp")
        any_failed = False
        with disk_errors(temporary):
            with temporary.open("w", encoding="utf-8") as stream:
                for key, status, code, reason in self.manifest.failures():
                    any_failed = True
                    entry = {"input": key, "status": status, "code": code, "reason": reason}
                    stream.write(json.dumps(entry, ensure_ascii=False) + "\n")
            if any_failed:
                sync(temporary)
                put(temporary, self.failures_path)
                return self.failures_path
            temporary.unlink()
            self.failures_path.unlink(missing_ok=True)
            return None

    def _recover(self) -> None:
        """Finish or forget a merge that was cut off, delete what no commit names, forget what is gone."""
        moving = self.manifest.meta("moving")
        if moving is not None:
            if self._temporary.exists() and digest(self._temporary) == moving:
                self._finish_move()
            elif self.path.exists() and digest(self.path) == moving:
                self.manifest.finish_move(stamp(self.path))
            else:
                self.manifest.cancel_move()
        self._temporary.unlink(missing_ok=True)
        self._check_output()
        named, there = self.manifest.part_names(), {part.name for part in self._folder.iterdir()}
        for name in there - named:
            (self._folder / name).unlink()
        for name in named - there:
            self.manifest.forget_part(name)

    def _check_output(self) -> None:
        """What the manifest knows about places in the output holds for the file that it was, and for no other."""
        remembered = self.manifest.meta("output_stamp")
        if not self.path.exists():
            self.manifest.forget_output()
        elif remembered is None or (
            stamp(self.path) != remembered and digest(self.path) != self.manifest.meta("output_sha256")
        ):
            raise OutputExistsError(
                f"{self.path}: was changed by something else since a job made it",
                hint="move it away or use --overwrite: all of it has to be made anew",
            )

    def _finish_move(self) -> None:
        old = self.manifest.part_names()
        put(self._temporary, self.path)
        self.manifest.finish_move(stamp(self.path))
        for name in old:
            (self._folder / name).unlink(missing_ok=True)

    def _tidy(self) -> None:
        with contextlib.suppress(OSError):
            self._folder.rmdir()  # only if it is empty

    def _delete(self, manifest_path: Path) -> None:
        if self._folder.exists():
            shutil.rmtree(self._folder)
        self._temporary.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)
        self.failures_path.unlink(missing_ok=True)
        for suffix in ("-wal", "-shm", ""):
            manifest_path.with_name(manifest_path.name + suffix).unlink(missing_ok=True)
