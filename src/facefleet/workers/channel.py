"""Messages between the parent and a worker, over a socket pair of their own.

Owns the wire: a pickled tuple of names and numbers a message, between processes of one user and one program; bytes of
works lie in the arena, or follow as raw frames where it has no room for them. Sending is safe in several threads.
"""

from __future__ import annotations

import pickle
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

from facefleet.workers.work import Buffer, Payload

Span: TypeAlias = "tuple[int, int]"
"""Offset and bytes in the arena."""
Where: TypeAlias = "tuple[Span, ...] | int"
"""Where the buffers of a payload are: in the arena, or in so many raw frames after the message."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A work in a message to a worker.

    Attributes:
        number: The work's.
        meta: Of the payload.
        where: Its buffers.
        result: Room for the results in the arena; None: none.
    """

    number: int
    meta: Any
    where: Where
    result: Span | None

    def __reduce__(self) -> tuple[object, ...]:
        return (Sent, (self.number, self.meta, self.where, self.result))


class Channel:
    """One end.

    Args:
        fd: A connected stream socket; owned from now on.
    """

    def __init__(self, fd: int) -> None:
        self._connection = Connection(fd)
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """For selectors."""
        return self._connection.fileno()

    def send(self, message: tuple[Any, ...], frames: Sequence[Buffer] = ()) -> None:
        """Send a message, and raw frames after it.

        Raises:
            OSError: The other side is gone.
        """
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        with self._lock:
            self._connection.send_bytes(data)
            for frame in frames:
                self._connection.send_bytes(frame if len(frame) else b"\0")

    def receive(self) -> tuple[Any, ...]:
        """The next message; its frames are read with `frames`.

        Raises:
            EOFError: The other side is gone.
            OSError: Likewise, in the middle.
        """
        message = pickle.loads(self._connection.recv_bytes())  # noqa: S301  # our own other end
        assert isinstance(message, tuple)
        return message

    def frames(self, sizes: Sequence[int]) -> tuple[bytes, ...]:
        """Raw frames after a message, of known sizes."""
        return tuple(self._connection.recv_bytes()[:size] for size in sizes)

    def waiting(self) -> bool:
        """Whether something can be received, the end included."""
        return self._connection.poll()

    def close(self) -> None:
        """Close this end."""
        self._connection.close()


def pair() -> tuple[Channel, int]:
    """This side of a new channel, and the descriptor of the other, for a child."""
    ours, theirs = socket.socketpair()
    return Channel(ours.detach()), theirs.detach()


def write_buffers(view: memoryview, offset: int, payload: Payload) -> tuple[Span, ...]:
    """Put the buffers of a payload into the arena one after the other, from `offset` on."""
    spans = []
    for buffer in payload.buffers:
        size = len(buffer)
        view[offset : offset + size] = buffer
        spans.append((offset, size))
        offset += size + -size % 16
    return tuple(spans)


def needed_bytes(payload: Payload) -> int:
    """Room that `write_buffers` takes."""
    return sum(len(buffer) + -len(buffer) % 16 for buffer in payload.buffers)


def read_buffers(view: memoryview, spans: Sequence[Span]) -> tuple[memoryview, ...]:
    """The buffers at `spans`, not copied."""
    return tuple(view[offset : offset + size] for offset, size in spans)
