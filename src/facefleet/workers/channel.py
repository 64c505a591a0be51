"""Messages between the parent and a worker, over a socket pair of their own.

Owns the wire: a pickled tuple of names and numbers a message, between processes of one user and one program; bytes of
works lie in the arena, or follow as raw frames where it has no room for them. Sending is safe in several threads.
"""

from __future__ import annotations

import pickle
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from facefleet.workers.work import Buffer, Payload

Span: TypeAlias = "tuple[int, int]"
"""Offset and bytes in the arena."""


_HEAD = struct.Struct("<IQ")
_READ = 1 << 16


class Channel:
    """One end.

    Args:
        fd: A connected stream socket; owned from now on.
    """

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._lock = threading.Lock()
        self._buffer = bytearray()

    def fileno(self) -> int:
        """For selectors."""
        return self._socket.fileno()

    def send(self, message: tuple[Any, ...], frames: Sequence[Buffer] = ()) -> None:
        """Send a message, and raw frames with it.

        Raises:
            OSError: The other side is gone.
        """
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        head = _HEAD.pack(len(frames), len(data))
        if not frames:
            with self._lock:
                self._socket.sendall(head + data)
            return
        sizes = struct.pack(f"<{len(frames)}Q", *map(len, frames))
        with self._lock:
            self._socket.sendall(head + sizes + data)
            for frame in frames:
                self._socket.sendall(frame)

    def receive(self) -> tuple[tuple[Any, ...], tuple[bytes, ...]]:
        """The next message with its frames; waits for it.

        Raises:
            EOFError: The other side is gone.
            OSError: Likewise.
        """
        while (message := self._complete()) is None:
            self._fill(self._socket.recv(_READ))
        return message

    def received(self) -> Iterator[tuple[tuple[Any, ...], tuple[bytes, ...]]]:
        """The messages that are here in full, with their frames; waits for nothing.

        Raises:
            EOFError: The other side is gone, after everything that came before.
            OSError: Likewise.
        """
        while True:
            try:
                data = self._socket.recv(_READ, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            self._fill(data)
            while (message := self._complete()) is not None:
                yield message
            if len(data) < _READ:
                return

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    def _fill(self, data: bytes) -> None:
        if not data:
            raise EOFError("the other side of the channel is gone")
        self._buffer += data

    def _complete(self) -> tuple[tuple[Any, ...], tuple[bytes, ...]] | None:
        """Take a message off the buffer; None while it is not there in full."""
        buffer = self._buffer
        start = _HEAD.size
        if len(buffer) < start:
            return None
        count, length = _HEAD.unpack_from(buffer)
        sizes: tuple[int, ...] = ()
        if count:
            start += 8 * count
            if len(buffer) < start:
                return None
            sizes = struct.unpack_from(f"<{count}Q", buffer, _HEAD.size)
        end = start + length
        if len(buffer) < end + sum(sizes):
            return None
        message = pickle.loads(memoryview(buffer)[start:end])  # noqa: S301  # our own other end
        frames = []
        for size in sizes:
            frames.append(bytes(memoryview(buffer)[end : end + size]))
            end += size
        del buffer[:end]
        return message, tuple(frames)


def pair() -> tuple[Channel, int]:
    """This side of a new channel, and the descriptor of the other, for a child.

    A child that does not read for ten seconds fails what we send: nobody here may wait for a hung process.
    """
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 10, 0))
    return Channel(ours.detach()), theirs.detach()


def write_buffers(view: memoryview, offset: int, payload: Payload) -> tuple[Span, ...]:
    """Put the buffers of a payload into the arena one after the other, from `offset` on."""
    spans = []
    for buffer in payload.buffers:
        size = len(buffer)
        view[offset : offset + size] = buffer
        spans.append((offset, size))
        offset += padded(size)
    return tuple(spans)


def padded(size: int) -> int:
    """Room that a buffer of `size` bytes takes: the next begins at a multiple of 16."""
    return size + -size % 16


def needed_bytes(payload: Payload) -> int:
    """Room that `write_buffers` takes."""
    buffers = payload.buffers
    if len(buffers) == 1:
        return padded(len(buffers[0]))
    return sum(padded(len(buffer)) for buffer in buffers)


def read_buffers(view: memoryview, spans: Sequence[Span]) -> tuple[memoryview, ...]:
    """The buffers at `spans`, not copied."""
    return tuple(view[offset : offset + size] for offset, size in spans)
