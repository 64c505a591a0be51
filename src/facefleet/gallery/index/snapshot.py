"""A segment with its rows as one file: whole and what was written, or refused.

Layout, little-endian: 8 bytes of magic; the length of the header, 8 bytes; the header, JSON; ids (n int64); people
(n int64); vectors (n x d float32, at a multiple of 64 bytes); what the segment saved; at the end the sha256 of
everything before it. Written under a temporary name, synced, renamed; no pickle anywhere.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import mmap
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from facefleet.errors import GalleryCorruptError, GalleryWriteError
from facefleet.gallery.index.base import Segment
from facefleet.gallery.index.layered import Base

_MAGIC = b"FFSNAP\x00\x01"
_DIGEST_BYTES = 32
_ALIGN = 64
_CHUNK = 16 << 20


@dataclass(frozen=True, slots=True)
class Stamp:
    """Which state of which gallery a snapshot holds.

    Attributes:
        uuid: The gallery.
        revision: The state.
        token: What tells it from a state of the same number in another copy's life.
        fingerprint: What made the vectors.
    """

    uuid: str
    revision: int
    token: int
    fingerprint: str


def write_snapshot(path: Path, stamp: Stamp, base: Base, people: NDArray[np.int64], options: Mapping[str, Any]) -> None:
    """Write a snapshot; it has its name only when all of it is on the disk.

    Args:
        path: The file; replaced if it is there.
        stamp: What it holds.
        base: The rows, at least one.
        people: (n,) int64, whose each row is.
        options: What the segment was built with.

    Raises:
        GalleryWriteError: The disk does not take it.
    """
    assert base.segment is not None
    header = {
        "uuid": stamp.uuid,
        "revision": stamp.revision,
        "token": stamp.token,
        "fingerprint": stamp.fingerprint,
        "kind": base.segment.kind,
        "options": dict(options),
        "rows": len(base.ids),
        "dimension": base.vectors.shape[1],
    }
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            stream = _Hashing(file)
            text = json.dumps(header, sort_keys=True).encode()
            stream.write(_MAGIC + struct.pack("<Q", len(text)) + text)
            stream.write(np.ascontiguousarray(base.ids, "<i8").data)
            stream.write(np.ascontiguousarray(people, "<i8").data)
            stream.write(bytes(-stream.position % _ALIGN))
            for start in range(0, len(base.vectors), 8192):
                stream.write(np.ascontiguousarray(base.vectors[start : start + 8192], "<f4").data)
            base.segment.save(cast(BinaryIO, stream))
            file.write(stream.state.digest())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        handle = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise GalleryWriteError(f"{path}: {error}", hint="check permissions and free space") from error


def read_snapshot(
    path: Path, segment: type[Segment], options: Mapping[str, Any]
) -> tuple[Stamp, Base, NDArray[np.int64]]:
    """Read a snapshot; vectors stay in the file, mapped and shared between processes.

    Args:
        path: The file.
        segment: The kind that it has to be of.
        options: What the segment has to be built with.

    Returns:
        What it holds, its rows, and (n,) whose each is.

    Raises:
        GalleryCorruptError: It is not, byte for byte, what was written, or of another kind.
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < len(_MAGIC) + 8 + _DIGEST_BYTES:
            raise _wrong(path, "too short")
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    state = hashlib.sha256()
    end = size - _DIGEST_BYTES
    view = memoryview(data)
    for start in range(0, end, _CHUNK):
        state.update(view[start : min(end, start + _CHUNK)])
    if state.digest() != bytes(view[end:]) or bytes(view[: len(_MAGIC)]) != _MAGIC:
        raise _wrong(path, "its digest differs")
    (length,) = struct.unpack("<Q", view[8:16])
    header = json.loads(bytes(view[16 : 16 + length]))
    if header["kind"] != segment.kind or header["options"] != dict(options):
        raise _wrong(path, f"it is of index {header['kind']!r} with {header['options']}")
    rows, dimension, place = header["rows"], header["dimension"], 16 + length
    ids = np.frombuffer(bytes(view[place : place + 8 * rows]), "<i8").astype(np.int64)
    place += 8 * rows
    people = np.frombuffer(bytes(view[place : place + 8 * rows]), "<i8").astype(np.int64)
    place += 8 * rows
    place += -place % _ALIGN
    vectors = np.frombuffer(data, "<f4", rows * dimension, place).reshape(rows, dimension)
    place += 4 * rows * dimension
    built = segment.load(io.BytesIO(view[place:end]), vectors, options)
    stamp = Stamp(header["uuid"], header["revision"], header["token"], header["fingerprint"])
    return stamp, Base(ids, vectors, built), people


def _wrong(path: Path, why: str) -> GalleryCorruptError:
    return GalleryCorruptError(f"{path}: not the snapshot that was written: {why}", hint="it is made anew")


class _Hashing:
    """A stream that counts and digests what goes through it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.state = hashlib.sha256()
        self.position = 0

    def write(self, data: bytes | memoryview) -> int:
        """Write all of `data`."""
        view = memoryview(data).cast("B")
        self._file.write(view)
        self.state.update(view)
        self.position += len(view)
        return len(view)
