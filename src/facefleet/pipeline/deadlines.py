"""A timer for deadlines, so that they do not wait for a worker.

Owns one thread, which starts with the first deadline.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Deadlines:
    """Calls back when a deadline comes.

    Args:
        call: Called in the timer's thread.
    """

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._changed = threading.Condition()
        self._times: list[float] = []
        self._thread: threading.Thread | None = None
        self._closed = False

    def set(self, deadline: float) -> None:
        """Call when this time comes, on the monotonic clock."""
        with self._changed:
            self._times.append(deadline)
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="facefleet-deadlines", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                now = time.monotonic()
                due = [deadline for deadline in self._times if deadline <= now]
                while not due and not self._closed:
                    self._changed.wait(min(self._times) - now if self._times else None)
                    now = time.monotonic()
                    due = [deadline for deadline in self._times if deadline <= now]
                if self._closed:
                    return
                self._times = [deadline for deadline in self._times if deadline > now]
            self._call()
