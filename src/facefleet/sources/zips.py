"""Members of zip archives. They are read in the engine's threads, straight from the archive, when their turn comes."""

from __future__ import annotations

import struct
import threading
import weakref
import zipfile
import zlib
from collections.abc import Callable, Iterator
from lzma import LZMAError
from pathlib import Path

from facefleet.errors import SourceError
from facefleet.sources.choice import HEAD_BYTES, Choice
from facefleet.sources.item import SourceItem, failing_item, printable
from facefleet.types import DeferredImage

BROKEN = (zipfile.BadZipFile, zlib.error, LZMAError, struct.error, RuntimeError, OSError, EOFError, ValueError)
"""What reading a damaged or encrypted zip archive raises."""


class _Shared:
    """An open archive that threads share; closed when its last member has been let go."""

    def __init__(self, path: str) -> None:
        self._archive = zipfile.ZipFile(path)
        self._lock = threading.Lock()  # ZipFile counts its readers without one

    def members(self) -> list[zipfile.ZipInfo]:
        return self._archive.infolist()

    def read(self, info: zipfile.ZipInfo, size: int = -1) -> bytes:
        with self._lock:
            stream = self._archive.open(info)
        try:
            return stream.read(size)
        finally:
            with self._lock:
                stream.close()


def zip_items(path: str, choice: Choice, max_member_bytes: int) -> Iterator[SourceItem]:
    """Members of a zip archive in its order, called ``archive!member``.

    Args:
        path: The archive.
        choice: Which members count.
        max_member_bytes: Members that unpack to more fail.

    Yields:
        Items; an archive that cannot be opened is one item that fails.
    """
    key = printable(path)
    try:
        mtime_ns = Path(path).stat().st_mtime_ns
        shared = _Shared(path)
    except BROKEN as error:
        yield failing_item(key, f"cannot be opened as a zip archive ({error})", hint="test the archive")
        return
    for info in shared.members():
        if not info.is_dir() and choice.takes(info.filename, lambda info=info: _head(shared, info)):  # type: ignore[misc]
            member = f"{key}!{printable(info.filename)}"
            if info.file_size > max_member_bytes:
                reason = f"unpacks to {info.file_size} bytes, the limit is {max_member_bytes}"
                yield failing_item(member, reason, size_bytes=info.file_size, mtime_ns=mtime_ns)
            else:
                yield SourceItem(member, _opener(path, member, info, shared), info.file_size, mtime_ns)


def _opener(path: str, key: str, info: zipfile.ZipInfo, shared: _Shared) -> Callable[[], DeferredImage]:
    alive = weakref.ref(shared)  # an item kept for a retry must not keep the archive open

    def opened() -> DeferredImage:
        try:
            archive = alive() or _Shared(path)
        except BROKEN as error:
            raise SourceError(f"{key}: the archive cannot be opened again ({error})") from error
        return DeferredImage(key, lambda: _content(archive, info, key), info.file_size)

    return opened


def _content(archive: _Shared, info: zipfile.ZipInfo, key: str) -> bytes:
    try:
        return archive.read(info)
    except BROKEN as error:
        hint = "unpack it first" if info.flag_bits & 1 else "test the archive; it may be damaged"
        raise SourceError(f"{key}: cannot be read ({error})", hint=hint) from error


def _head(archive: _Shared, info: zipfile.ZipInfo) -> bytes:
    try:
        return archive.read(info, HEAD_BYTES)
    except BROKEN:
        return b""
