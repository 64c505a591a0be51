"""One input of a job: its name, what tells whether it changed, and how to get at it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import PurePath

from facefleet.errors import SourceError
from facefleet.types import DeferredImage, ImageSource


@dataclass(frozen=True, slots=True)
class SourceItem:
    """One input.

    Attributes:
        key: What it is called everywhere: the path as given, or ``archive!member``. Always valid Unicode.
        open: Gives what the engine takes. Called in the thread that iterates the source, before the next item is
            asked for, and again if the input is retried later.
        size_bytes: Size, -1 where not known.
        mtime_ns: Time of last change in ns, or another number that changes with the content; -1 where not known.
    """

    key: str
    open: Callable[[], ImageSource] = field(repr=False)
    size_bytes: int = -1
    mtime_ns: int = -1


def printable(name: str) -> str:
    """A file name as text that can be stored anywhere: bytes that are not UTF-8 are shown by their numbers in hex."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return name


def failing_item(key: str, reason: str, *, hint: str = "", size_bytes: int = -1, mtime_ns: int = -1) -> SourceItem:
    """An input that cannot be read: it fails on its own when the engine gets to it."""

    def fail() -> bytes:
        raise SourceError(f"{key}: {reason}", hint=hint)

    return SourceItem(key, lambda: DeferredImage(key, fail), size_bytes, mtime_ns)


def plain_path(path: str) -> str:
    """A path without ``./`` and doubled slashes, so that one file has one key; ``..`` stays, links may cross it."""
    return str(PurePath(path))
