"""Members of tar archives, plain or compressed, read in one pass; nothing is ever extracted to a path.

Plain archives are read in the engine's threads when a member's turn comes. A compressed one can only be read in
order: a member is then unpacked when it is opened, and large ones wait in unnamed temporary files, not in memory.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import tempfile
import weakref
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, cast

from facefleet.errors import SourceError
from facefleet.sources.choice import HEAD_BYTES, Choice
from facefleet.sources.item import SourceItem, failing_item, printable
from facefleet.types import DeferredImage

BROKEN = (tarfile.TarError, zlib.error, lzma.LZMAError, OSError, EOFError, ValueError)
"""What reading a damaged tar archive raises."""

_IN_MEMORY_BYTES = 2 << 20
_READ_BYTES = 1 << 20
_BUFFER_BYTES = 1 << 16  # as much is lost where an archive is cut off
_MAX_HEADER_BYTES = 8 << 20
_BLOCK = tarfile.BLOCKSIZE
_HINT = "test the archive; it may be damaged or cut off"


class _Zstd(io.RawIOBase):
    """Zstandard through pyarrow, which is here anyway; the standard library has it from Python 3.14 on."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path
        self._start()

    def _start(self) -> None:
        import pyarrow as pa

        self._stream: Any = pa.CompressedInputStream(pa.OSFile(self._path), "zstd")
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401  # any writable buffer
        data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence != io.SEEK_SET:
            raise io.UnsupportedOperation("only absolute positions")
        if offset < self._at:
            self._stream.close()
            self._start()
        while self._at < offset and (data := self._stream.read(min(_READ_BYTES, offset - self._at))):
            self._at += len(data)
        return self._at

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()


def _zstd(path: str) -> IO[bytes]:
    return cast("IO[bytes]", io.BufferedReader(_Zstd(path), _BUFFER_BYTES))


