"""Lists of names: one a line, or separated by NUL."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import IO

_BLOCK = 1 << 16


def listed_names(stream: IO[bytes], head: bytes = b"") -> Iterator[str]:
    """Names in a list, as the file system has them.

    Args:
        stream: The rest of the list; read in blocks.
        head: What has been read of it already.

    Yields:
        Names, separated by NUL if the first 64 KiB have one, else by line ends; empty ones are left out.
    """
    block = head + (stream.read(_BLOCK) or b"")
    separator = b"\0" if b"\0" in block else b"\n"
    rest = b""
    while block:
        *names, rest = (rest + block).split(separator)
        yield from _texts(names, separator)
        block = stream.read(_BLOCK) or b""
    yield from _texts([rest], separator)


def _texts(names: list[bytes], separator: bytes) -> Iterator[str]:
    for name in names:
        text = name.removesuffix(b"\r") if separator == b"\n" else name
        if text:
            yield os.fsdecode(text)
