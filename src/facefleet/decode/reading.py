"""Getting hold of the bytes: files and deferred sources, each failure a typed error with what to do.

Runs in the thread that calls it. Refuses what is not a file (devices have no end) and files far larger than any
picture within the limits, before they are read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from facefleet.decode.formats import sniff
from facefleet.errors import FacefleetError, ImageTooLargeError, SourceError
from facefleet.types import DeferredImage

_WORTH_A_LOOK_BYTES = 32 << 20
_ALWAYS_READ_BYTES = 256 << 20
_BYTES_A_PIXEL = 16
"""Four channels of float: no uncompressed format takes more."""


def read_path(path: str, *, max_pixels: int) -> bytes:
    """The bytes of a file.

    Raises:
        SourceError: It cannot be read.
        ImageTooLargeError: It is larger than a picture of `max_pixels` can be.
        UnsupportedFormatError: It is large, and its beginning is that of no picture.
    """
    return _typed(path, lambda: _read(path, max_pixels))


def read_deferred(source: DeferredImage) -> bytes:
    """The bytes of a deferred picture.

    Raises:
        SourceError: Its `load` failed, or gave something else than bytes.
    """
    data: Any = _typed(source.name, source.load)
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise SourceError(f"{source.name}: its load gave a {type(data).__name__}", hint="load has to return bytes")
    return bytes(data)


def _read(path: str, max_pixels: int) -> bytes:
    with Path(path).open("rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISFIFO(status.st_mode)):
            raise SourceError(f"{path}: is not a file", hint="give a picture")
        limit = max(_ALWAYS_READ_BYTES, max_pixels * _BYTES_A_PIXEL)
        if status.st_size > limit:
            raise ImageTooLargeError(
                f"{path}: {status.st_size} bytes, more than a picture of {max_pixels} pixels can have",
                hint="raise decode.max_pixels if you trust the source",
            )
        if status.st_size > _WORTH_A_LOOK_BYTES:
            head = file.read(4096)
            file.seek(-64, os.SEEK_END)
            sniff(head + file.read(64), name=path)
            file.seek(0)
        return file.readall()


def _typed(name: str, load: Callable[[], bytes]) -> bytes:
    try:
        return load()
    except FacefleetError:
        raise
    except FileNotFoundError as error:
        raise SourceError(f"{name}: no such file", hint="check the path") from error
    except IsADirectoryError as error:
        raise SourceError(f"{name}: is a folder", hint="give a picture, or use a job for folders") from error
    except PermissionError as error:
        raise SourceError(f"{name}: no permission to read it", hint="check the file's mode and owner") from error
    except MemoryError as error:
        raise SourceError(f"{name}: its bytes do not fit in memory", hint="free memory or leave it out") from error
    except Exception as error:  # a path no system call takes, a broken archive, whatever a caller's `load` raises
        raise SourceError(f"{name}: cannot be read ({error})", hint="check permissions and the disk") from error
