"""Files and folders. A folder's names are sorted, so that every run sees the same order."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from facefleet.sources.item import SourceItem, looks_like_picture


def file_item(path: str) -> SourceItem:
    """The item of one file; a missing one fails when it is opened, on its own."""
    try:
        stat = os.stat(path)  # noqa: PTH116  # paths stay text: a Path a file is slow in folders of millions
        return SourceItem(path, lambda: path, stat.st_size, stat.st_mtime_ns)
    except OSError:
        return SourceItem(path, lambda: path)


def folder_items(folder: str, *, all_files: bool, skipped: Callable[[], None]) -> Iterator[SourceItem]:
    """Pictures below a folder, hidden ones left out.

    Args:
        folder: Its path; links to folders are followed unless they lead back to where they are in.
        all_files: Whether every file counts, not only those that look like pictures by name.
        skipped: Called for every file that does not count.
    """
    yield from _walk(folder, all_files, skipped, frozenset())


def _walk(
    folder: str, all_files: bool, skipped: Callable[[], None], parents: frozenset[tuple[int, int]]
) -> Iterator[SourceItem]:
    try:
        stat = os.stat(folder)  # noqa: PTH116  # as above
        identity = (stat.st_dev, stat.st_ino)
        if identity in parents:
            return
        with os.scandir(folder) as entries:
            listed = sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        yield _unreadable(folder, error)
        return
    for entry in listed:
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from _walk(entry.path, all_files, skipped, parents | {identity})
        elif entry.is_file() and (all_files or looks_like_picture(entry.name)):
            yield file_item(entry.path)
        else:
            skipped()


def _unreadable(folder: str, error: OSError) -> SourceItem:
    def fail() -> str:
        raise error

    return SourceItem(folder, fail)
