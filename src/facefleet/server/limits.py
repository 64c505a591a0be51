"""Limits of the server: what a request may hold, how fast it has to come, and how often a key may ask.

Owns values and counting; who reads bytes asks here, chunk by chunk. `Room` and `Rate` belong to the event loop's
thread and need no lock.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from facefleet.errors import NotReadyError, PayloadTooLargeError, QueueFullError, RateLimitError

_DAY_S = 86400
_QUICK_S = 1.0
_HINT = "GET /v1/info shows all limits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the server takes.

    Attributes:
        max_image_bytes: Most bytes of one encoded picture.
        max_images: Most pictures a request.
        max_body_bytes: Most bytes of a request with several pictures.
        max_held_bytes: Most bytes of bodies that are being read, of all requests together.
        max_requests: Most requests inside at a time; health and metrics do not count.
        body_timeout_s: Longest that a body may be waited for in all.
        idle_timeout_s: Some of a body has to come within this.
        header_timeout_s: Headers have to be here after so long.
        timeout_s: Deadline of a request that names none.
        max_timeout_s: Most that a request may ask for.
    """

    max_image_bytes: int = 32 << 20
    max_images: int = 256
    max_body_bytes: int = 512 << 20
    max_held_bytes: int = 1 << 30
    max_requests: int = 1024
    body_timeout_s: float = 60.0
    idle_timeout_s: float = 10.0
    header_timeout_s: float = 10.0
    timeout_s: float = 30.0
    max_timeout_s: float = 300.0

    @property
    def max_json_bytes(self) -> int:
        """Most bytes of a JSON body with one picture: base64 takes a third more."""
        return self.max_image_bytes // 3 * 4 + (64 << 10)

    def check(self, size_bytes: int, limit_bytes: int, what: str) -> None:
        """Hold a size against a limit.

        Raises:
            PayloadTooLargeError: It is larger.
        """
        if size_bytes > limit_bytes:
            raise PayloadTooLargeError(f"{what}: more than {limit_bytes} bytes", hint=_HINT)

    def check_images(self, count: int) -> None:
        """Hold a number of pictures against the limit.

        Raises:
            PayloadTooLargeError: There are more.
        """
        if count > self.max_images:
            raise PayloadTooLargeError(f"more than {self.max_images} pictures in one request", hint=_HINT)


class Room:
    """What requests hold at a time: their number, and the bytes of bodies that are being read.

    Also which pictures are on their way to the engine, so that no more bodies are read than it has places for. A body
    that takes longer than a second keeps no place: clients that send slowly could hold all of them.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._numbers = itertools.count()
        self._coming: dict[int, float] = {}
        self.requests = 0
        self.held_bytes = 0
        self.closed = False

    def enter(self) -> None:
        """One request more.

        Raises:
            NotReadyError: The server is stopping.
            QueueFullError: There are too many.
        """
        if self.closed:
            raise NotReadyError("the server is stopping", hint="ask another one, or try again in a moment")
        if self.requests >= self._limits.max_requests:
            raise QueueFullError(f"{self.requests} requests are inside")
        self.requests += 1

    def leave(self) -> None:
        """One request less."""
        self.requests -= 1

    def announce(self, now: float) -> int:
        """One picture is on its way; the number is for `came`.

        Args:
            now: Monotonic seconds.
        """
        number = next(self._numbers)
        self._coming[number] = now
        return number

    def came(self, number: int | None) -> None:
        """A picture that was announced is here, or will not come; harmless when said twice. None: none was."""
        if number is not None:
            self._coming.pop(number, None)

    def coming(self, now: float) -> int:
        """Pictures that are on their way.

        Args:
            now: Monotonic seconds.
        """
        while self._coming:
            oldest = next(iter(self._coming))
            if now - self._coming[oldest] <= _QUICK_S:
                break
            del self._coming[oldest]
        return len(self._coming)

    def hold(self, size_bytes: int) -> None:
        """Some bytes more.

        Raises:
            QueueFullError: All requests together hold too many.
        """
        if self.held_bytes + size_bytes > self._limits.max_held_bytes:
            raise QueueFullError(f"{self.held_bytes} bytes of bodies are being read")
        self.held_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """Some bytes less."""
        self.held_bytes -= size_bytes


class Quota:
    """So many pictures a day, in UTC; counted from the start of the process.

    Args:
        images_per_day: How many.
        clock: Seconds since 1970.
    """

    def __init__(self, images_per_day: int, clock: Callable[[], float]) -> None:
        self._most = images_per_day
        self._clock = clock
        self._day = -1
        self._used = 0

    def take(self, images: int = 1) -> None:
        """Count pictures.

        Raises:
            RateLimitError: The day's are used up, or these would be too many; says when the next day begins.
        """
        now = self._clock()
        day = int(now // _DAY_S)
        if day != self._day:
            self._day, self._used = day, 0
        if self._used + images > self._most:
            left_s = (day + 1) * _DAY_S - now
            raise RateLimitError(f"this key may send {self._most} pictures a day", retry_after_s=left_s)
        self._used += images


class Rate:
    """A token bucket: so many pictures a second, with a second's worth of burst.

    Args:
        images_per_s: The rate; it holds over time, also where one request is larger than the burst.
        clock: Monotonic seconds.
    """

    def __init__(self, images_per_s: float, clock: Callable[[], float]) -> None:
        self._rate = images_per_s
        self._burst = max(1.0, images_per_s)
        self._clock = clock
        self._tokens = self._burst
        self._at = clock()

    def take(self, images: int = 1) -> None:
        """Count pictures.

        Raises:
            RateLimitError: Too many came before; says when to come again.
        """
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
        if self._tokens < min(1.0, self._burst):
            wait_s = (1.0 - self._tokens) / self._rate
            raise RateLimitError(f"this key may send {self._rate:g} pictures a second", retry_after_s=wait_s)
        self._tokens -= images
