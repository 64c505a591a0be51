from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from facefleet.bench.drive import closed_loop, open_loop
from facefleet.errors import CorruptImageError, QueueFullError
from facefleet.types import Outcome


class Fake:
    """Answers after a while with two faces; every tenth fails."""

    def __init__(self, pool: ThreadPoolExecutor, seconds: float = 0.002, fail_every: int = 0) -> None:
        self.pool, self.seconds, self.fail_every = pool, seconds, fail_every
        self.lock = threading.Lock()
        self.inside = self.most = self.count = 0

    def __call__(self, number: int) -> Future[Any]:
        with self.lock:
            self.count += 1
            self.inside += 1
            self.most = max(self.most, self.inside)
        return self.pool.submit(self._answer, number)

    def _answer(self, number: int) -> Outcome[Any]:
        time.sleep(self.seconds)
        with self.lock:
            self.inside -= 1
        if self.fail_every and number % self.fail_every == 0:
            return Outcome(error=CorruptImageError("x"))
        return Outcome([1, 2])


@pytest.fixture
def pool() -> Any:
    with ThreadPoolExecutor(32) as found:
        yield found


class TestClosedLoop:
    def test_never_more_inside_than_wanted(self, pool: ThreadPoolExecutor) -> None:
        fake = Fake(pool)
        driven = closed_loop(fake, in_flight=3, seconds=0.2)
        assert fake.most == 3
        assert len(driven.latencies_s) == fake.count > 3
        assert driven.faces == 2 * fake.count
        assert driven.images_per_s == pytest.approx(fake.count / driven.seconds)
        assert min(driven.latencies_s) >= 0.002

    def test_warm_up_does_not_count_but_is_driven(self, pool: ThreadPoolExecutor) -> None:
        fake = Fake(pool)
        driven = closed_loop(fake, in_flight=2, seconds=0.0, warmup=10)
        assert fake.count >= 11
        assert len(driven.latencies_s) <= 3

    def test_whole_rounds(self, pool: ThreadPoolExecutor) -> None:
        driven = closed_loop(Fake(pool), in_flight=3, seconds=0.3, whole=7)
        assert len(driven.latencies_s) % 7 == 0 or driven.seconds >= 0.9

    def test_failures(self, pool: ThreadPoolExecutor) -> None:
        driven = closed_loop(Fake(pool, fail_every=2), in_flight=2, seconds=0.1)
        assert driven.failed > 0
        assert driven.failed + len(driven.latencies_s) > 4


class TestOpenLoop:
    def test_latency_begins_when_a_photo_is_due(self, pool: ThreadPoolExecutor) -> None:
        fake = Fake(pool, seconds=0.001)

        def blocking(number: int) -> Future[Any]:
            if number == 0:
                time.sleep(0.3)  # the house is full: what is due meanwhile is late
            return fake(number)

        driven = open_loop(blocking, [0.0, 0.05, 0.1, 0.5])
        assert len(driven.latencies_s) == 4
        slow = sorted(driven.latencies_s)
        assert slow[0] < slow[3]
        assert slow[1] >= 0.19
        assert slow[2] >= 0.24
        assert slow[3] >= 0.29

    def test_refusals_count_as_failed(self, pool: ThreadPoolExecutor) -> None:
        fake = Fake(pool)

        def refusing(number: int) -> Future[Any]:
            if number % 2:
                raise QueueFullError("full")
            return fake(number)

        driven = open_loop(refusing, [0.0] * 6)
        assert (driven.failed, len(driven.latencies_s)) == (3, 3)
