"""Who may come in: bounds by count and bytes, a fair share for every client, and when to come again.

Owns the counts of what is inside. Refuses locks and clocks: the caller holds a lock and hands the time in.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass

from facefleet.errors import QueueFullError

_LEAST_RETRY_S, _MOST_RETRY_S = 0.05, 60.0
_KNOWN_S = 1.0  # of busy time, before the rate is believed
_OF_DEADLINE = 0.7  # items differ: an expected wait as long as the deadline would miss it every other time


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much may be inside.

    Attributes:
        max_items: Items.
        max_bytes: Bytes; one item always fits an empty house.
        share: A client may hold so many times what is still free. With 4, one client alone gets four fifths, two get
            four ninths each, and there is always room for a newcomer. Anonymous items are not limited by it.
    """

    max_items: int
    max_bytes: int
    share: float = 4.0


class Admission:
    """Counts what is inside, and refuses at once what is too much.

    The share of a client is the dynamic threshold of Choudhury and Hahne (IEEE/ACM Transactions on Networking 6(2),
    1998): a client is refused when it holds more than `share` times the free room. It needs no list of clients.

    Args:
        bounds: How much may be inside.
    """

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.items = 0
        self.bytes = 0
        self._clients: dict[Hashable, int] = {}
        self._busy_since: float | None = None
        self._busy_s = 0.0
        self._served = 0.0

    def enter(self, now: float, *, size_bytes: int, client: Hashable = None, left_s: float | None = None) -> None:
        """Let an item in.

        An item that would expire inside, by the measured rate, is refused at once: otherwise a queue that is longer
        than the deadlines keeps the workers busy with what nobody waits for any more.

        Args:
            now: The time.
            size_bytes: What it holds.
            client: Whose it is; None: nobody's in particular.
            left_s: Until its deadline; None: it has none, or may wait outside.

        Raises:
            QueueFullError: Not now; `retry_after_s` says when.
        """
        self.check(now)
        free = self.bounds.max_items - self.items
        if self.items and self.bytes + size_bytes > self.bounds.max_bytes:
            raise self._refusal(now, f"{self.bytes} bytes are inside, the limit is {self.bounds.max_bytes}")
        if left_s is not None and self.items and self._wait_s(now) > _OF_DEADLINE * left_s:
            raise self._refusal(now, f"the {self.items} items inside take {self._wait_s(now):.2g} s")
        held = self._clients.get(client, 0)
        if client is not None and held >= max(1.0, self.bounds.share * free):
            raise self._refusal(now, f"this client has {held} items inside already, {free} places are left for all")
        if self._busy_since is None:
            self._busy_since = now
        self.items += 1
        self.bytes += size_bytes
        if client is not None:
            self._clients[client] = held + 1

    def check(self, now: float, *, coming: int = 0) -> None:
        """Whether there is a place at all; nothing is let in.

        Args:
            now: The time.
            coming: Places that others will take before this one does.

        Raises:
            QueueFullError: There is none.
        """
        if self.items + coming >= self.bounds.max_items:
            others = f" and {coming} on their way" if coming else ""
            limit = self.bounds.max_items
            raise self._refusal(now, f"{self.items} items are waiting or running{others}, the limit is {limit}")

    def leave(self, now: float, *, size_bytes: int, client: Hashable = None, served: bool = True) -> None:
        """Let an item out.

        Args:
            now: The time.
            size_bytes: As it entered.
            client: As it entered.
            served: Whether it was worked on; what expired or was taken back says nothing about the rate.
        """
        self.items -= 1
        self.bytes -= size_bytes
        if client is not None:
            left = self._clients[client] - 1
            if left:
                self._clients[client] = left
            else:
                del self._clients[client]
        self._served += served
        self._tick(now)
        if not self.items:
            self._busy_since = None

    def rate(self, now: float) -> float:
        """Items served a second of the time that there were any; 0.0 while not known."""
        self._tick(now)
        return self._served / self._busy_s if self._busy_s > 0 else 0.0

    def retry_after_s(self, now: float) -> float:
        """Seconds until half of what is inside will have been served, 0.05 to 60; 1 while that is not known."""
        rate = self.rate(now)
        if not rate:
            return 1.0
        return min(max(self.items / 2 / rate, _LEAST_RETRY_S), _MOST_RETRY_S)

    def _wait_s(self, now: float) -> float:
        """How long what is inside will take; 0.0 while that is not known."""
        rate = self.rate(now)
        return self.items / rate if rate and self._busy_s > _KNOWN_S else 0.0

    def _tick(self, now: float) -> None:
        """Advance the busy time; both sums fade with a half-life of ten busy seconds."""
        if self._busy_since is None:
            return
        passed = max(now - self._busy_since, 0.0)
        self._busy_since = now
        fade = math.exp2(-passed / 10.0)
        self._served *= fade
        self._busy_s = self._busy_s * fade + passed

    def _refusal(self, now: float, why: str) -> QueueFullError:
        return QueueFullError(why, retry_after_s=self.retry_after_s(now))
