"""Names in order, however many: beyond a limit they are sorted in pieces on disk, so that memory stays flat."""

from __future__ import annotations

import contextlib
import heapq
import os
import tempfile
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import IO

IN_MEMORY = 200_000
_BLOCK = 1 << 16


def in_order(names: Iterable[str], *, in_memory: int = IN_MEMORY) -> Iterator[str]:
    """Sort names by code point.

    Args:
        names: Read to their end before this returns, so that what goes wrong with them is raised here.
        in_memory: How many are held in memory at a time.

    Raises:
        OSError: Reading the names failed, or the disk for temporary files is full.
    """
    source = iter(names)
    first = sorted(islice(source, in_memory))
    if len(first) < in_memory:
        return iter(first)
    with contextlib.ExitStack() as files:
        pieces = []
        while first:
            pieces.append(_spilled(first, files))
            first = sorted(islice(source, in_memory))
        return _merged(pieces, files.pop_all())


def _spilled(names: list[str], files: contextlib.ExitStack) -> IO[bytes]:
    file = files.enter_context(tempfile.TemporaryFile(prefix="facefleet-"))  # noqa: SIM115  # closed by `files`
    for name in names:
        file.write(os.fsencode(name) + b"\0")
    file.seek(0)
    return file


def _merged(pieces: list[IO[bytes]], files: contextlib.ExitStack) -> Iterator[str]:
    with files:
        yield from heapq.merge(*(_names(piece) for piece in pieces))


def _names(file: IO[bytes]) -> Iterator[str]:
    rest = b""
    while block := file.read(_BLOCK):
        *names, rest = (rest + block).split(b"\0")
        yield from map(os.fsdecode, names)
