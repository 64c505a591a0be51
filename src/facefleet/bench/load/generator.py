"""Sends requests: so many at a time (closed loop), or when they are due, whatever the server does (open loop).

In an open loop a request's latency begins when it was due. A server that stalls delays what is due meanwhile, and all
of that counts: the tester does not wait with the server, which would leave out the worst of what callers see
("coordinated omission", Gil Tene, 2013). Owns connections; runs in one event loop, for one measurement.
"""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from facefleet.bench.load.connection import Connection, Target
from facefleet.errors import ConfigError

_SPIN_S = 0.002  # timers of an event loop are that coarse; closer moments are waited for by asking the clock


@dataclass(slots=True)
class Sent:
    """What was sent and what came back; lists have an entry an answer.

    Attributes:
        seconds: From the first moment that counts to the last answer.
        planned: Requests that were due.
        latencies_s: From the moment a request was due (closed loop: sent) to its answer.
        services_s: From the moment it was sent.
        photos: Which photo it carried.
        late_s: How much later than due each request was handed to a connection or to the queue of those that wait for
            one; the generator's own fault, not the server's.
        statuses: HTTP status -> answers; 0: the connection was lost or timed out.
        faces: Photo -> faces in its answer, where the answer says so.
        send_s: From the first request due to the last one handed over.
    """

    seconds: float = 0.0
    planned: int = 0
    latencies_s: list[float] = field(default_factory=list)
    services_s: list[float] = field(default_factory=list)
    photos: list[int] = field(default_factory=list)
    late_s: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    faces: dict[int, int] = field(default_factory=dict)
    send_s: float = 0.0

    @property
    def failed(self) -> int:
        """Answers that were no result."""
        return sum(count for status, count in self.statuses.items() if not 200 <= status < 300)


@dataclass(slots=True)
class _Flight:
    photo: int
    due: float
    sent: float = 0.0


