"""A bound on the pixels being decoded at a time, and so on the memory that decoding takes.

Safe in any thread; a thread that asks for more than is free waits for its turn.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class PixelBudget:
    """At most `limit` pixels at a time; a picture larger than that is decoded alone. First come, first served.

    Args:
        limit: Pixels.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._queue: deque[object] = deque()
        self._changed = threading.Condition()

    @contextmanager
    def hold(self, pixels: int) -> Iterator[None]:
        """Wait until `pixels` are free and hold them for the length of the block."""
        ticket = object()
        with self._changed:
            self._queue.append(ticket)
            try:
                # In order of arrival: small pictures would keep a large one waiting for ever.
                self._changed.wait_for(
                    lambda: self._queue[0] is ticket and (not self._used or self._used + pixels <= self._limit)
                )
                self._used += pixels
            finally:
                self._queue.remove(ticket)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._used -= pixels
                self._changed.notify_all()
