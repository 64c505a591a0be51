"""Files that are whole and on the disk, or not there."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from facefleet.errors import OutputError


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Map what the file system says while `path` is worked on to `OutputError`."""
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"{path}: {error.strerror or error}", hint="check permissions and free space, then run the job again"
        ) from error


def sync(path: Path) -> None:
    """Wait until a new file and its name are on the disk."""
    with path.open("rb+") as stream:
        os.fsync(stream.fileno())
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def put(temporary: Path, path: Path) -> None:
    """Give a file, synced already, its name, replacing what had it."""
    temporary.replace(path)
    sync_folder(path.parent)


def digest(path: Path) -> str:
    """sha256 of a file, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def stamp(path: Path) -> str:
    """Size and time of change: equal as long as nobody writes to the file."""
    stat = path.stat()
    return f"{stat.st_size}:{stat.st_mtime_ns}"
