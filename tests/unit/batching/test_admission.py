"""Who may come in."""

from __future__ import annotations

import contextlib
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from facefleet.batching import Admission, Bounds
from facefleet.errors import QueueFullError


def test_count_and_bytes_are_bounded_and_one_always_fits() -> None:
    admission = Admission(Bounds(2, 100))
    admission.enter(0.0, size_bytes=500)
    with pytest.raises(QueueFullError, match="bytes"):
        admission.enter(0.0, size_bytes=1)
    admission.leave(1.0, size_bytes=500)
    admission.enter(1.0, size_bytes=50)
    admission.enter(1.0, size_bytes=50)
    with pytest.raises(QueueFullError, match="2 items"):
        admission.enter(1.0, size_bytes=0)


def test_places_of_those_on_their_way_are_not_given_away() -> None:
    admission = Admission(Bounds(3, 100))
    admission.enter(0.0, size_bytes=1)
    admission.check(0.0, coming=1)
    with pytest.raises(QueueFullError, match="1 items are waiting or running and 2 on their way"):
        admission.check(0.0, coming=2)
    admission.leave(1.0, size_bytes=1)
    admission.check(1.0, coming=2)


def test_the_time_to_come_again_follows_the_measured_rate() -> None:
    admission = Admission(Bounds(100, 10**9))
    for _ in range(100):
        admission.enter(0.0, size_bytes=1)
    assert admission.retry_after_s(0.0) == 1.0  # not known yet
    now = 0.0
    for _ in range(60):
        now += 0.05  # 20 a second
        admission.leave(now, size_bytes=1)
        admission.enter(now, size_bytes=1)
    assert admission.rate(now) == pytest.approx(20, rel=0.05)
    with pytest.raises(QueueFullError) as caught:
        admission.enter(now, size_bytes=1)
    assert caught.value.retry_after_s == pytest.approx(50 / 20, rel=0.05)
    assert pickle.loads(pickle.dumps(caught.value)).retry_after_s == caught.value.retry_after_s


def test_idle_time_does_not_lower_the_rate() -> None:
    admission = Admission(Bounds(10, 10**9))
    for start in (0.0, 100.0, 200.0):
        admission.enter(start, size_bytes=1)
        admission.leave(start + 0.1, size_bytes=1)
    assert admission.rate(500.0) == pytest.approx(10, rel=0.05)


def test_a_greedy_client_leaves_room_for_others() -> None:
    admission = Admission(Bounds(100, 10**9, share=4.0))

    def fill(client: str) -> int:
        for entered in range(200):
            try:
                admission.enter(0.0, size_bytes=1, client=client)
            except QueueFullError:
                return entered
        raise AssertionError("never refused")

    greedy, modest = fill("greedy"), fill("modest")
    assert greedy == 80
    assert modest >= 15
    for _ in range(100 - greedy - modest):
        admission.enter(0.0, size_bytes=1)  # nobody in particular: only the bounds count


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60), st.booleans()), max_size=80))
def test_bounds_are_never_passed(steps: list[tuple[int, int, bool]]) -> None:
    admission = Admission(Bounds(5, 100))
    inside: list[tuple[int, int]] = []
    for number, (client, size, leaves) in enumerate(steps):
        if leaves and inside:
            owner, held = inside.pop(0)
            admission.leave(float(number), size_bytes=held, client=owner)
            continue
        try:
            admission.enter(float(number), size_bytes=size, client=client)
            inside.append((client, size))
        except QueueFullError:
            assert inside
        assert len(inside) == admission.items <= 5
        assert sum(held for _, held in inside) == admission.bytes
        assert admission.bytes <= 100 or len(inside) == 1
    for owner, held in inside:
        admission.leave(99.0, size_bytes=held, client=owner)
    assert (admission.items, admission.bytes, admission._clients) == (0, 0, {})


def test_what_would_expire_inside_is_refused_at_once() -> None:
    admission = Admission(Bounds(1000, 10**9))
    now = 0.0
    for _ in range(60):
        admission.enter(now, size_bytes=1, left_s=0.001)  # an empty house takes it, whatever the rate
        now += 0.1  # 10 a second
        admission.leave(now, size_bytes=1)
    with contextlib.suppress(QueueFullError):
        for _ in range(100):
            admission.enter(now, size_bytes=1, left_s=2.0)
    assert 13 <= admission.items <= 15, "seven tenths of two seconds"
    with pytest.raises(QueueFullError, match="items inside take"):
        admission.enter(now, size_bytes=1, left_s=2.0)
    admission.enter(now, size_bytes=1, left_s=10.0)
    admission.enter(now, size_bytes=1)


def test_a_rate_that_is_not_known_refuses_nobody() -> None:
    admission = Admission(Bounds(1000, 10**9))
    for _ in range(100):
        admission.enter(0.0, size_bytes=1, left_s=0.1)
