"""Members of tar and zip archives, read one by one; nothing is ever extracted to disk."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from facefleet.errors import SourceError
from facefleet.sources.item import SourceItem, looks_like_picture
from facefleet.types import EncodedImage

MAX_MEMBER_BYTES = 256 << 20
"""Larger members are refused: an archive can claim any size."""

_SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst")


def is_archive(path: str) -> bool:
    """Whether a file is named like an archive that is read here."""
    return path.lower().endswith(_SUFFIXES)


def archive_items(path: str, *, all_files: bool, skipped: Callable[[], None]) -> Iterator[SourceItem]:
    """Members of an archive in its order, called ``archive!member``.

    Args:
        path: The archive.
        all_files: Whether every member counts, not only those that look like pictures by name.
        skipped: Called for every member that does not count.

    Yields:
        Items; an archive that cannot be read is one item that fails.
    """
    try:
        stat = Path(path).stat()
        if path.lower().endswith(".zip"):
            yield from _zip(path, stat.st_mtime_ns, all_files, skipped)
        else:
            yield from _tar(path, stat.st_mtime_ns, all_files, skipped)
    except (OSError, tarfile.TarError, zipfile.BadZipFile, EOFError, ValueError) as error:
        yield SourceItem(path, lambda error=error: _fail(path, error))  # type: ignore[misc]


def _zip(path: str, mtime_ns: int, all_files: bool, skipped: Callable[[], None]) -> Iterator[SourceItem]:
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if info.is_dir():
                continue
            if not (all_files or looks_like_picture(info.filename)):
                skipped()
                continue
            key = f"{path}!{info.filename}"

            def read(info: zipfile.ZipInfo = info, key: str = key) -> EncodedImage:
                _bounded(key, info.file_size)
                try:
                    if archive.fp is not None:
                        return EncodedImage(archive.read(info), key)
                    with zipfile.ZipFile(path) as again:  # a retry, after the walk through the archive has ended
                        return EncodedImage(again.read(info), key)
                except (zipfile.BadZipFile, RuntimeError, NotImplementedError, OSError, EOFError, ValueError) as error:
                    return _fail(key, error)

            yield SourceItem(key, read, info.file_size, mtime_ns)


def _tar(path: str, mtime_ns: int, all_files: bool, skipped: Callable[[], None]) -> Iterator[SourceItem]:
    with tarfile.open(path) as archive:
        for member in archive:
            if not member.isfile():
                continue
            if not (all_files or looks_like_picture(member.name)):
                skipped()
                continue
            key = f"{path}!{member.name}"

            def read(member: tarfile.TarInfo = member, key: str = key) -> EncodedImage:
                _bounded(key, member.size)
                try:
                    if not archive.closed:
                        return EncodedImage(_content(archive, member), key)
                    with tarfile.open(path) as again:
                        return EncodedImage(_content(again, member), key)
                except (tarfile.TarError, OSError, EOFError, ValueError) as error:
                    return _fail(key, error)

            yield SourceItem(key, read, member.size, mtime_ns)


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    stream = archive.extractfile(member)
    assert stream is not None  # members that are no files are not asked for
    data = stream.read()
    if len(data) != member.size:
        raise EOFError(f"{len(data)} of {member.size} bytes")
    return data


def _bounded(key: str, size: int) -> None:
    if size > MAX_MEMBER_BYTES:
        raise SourceError(f"{key}: unpacks to {size} bytes, the limit is {MAX_MEMBER_BYTES}")


def _fail(key: str, error: Exception) -> EncodedImage:
    raise SourceError(f"{key}: cannot be read ({error})", hint="test the archive; it may be cut off or encrypted")
