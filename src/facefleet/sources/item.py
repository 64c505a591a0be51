"""One input of a job: its name, what tells whether it changed, and how to get at it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import PurePath

from facefleet.types import ImageSource

EXTENSIONS = frozenset(
    "jpg jpeg jpe jfif mpo png apng gif bmp dib webp tif tiff avif avifs heic heif hif jp2 j2k jpx ico qoi "
    "ppm pgm pbm pnm pfm".split()
)
"""Extensions of files in folders and archives that are taken for pictures; what they are, their bytes decide."""


@dataclass(frozen=True, slots=True)
class SourceItem:
    """One input.

    Attributes:
        key: What it is called everywhere: the path as given, or ``archive!member``.
        open: Gives what the engine takes; reads no more than it must. Called once in the job's thread.
        size_bytes: Size, -1 where not known.
        mtime_ns: Time of last change, -1 where not known.
    """

    key: str
    open: Callable[[], ImageSource] = field(repr=False)
    size_bytes: int = -1
    mtime_ns: int = -1


def looks_like_picture(name: str) -> bool:
    """Whether a file in a folder or archive is taken for a picture: by extension, or because it has none."""
    suffix = PurePath(name).suffix
    return not suffix or suffix[1:].lower() in EXTENSIONS
