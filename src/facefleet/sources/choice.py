"""Which files of folders and archives are taken. What a user names as a file is always taken."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from facefleet.decode.formats import sniff
from facefleet.errors import InputError

EXTENSIONS = frozenset(
    (
        *("jpg", "jpeg", "jpe", "jfif", "mpo", "png", "apng", "gif", "bmp", "dib", "webp", "tif", "tiff"),
        *("avif", "avifs", "heic", "heif", "hif", "jp2", "j2k", "jpx", "ico", "qoi", "ppm", "pgm", "pbm", "pnm", "pfm"),
    )
)
"""Extensions of files that are taken for pictures; what they really are, their bytes decide."""

HEAD_BYTES = 64
"""How many first bytes `is_picture` wants."""

_PNM = re.compile(rb"P[1-7Ff]\s+(#[^\n]*\n\s*)*(\d+\s+\d+\s|WIDTH)")
_BMP_HEADERS = (12, 16, 40, 52, 56, 64, 108, 124)


class Choice:
    """The rule, and a count of what it left out.

    Args:
        all_files: Every file counts, hidden ones aside.
        include: Patterns; if there are any, exactly the files that match one count, whatever their extension.
        exclude: Patterns of files and folders that never count. A pattern with a slash is held against the path
            below the folder or inside the archive, one without against the last part of it.

    Attributes:
        skipped: Files left out so far; a folder or hidden folder that is not entered counts once.
    """

    def __init__(self, *, all_files: bool = False, include: Iterable[str] = (), exclude: Iterable[str] = ()) -> None:
        self._all_files = all_files
        self._include = tuple(include)
        self._exclude = tuple(exclude)
        self.skipped = 0

    def enters(self, inner: str) -> bool:
        """Whether a folder is walked into; `inner` is its path below the one that was named."""
        taken = not (_hidden(inner) or _matches(inner, self._exclude))
        self.skipped += not taken
        return taken

    def takes(self, inner: str, head: Callable[[], bytes]) -> bool:
        """Whether a file counts.

        Args:
            inner: Its path below the folder, or inside the archive.
            head: Reads its first `HEAD_BYTES` bytes; called only for names that tell nothing.
        """
        taken = self._takes(inner, head)
        self.skipped += not taken
        return taken

    def _takes(self, inner: str, head: Callable[[], bytes]) -> bool:
        if _hidden(inner) or _matches(inner, self._exclude):
            return False
        if self._include:
            return _matches(inner, self._include)
        if self._all_files:
            return True
        suffix = PurePosixPath(inner).suffix
        return suffix[1:].lower() in EXTENSIONS if suffix else is_picture(head())


def is_picture(head: bytes) -> bool:
    """Whether first bytes are a picture's, strict enough to tell pictures from lists of file names."""
    if head[:2] == b"BM":
        return head[6:10] == bytes(4) and int.from_bytes(head[14:18], "little") in _BMP_HEADERS
    if head[:1] == b"P":
        return _PNM.match(head) is not None
    try:
        sniff(head, name="")
    except InputError:
        return False
    return any(byte < 9 or byte > 126 for byte in head)


def _hidden(inner: str) -> bool:
    """Hidden by a dot, or the shadow copies that macOS puts into zip files."""
    return any((part[:1] == "." and part not in (".", "..")) or part == "__MACOSX" for part in inner.split("/"))


def _matches(inner: str, patterns: tuple[str, ...]) -> bool:
    name = inner.rsplit("/", 1)[-1]
    return any(fnmatchcase(inner if "/" in pattern else name, pattern) for pattern in patterns)