class Generator:
    """Requests to one server.

    Args:
        target: The server.
        bodies: Photos; request number i carries photo ``order[i % len(order)]``.
        order: Which photo each request carries.
        headers: Of every request.
        connections: Most at a time, in an open loop.
        timeout_s: A request without an answer for so long is given up.
    """

    def __init__(
        self,
        target: Target,
        bodies: Sequence[bytes],
        order: Sequence[int],
        headers: dict[str, str],
        *,
        connections: int = 256,
        timeout_s: float = 30.0,
    ) -> None:
        self._target = target
        self._requests = [target.request(body, headers) for body in bodies]
        self._order = order
        self._most = connections
        self._timeout_s = timeout_s
        self._idle: deque[Connection] = deque()
        self._flights: dict[Connection, _Flight] = {}
        self._queue: deque[_Flight] = deque()
        self._opening = 0
        self._all: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._sent = Sent()
        self._closed_until = 0.0
        self._next = 0

    async def closed(self, users: int, seconds: float) -> Sent:
        """So many callers, each of whom waits for an answer before the next request.

        Args:
            users: How many.
            seconds: Requests are sent for so long.

        Raises:
            ConfigError: The server cannot be reached.
        """
        await self._connect(users)
        with _no_collection():
            started = time.perf_counter()
            self._closed_until = started + seconds
            for connection in list(self._idle):
                self._idle.popleft()
                self._follow(connection)
            await self._drained()
        self._sent.planned = self._next
        self._sent.send_s = self._sent.seconds = time.perf_counter() - started
        await self._close()
        return self._sent

    async def open(self, due_s: Sequence[float]) -> Sent:
        """Requests at given times.

        Args:
            due_s: Seconds from the beginning, rising.

        Raises:
            ConfigError: The server cannot be reached.
        """
        await self._connect(min(8, self._most))
        with _no_collection():
            started = time.perf_counter() + 0.05
            for number, offset in enumerate(due_s):
                due = started + offset
                while (ahead := due - time.perf_counter()) > 0:
                    await asyncio.sleep(ahead - _SPIN_S if ahead > _SPIN_S else 0)
                if number % 16 == 15:
                    await asyncio.sleep(0)  # answers are read also while requests are late
                flight = _Flight(self._order[number % len(self._order)], due)
                self._sent.late_s.append(time.perf_counter() - due)
                self._give(flight)
            self._sent.send_s = time.perf_counter() - started
            await self._drained()
        self._sent.planned = len(due_s)
        self._sent.seconds = time.perf_counter() - started
        await self._close()
        return self._sent

    def _give(self, flight: _Flight) -> None:
        """To a free connection, to a new one, or to the queue."""
        while self._idle:
            connection = self._idle.pop()
            if connection.open:
                self._send(connection, flight)
                return
            self._all.discard(connection)  # servers close what was idle for long
        self._queue.append(flight)
        if len(self._all) + self._opening < self._most and self._opening < len(self._queue):
            self._opening += 1
            task = asyncio.get_running_loop().create_task(self._open_one())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _send(self, connection: Connection, flight: _Flight) -> None:
        flight.sent = time.perf_counter()
        self._flights[connection] = flight
        connection.send(self._requests[flight.photo])

    def _follow(self, connection: Connection) -> None:
        """The next request of a caller of a closed loop."""
        now = time.perf_counter()
        if now >= self._closed_until:
            self._idle.append(connection)
            return
        flight = _Flight(self._order[self._next % len(self._order)], now)
        self._next += 1
        self._send(connection, flight)

    def _answered(self, connection: Connection, status: int, body: bytes, now: float) -> None:
        flight = self._flights.pop(connection, None)
        if flight is not None:
            self._sent.statuses[status] += 1
            if 200 <= status < 300:
                self._sent.latencies_s.append(now - flight.due)
                self._sent.services_s.append(now - flight.sent)
                self._sent.photos.append(flight.photo)
                if flight.photo not in self._sent.faces:
                    self._sent.faces[flight.photo] = _faces(body)
        if not connection.open:
            self._all.discard(connection)
            if self._closed_until or self._queue:
                self._reopen()
        elif self._closed_until:
            self._follow(connection)
        elif self._queue:
            self._send(connection, self._queue.popleft())
        else:
            self._idle.append(connection)
        self._changed.set()

    def _reopen(self) -> None:
        self._opening += 1
        task = asyncio.get_running_loop().create_task(self._open_one())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _open_one(self) -> None:
        connection = Connection(self._answered)
        try:
            await asyncio.wait_for(connection.connect(self._target), self._timeout_s)
        except (OSError, TimeoutError):
            self._opening -= 1
            if self._queue:  # nobody there: what waited for this connection failed
                self._queue.popleft()
                self._sent.statuses[0] += 1
            self._changed.set()
            return
        self._opening -= 1
        self._all.add(connection)
        if self._closed_until:
            self._follow(connection)
        elif self._queue:
            self._send(connection, self._queue.popleft())
        else:
            self._idle.append(connection)

    async def _connect(self, count: int) -> None:
        async def one() -> Connection:
            connection = Connection(self._answered)
            await asyncio.wait_for(connection.connect(self._target), self._timeout_s)
            return connection

        try:
            opened = await asyncio.gather(*(one() for _ in range(count)))
        except (OSError, TimeoutError) as error:
            raise ConfigError(
                f"{self._target.host}:{self._target.port} does not answer: {error or 'no answer in time'}",
                hint="start the server first; `facefleet bench serve null` measures the generator alone",
            ) from error
        self._all.update(opened)
        self._idle.extend(opened)

    async def _drained(self) -> None:
        """Wait until nothing is under way; what takes longer than the timeout is given up."""
        while self._flights or self._queue or self._opening:
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), 0.5)
            except TimeoutError:
                limit = time.perf_counter() - self._timeout_s
                for connection, flight in list(self._flights.items()):
                    if flight.sent < limit:
                        connection.close()

    async def _close(self) -> None:
        for connection in self._all:
            connection.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.sleep(0)


def _faces(body: bytes) -> int:
    """Faces in an answer of facefleet's server; -1 for any other answer."""
    try:
        faces = json.loads(body)["faces"]
        return len(faces)
    except (ValueError, KeyError, TypeError):
        return -1


class _no_collection:  # noqa: N801  # used as a statement
    """The collector of garbage does not run meanwhile: its pauses would be taken for the server's."""

    def __enter__(self) -> None:
        self._was = gc.isenabled()
        gc.collect()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._was:
            gc.enable()
