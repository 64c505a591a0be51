"""The files of a job beside its output: parts, manifest, lock, list of failures; and how the output is put together.

Owns names and atomicity. At any moment after a kill, `recover` brings output and manifest into step.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from facefleet.errors import JobError, OutputError
from facefleet.jobs.manifest import JobManifest
from facefleet.sinks import Span, Table
from facefleet.types import Faces


class JobOutput:
    """The output of a job and what lies beside it.

    Args:
        path: The table that is made.
        table: Its format.
        settings: What results depend on.
        overwrite: Whether an output of other settings, and everything beside it, is deleted first.

    Raises:
        JobError: Another job is writing this output.
        OutputExistsError: It was made with other settings.
        OutputError: It cannot be written.
    """

    def __init__(self, path: Path, table: Table, settings: str, *, overwrite: bool) -> None:
        self.path = path
        self.failures_path = path.with_name(f"{path.name}.failed.jsonl")
        self._table = table
        self._folder = path.with_name(f"{path.name}.parts")
        self._parts = 0
        with _disk(path), contextlib.ExitStack() as stack:
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(_exclusive(path.with_name(f"{path.name}.lock")))
            manifest_path = path.with_name(f"{path.name}.manifest.sqlite")
            if overwrite:
                self._delete(manifest_path)
            elif path.exists() and not manifest_path.exists():
                raise OutputError(f"{path}: exists and was not made by a job", hint="use --overwrite, or another name")
            self._folder.mkdir(exist_ok=True)
            self.manifest = JobManifest(manifest_path, settings)
            stack.callback(self.manifest.close)
            self._recover()
            self._resources = stack.pop_all()

    def close(self) -> None:
        """Let the output go; an empty folder of parts is removed."""
        with contextlib.suppress(OSError):
            self._folder.rmdir()
        self._resources.close()

    def write_part(self, results: Sequence[tuple[str, Faces]]) -> tuple[Path, list[Span]]:
        """Write results durably; they count once the manifest names the part."""
        self._parts += 1
        part = self._folder / f"{self.manifest.run:06d}-{self._parts:08d}{self.path.suffix}"
        with _disk(part):
            spans = self._table.write_part(part, results)
            _sync(part)
        return part, spans

    def merge(self) -> None:
        """Put the output together from what the manifest knows, in order, and replace the old one in one step."""
        if self.path.exists() and not self.manifest.order_changed():
            return
        temporary = self.path.with_name(f"{self.path.name}.tmp")
        keys: list[str] = []
        with _disk(temporary):

            def pieces() -> Iterator[tuple[Path, Span]]:
                for key, file, span in self.manifest.spans(self.path, self._folder):
                    keys.append(key)
                    yield file, span

            def moved() -> Iterator[tuple[str, Span]]:
                for span in self._table.merge(temporary, pieces()):
                    yield keys.pop(0), span

            self.manifest.plan_move(moved())
            _sync(temporary)
            self.manifest.begin_move(_digest(temporary))
            self._finish_move(temporary)

    def write_failures(self) -> Path | None:
        """List failed inputs, one JSON object a line; no file where there are none."""
        temporary = self.failures_path.with_name(f"{self.failures_path.name}.tmp")
        any_failed = False
        with _disk(temporary), temporary.open("w", encoding="utf-8", errors="surrogateescape") as stream:
            for key, status, code, reason in self.manifest.failures():
                any_failed = True
                entry = {"input": key, "status": status, "code": code, "reason": reason}
                stream.write(json.dumps(entry, ensure_ascii=False) + "\n")
        if not any_failed:
            temporary.unlink()
            self.failures_path.unlink(missing_ok=True)
            return None
        _sync(temporary)
        temporary.replace(self.failures_path)
        return self.failures_path

    def _recover(self) -> None:
        """Finish or forget a merge that was cut off, and delete parts that no commit names."""
        temporary = self.path.with_name(f"{self.path.name}.tmp")
        moving = self.manifest.meta("moving")
        if moving is not None:
            if self.path.exists() and _digest(self.path) == moving:
                self.manifest.finish_move()
            elif temporary.exists() and _digest(temporary) == moving:
                self._finish_move(temporary)
            else:
                self.manifest.cancel_move()
        temporary.unlink(missing_ok=True)
        named = self.manifest.part_names()
        for part in self._folder.iterdir():
            if part.name not in named:
                part.unlink()

    def _finish_move(self, temporary: Path) -> None:
        old = self.manifest.part_names()
        temporary.replace(self.path)
        _sync_folder(self.path.parent)
        self.manifest.finish_move()
        for name in old:
            (self._folder / name).unlink(missing_ok=True)

    def _delete(self, manifest_path: Path) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        for suffix in ("", "-wal", "-shm"):
            manifest_path.with_name(manifest_path.name + suffix).unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)
        self.failures_path.unlink(missing_ok=True)


@contextlib.contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    """Hold a lock file that dies with the process."""
    with path.open("a+") as stream:
        try:
            import fcntl

            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # Windows: nothing keeps two jobs apart
            pass
        except BlockingIOError as error:
            stream.seek(0)
            raise JobError(
                f"another job (process {stream.read().strip() or 'unknown'}) is writing this output",
                hint="wait for it, or write to another file",
            ) from error
        stream.truncate(0)
        stream.write(str(os.getpid()))
        stream.flush()
        yield


@contextlib.contextmanager
def _disk(path: Path) -> Iterator[None]:
    """Map what the file system says."""
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"{path}: {error.strerror or error}", hint="check permissions and free space, then run the job again"
        ) from error


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sync(path: Path) -> None:
    with path.open("rb+") as stream:
        os.fsync(stream.fileno())
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
