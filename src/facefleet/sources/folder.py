"""Files and folders. A folder's names are sorted, so that every run sees the same order."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from stat import S_ISDIR, S_ISREG

from facefleet.sources.choice import HEAD_BYTES, Choice
from facefleet.sources.item import SourceItem, failing_item, plain_path, printable
from facefleet.sources.order import in_order

# Paths stay text and go through os: a Path a file is slow in folders of millions.
# ruff: noqa: PTH114, PTH116, PTH118, PTH123


def file_item(path: str) -> SourceItem:
    """The item of one file; one that is missing or no regular file fails on its own when the engine gets to it."""
    path = plain_path(path)
    key = printable(path)
    try:
        stat = os.stat(path)
    except (OSError, ValueError) as error:
        return failing_item(key, getattr(error, "strerror", None) or str(error), hint="check the path")
    if not S_ISREG(stat.st_mode):
        return failing_item(key, "not a regular file", hint="name files, folders or archives")
    return SourceItem(key, lambda: path, stat.st_size, stat.st_mtime_ns)


@dataclass(slots=True)
class _Level:
    """A folder being walked."""

    path: str
    inner: str
    identity: tuple[int, int]
    names: Iterator[str]


def folder_items(folder: str, choice: Choice) -> Iterator[SourceItem]:
    """Pictures below a folder, in the order of their names, folder by folder.

    Args:
        folder: Its path. A link to a folder is followed once, and never to a folder that the walk is inside of.
        choice: Which files count.

    Yields:
        Items; a folder that cannot be listed is one item that fails.
    """
    linked: set[tuple[int, int]] = set()
    levels: list[_Level] = []
    top = plain_path(folder)
    failed = _enter("" if top == "." else top, "", levels)  # so that ./a.jpg and a.jpg are one
    if failed is not None:
        yield failed
    while levels:
        level = levels[-1]
        name = next(level.names, None)
        if name is None:
            levels.pop()
            continue
        path = os.path.join(level.path, name)
        inner = f"{level.inner}{name}"
        try:
            stat = os.stat(path)
        except OSError:  # a broken link, or gone since
            if choice.takes(inner, bytes):
                yield file_item(path)
            continue
        if S_ISDIR(stat.st_mode):
            identity = (stat.st_dev, stat.st_ino)
            if not choice.enters(inner):
                continue
            if os.path.islink(path):
                if identity in linked or any(above.identity == identity for above in levels):
                    choice.skipped += 1
                    continue
                linked.add(identity)
            failed = _enter(path, f"{inner}/", levels)
            if failed is not None:
                yield failed
        elif not S_ISREG(stat.st_mode):
            choice.skipped += 1
        elif choice.takes(inner, lambda path=path: _head(path)):  # type: ignore[misc]
            yield SourceItem(printable(path), lambda path=path: path, stat.st_size, stat.st_mtime_ns)  # type: ignore[misc]


def _enter(path: str, inner: str, levels: list[_Level]) -> SourceItem | None:
    try:
        stat = os.stat(path or ".")
        with os.scandir(path or ".") as entries:
            names = in_order(entry.name for entry in entries)
    except OSError as error:
        return failing_item(printable(path or "."), f"cannot be listed: {error.strerror}", hint="check its permissions")
    levels.append(_Level(path, inner, (stat.st_dev, stat.st_ino), names))
    return None


def _head(path: str) -> bytes:
    try:
        with open(path, "rb") as stream:
            return stream.read(HEAD_BYTES)
    except OSError:
        return b""