_COMPRESSIONS: dict[bytes, Callable[[str], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
    b"\x28\xb5\x2f\xfd": _zstd,
}


class _Guarded:
    """A file as tarfile reads it: forwards.

    It refuses huge reads, as a header's length field must not decide how much memory is taken, and serves the step
    back by one byte that tarfile makes before every header, for which a decompressor might start all over.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._at = 0
        self._last = b""  # the byte before the stream's position, if it was read
        self._held = b""  # that byte, while the position is before it

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int) -> int:
        if self._last and not self._held and offset == self._at - 1:
            self._held = self._last
        elif offset != self._at:
            self._stream.seek(offset)
            self._last = self._held = b""
        self._at = offset
        return offset

    def read(self, size: int) -> bytes:
        if size > _MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {size} bytes")
        if not size:
            return b""
        data = self._held + self._stream.read(size - len(self._held))
        self._held = b""
        self._last = data[-1:]
        self._at += len(data)
        return data


class _Archive:
    """An open archive, read forwards."""

    def __init__(self, path: str) -> None:
        self.path = path
        with Path(path).open("rb") as stream:
            start = stream.read(6)
        opener = next((opener for magic, opener in _COMPRESSIONS.items() if start.startswith(magic)), None)
        self.compressed = opener is not None
        self._stream: IO[bytes] = opener(path) if opener is not None else Path(path).open("rb")  # noqa: SIM115  # closed by __exit__
        try:
            self._guarded = _Guarded(self._stream)
            self._tar = tarfile.open(fileobj=cast("IO[bytes]", self._guarded), mode="r:")  # noqa: SIM115
        except BaseException:
            self._stream.close()
            raise

    def __enter__(self) -> _Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self._tar.close()
        self._stream.close()

    def __iter__(self) -> Iterator[tarfile.TarInfo]:
        while (member := self._tar.next()) is not None:
            self._tar.members.clear()  # type: ignore[attr-defined]  # it would keep every member there ever was
            yield member
        # tarfile takes a header it cannot read for the end; the real end is a block of zeros, or of the file.
        self._guarded.seek(self._tar.offset)
        if self._guarded.read(_BLOCK).strip(b"\0"):
            raise tarfile.ReadError(f"damaged at byte {self._tar.offset}")

    def content(self, member: tarfile.TarInfo) -> IO[bytes]:
        """A member's bytes, to be read before the next member is asked for."""
        stream = self._tar.extractfile(member)
        if stream is None:
            raise tarfile.ReadError("not a file")
        return stream


def tar_items(path: str, choice: Choice, max_member_bytes: int) -> Iterator[SourceItem]:
    """Members of a tar archive in its order, called ``archive!member``. Links and devices are left out.

    Args:
        path: The archive; its first bytes tell how it is compressed.
        choice: Which members count.
        max_member_bytes: Members that unpack to more fail.

    Yields:
        Items; where the archive cannot be read on, one item that fails.
    """
    key = printable(path)
    stat = None
    try:
        stat = Path(path).stat()
        with _Archive(path) as archive:
            for member in archive:
                if member.isdir():
                    continue
                if not member.isfile():
                    choice.skipped += 1
                    continue
                opened = _Opened(archive, member, f"{key}!{printable(member.name)}")
                if choice.takes(member.name.removeprefix("./"), opened.head):
                    yield opened.item(stat.st_mtime_ns, max_member_bytes)
                opened.passed()
    except BROKEN as error:
        size, mtime_ns = (stat.st_size, stat.st_mtime_ns) if stat is not None else (-1, -1)
        reason = f"cannot be read on ({type(error).__name__}: {error})"
        yield failing_item(key, reason, hint=_HINT, size_bytes=size, mtime_ns=mtime_ns)


class _Opened:
    """A member while the archive stands at it, and after."""

    def __init__(self, archive: _Archive, member: tarfile.TarInfo, key: str) -> None:
        self._path = archive.path
        self._archive: _Archive | None = archive
        self._direct = not archive.compressed and not member.issparse()
        self._member = member
        self._key = key
        self._stream: IO[bytes] | None = None
        self._start = b""

    def passed(self) -> None:
        """The archive goes on: from here on the member has to be looked for anew."""
        self._archive = self._stream = None

    def head(self) -> bytes:
        """The first bytes."""
        assert self._archive is not None
        self._stream = self._archive.content(self._member)
        self._start = self._stream.read(HEAD_BYTES)
        return self._start

    def item(self, mtime_ns: int, max_member_bytes: int) -> SourceItem:
        """The member as an input."""
        size = self._member.size
        if size > max_member_bytes:
            reason = f"unpacks to {size} bytes, the limit is {max_member_bytes}"
            return failing_item(self._key, reason, size_bytes=size, mtime_ns=mtime_ns)
        opened = self._in_place if self._direct else self._unpacked
        return SourceItem(self._key, opened, size, mtime_ns)

    def _in_place(self) -> DeferredImage:
        def load() -> bytes:
            with Path(self._path).open("rb") as stream:
                stream.seek(self._member.offset_data)
                data = stream.read(self._member.size)
            if len(data) != self._member.size:
                raise SourceError(f"{self._key}: {len(data)} of {self._member.size} bytes are there", hint=_HINT)
            return data

        return DeferredImage(self._key, load, self._member.size)

    def _unpacked(self) -> DeferredImage:
        try:
            if self._archive is not None:
                content = self._copied(self._stream or self._archive.content(self._member), self._start)
            else:
                with _Archive(self._path) as again:
                    content = self._copied(again.content(self._member), b"")
        except BROKEN as error:
            raise SourceError(f"{self._key}: cannot be read ({error})", hint=_HINT) from error

        return DeferredImage(self._key, content.read, self._member.size)

    def _copied(self, stream: IO[bytes], start: bytes) -> _Unpacked:
        content = _Unpacked(self._member.size)
        content.write(start)
        while block := stream.read(_READ_BYTES):
            content.write(block)
        if content.size_bytes != self._member.size:
            raise EOFError(f"{content.size_bytes} of {self._member.size} bytes are there")
        return content


class _Unpacked:
    """The bytes of a member until the engine gets to it; in an unnamed temporary file if they are many."""

    def __init__(self, expected_bytes: int) -> None:
        self.size_bytes = 0
        self._blocks: list[bytes] = []
        self._file: IO[bytes] | None = None
        if expected_bytes > _IN_MEMORY_BYTES:
            self._file = tempfile.TemporaryFile(prefix="facefleet-")  # noqa: SIM115  # closed when this is let go
            weakref.finalize(self, self._file.close)

    def write(self, block: bytes) -> None:
        self.size_bytes += len(block)
        if self._file is None:
            self._blocks.append(block)
        else:
            self._file.write(block)

    def read(self) -> bytes:
        if self._file is None:
            return b"".join(self._blocks)
        self._file.seek(0)
        return self._file.read()
