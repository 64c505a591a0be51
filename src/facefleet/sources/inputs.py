"""From what a user names to a stream of items.

Owns what a name means. A file that is named is always taken; of folders, patterns that match folders, and archives,
`Choice` says which files are. Archives inside folders or archives are not opened. Runs in the thread that iterates.
"""

from __future__ import annotations

import glob
import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from facefleet.errors import ConfigError
from facefleet.sources.choice import HEAD_BYTES, Choice, is_picture
from facefleet.sources.folder import file_item, folder_items
from facefleet.sources.item import SourceItem, failing_item
from facefleet.sources.names import listed_names
from facefleet.sources.order import in_order
from facefleet.sources.tars import tar_items
from facefleet.sources.zips import zip_items
from facefleet.types import EncodedImage

_STDIN = "-"
_TARS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst", ".tzst")


@dataclass(frozen=True, slots=True)
class InputOptions:
    """How inputs are read.

    Attributes:
        all_files: Take every file of folders and archives, whatever its name; else those with the extension of a
            picture, and those without any extension that begin like one.
        lists: Files with one path a line, or separated by NUL.
        include: Patterns of files in folders and archives; if given, only those that match one are taken.
        exclude: Patterns of files and folders that are left out.
        max_member_bytes: Archive members that unpack to more fail: an archive can claim any size.
    """

    all_files: bool = False
    lists: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    max_member_bytes: int = 256 << 20


class Inputs:
    """A stream of items; iterate it once.

    Args:
        paths: Files, folders, glob patterns, archives; ``@list.txt`` for a file with one path a line; ``-`` for
            standard input: paths, or the bytes of one picture.
        options: How they are read.
        stdin: Standard input; default: the process's.

    Raises:
        ConfigError: Nothing is named, nothing that is named exists, or a list does not.
    """

    def __init__(
        self, paths: Sequence[str], options: InputOptions | None = None, *, stdin: BinaryIO | None = None
    ) -> None:
        self._options = options or InputOptions()
        self._paths: list[str] = []
        self._lists = list(self._options.lists)
        for path in map(str, paths):
            if path.startswith("@") and not os.path.lexists(path):
                self._lists.append(path[1:])
            else:
                self._paths.append(path)
        self._stdin = stdin
        self._choice = Choice(
            all_files=self._options.all_files, include=self._options.include, exclude=self._options.exclude
        )
        if not self._paths and not self._lists:
            raise ConfigError("no inputs", hint="name files, folders, globs, archives, --list FILE, or - for stdin")
        for path in self._lists:
            if not Path(path).exists() or Path(path).is_dir():
                raise ConfigError(f"{path}: no such list file", hint="a list is a file with one path a line")
        if self._paths and not self._lists and not any(map(_exists, self._paths)):
            raise ConfigError(f"no input exists: {', '.join(self._paths[:3])}", hint="check the paths")

    @property
    def skipped(self) -> int:
        """Files of folders and archives that were not taken, so far."""
        return self._choice.skipped

    def __iter__(self) -> Iterator[SourceItem]:
        for path in self._paths:
            if path == _STDIN:
                yield from self._from_stdin()
            elif _is_pattern(path) and not Path(path).exists():
                yield from self._matching(path)
            else:
                yield from self._named(path)
        for path in self._lists:
            with Path(path).open("rb") as stream:
                for name in listed_names(stream):
                    yield from self._named(name)

    def _matching(self, pattern: str) -> Iterator[SourceItem]:
        matched = False
        for match in in_order(glob.iglob(pattern, recursive=True)):  # noqa: PTH207  # a Path has no absolute patterns
            matched = True
            # With ** the files of a folder match by themselves.
            if not ("**" in pattern and Path(match).is_dir()):
                yield from self._named(match)
        if not matched:
            yield failing_item(pattern, "nothing matches this pattern", hint="check the path")

    def _named(self, path: str) -> Iterator[SourceItem]:
        if Path(path).is_dir():
            yield from folder_items(path, self._choice)
        elif is_archive(path) and Path(path).is_file():
            items = zip_items if path.lower().endswith(".zip") else tar_items
            yield from items(path, self._choice, self._options.max_member_bytes)
        else:
            yield file_item(path)

    def _from_stdin(self) -> Iterator[SourceItem]:
        stream = self._stdin or sys.stdin.buffer
        head = stream.read(HEAD_BYTES)
        if not is_picture(head):
            for name in listed_names(stream, head):
                yield from self._named(name)
            return
        limit = self._options.max_member_bytes
        data = head + stream.read(limit - len(head) + 1)
        if len(data) > limit:
            yield failing_item(_STDIN, f"standard input has more than {limit} bytes", hint="write it to a file")
            return
        version = int.from_bytes(hashlib.sha256(data).digest()[:7], "big")  # there is no time of change to go by
        yield SourceItem(_STDIN, lambda: EncodedImage(data, "<stdin>"), len(data), version)


def is_archive(path: str) -> bool:
    """Whether a file is named like an archive that is read here."""
    return path.lower().endswith((".zip", *_TARS))


def _exists(path: str) -> bool:
    if path == _STDIN or os.path.lexists(path):
        return True
    return _is_pattern(path) and any(True for _ in glob.iglob(path, recursive=True))  # noqa: PTH207  # as above


def _is_pattern(path: str) -> bool:
    return any(sign in path for sign in "*?[")
