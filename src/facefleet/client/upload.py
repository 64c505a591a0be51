"""Forms of files, made piece by piece: no file is ever held whole. Pure but for reading the files; any thread."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

_PIECE = 256 << 10


def form(
    files: tuple[tuple[str, Path | bytes], ...], sent: Callable[[int], None] = lambda _: None
) -> tuple[str, Iterator[bytes]]:
    """A multipart/form-data body.

    Args:
        files: Name, and path or bytes, of each part.
        sent: Is told the size of each piece of a file when the next one is asked for.

    Returns:
        Content type, and the pieces of the body.
    """
    boundary = secrets.token_hex(16)
    return f"multipart/form-data; boundary={boundary}", _pieces(files, boundary, sent)


def _pieces(files: tuple[tuple[str, Path | bytes], ...], boundary: str, sent: Callable[[int], None]) -> Iterator[bytes]:
    for name, source in files:
        disposition = f'content-disposition: form-data; name="image"; filename="{name}"'
        yield f"--{boundary}\r\n{disposition}\r\ncontent-type: application/octet-stream\r\n\r\n".encode()
        if isinstance(source, bytes):
            yield source
            sent(len(source))
        else:
            with source.open("rb") as stream:
                while piece := stream.read(_PIECE):
                    yield piece
                    sent(len(piece))
        yield b"\r\n"
    yield f"--{boundary}--\r\n".encode()
