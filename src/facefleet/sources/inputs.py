"""From what a user names to a stream of items."""

from __future__ import annotations

import glob
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from facefleet.errors import ConfigError, SourceError
from facefleet.sources.archive import archive_items, is_archive
from facefleet.sources.folder import file_item, folder_items
from facefleet.sources.item import SourceItem
from facefleet.types import EncodedImage

_PICTURE_STARTS = (b"\xff\xd8", b"\x89PNG", b"GIF8", b"BM", b"II*\x00", b"MM\x00*", b"RIFF")
_STDIN = "-"


@dataclass(frozen=True, slots=True)
class InputOptions:
    """How inputs are read.

    Attributes:
        all_files: Take every file of folders and archives, whatever its name.
        lists: Files with one path a line, or separated by NUL.
    """

    all_files: bool = False
    lists: tuple[str, ...] = ()


class Inputs:
    """A stream of items; iterate it once.

    Args:
        paths: Files, folders, glob patterns, archives; ``-`` for standard input: one path a line, or one picture.
        options: How they are read.
        stdin: Standard input; default: the process's.

    Attributes:
        skipped: Files of folders and archives that did not look like pictures, so far.

    Raises:
        ConfigError: Nothing is named, or nothing that is named exists.
    """

    def __init__(
        self, paths: Sequence[str], options: InputOptions | None = None, *, stdin: BinaryIO | None = None
    ) -> None:
        self._paths = [str(path) for path in paths]
        self._options = options or InputOptions()
        self._stdin = stdin
        self.skipped = 0
        if not self._paths and not self._options.lists:
            raise ConfigError("no inputs", hint="name files, folders, globs, archives, --list FILE, or - for stdin")
        absent = [path for path in self._options.lists if not Path(path).is_file()]
        if absent:
            raise ConfigError(f"{absent[0]}: no such list file", hint="--list takes a file with one path a line")
        if self._paths and not self._options.lists and not any(self._exists(path) for path in self._paths):
            raise ConfigError(f"no input exists: {', '.join(self._paths[:3])}", hint="check the paths")

    def __iter__(self) -> Iterator[SourceItem]:
        for path in self._paths:
            if path == _STDIN:
                yield from self._from_stdin()
            else:
                yield from self._named(path)
        for path in self._options.lists:
            with Path(path).open("rb") as stream:
                yield from self._listed(stream)

    def _exists(self, path: str) -> bool:
        return path == _STDIN or Path(path).exists() or (_is_pattern(path) and any(True for _ in glob.iglob(path)))

    def _skip(self) -> None:
        self.skipped += 1

    def _named(self, path: str) -> Iterator[SourceItem]:
        if _is_pattern(path) and not Path(path).exists():
            matches = sorted(glob.glob(path, recursive=True))
            if not matches:
                yield file_item(path)
            for match in matches:
                yield from self._named_plain(match)
        else:
            yield from self._named_plain(path)

    def _named_plain(self, path: str) -> Iterator[SourceItem]:
        if Path(path).is_dir():
            yield from folder_items(path, all_files=self._options.all_files, skipped=self._skip)
        elif is_archive(path) and Path(path).is_file():
            yield from archive_items(path, all_files=self._options.all_files, skipped=self._skip)
        else:
            yield file_item(path)

    def _listed(self, stream: BinaryIO) -> Iterator[SourceItem]:
        for name in _names(stream):
            yield from self._named_plain(name)

    def _from_stdin(self) -> Iterator[SourceItem]:
        stream = self._stdin or sys.stdin.buffer
        peek = getattr(stream, "peek", None)
        start: bytes = peek(16)[:16] if peek else b""
        if start.startswith(_PICTURE_STARTS) or start[4:8] == b"ftyp":
            data = stream.read()
            yield SourceItem(_STDIN, lambda: EncodedImage(data, "<stdin>"), len(data))
        else:
            yield from self._listed(stream)


def _is_pattern(path: str) -> bool:
    return any(sign in path for sign in "*?[")


def _names(stream: BinaryIO) -> Iterator[str]:
    """Names in a list: separated by NUL if the first block has one, else by line ends."""
    first = stream.read(1 << 16)
    separator = b"\0" if b"\0" in first else b"\n"
    rest = b""
    block = first
    while block:
        *names, rest = (rest + block).split(separator)
        for name in names:
            if stripped := name.rstrip(b"\r"):
                yield _text(stripped)
        block = stream.read(1 << 16)
    if rest.rstrip(b"\r"):
        yield _text(rest.rstrip(b"\r"))


def _text(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError as error:
        raise SourceError(f"a list names {name[:80]!r}, which is not UTF-8", hint="write the list as UTF-8") from error
