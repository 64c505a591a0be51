"""Which frames are looked at."""

from __future__ import annotations

import json
import random

import pytest

from facefleet.errors import ConfigError
from facefleet.sources.video import Sampling
from facefleet.sources.video.backoff import Backoff
from facefleet.sources.video.sampling import Sampler


def taken(sampling: Sampling, times: list[float]) -> list[int]:
    sampler = Sampler(sampling)
    return [index for index, time_s in enumerate(times) if sampler.due(index, time_s)]


def test_every() -> None:
    assert taken(Sampling(every=4), [0.04 * n for n in range(10)]) == [0, 4, 8]


def test_fps_takes_the_first_frame_at_or_after_each_moment() -> None:
    assert taken(Sampling(fps=5), [0.04 * n for n in range(12)]) == [0, 5, 10]
    assert taken(Sampling(fps=10), [0.04 * n for n in range(11)]) == [0, 3, 5, 8, 10]


def test_fps_counts_from_the_first_frame_and_never_catches_up() -> None:
    times = [7.03, 7.05, 7.24, 9.0, 9.01, 9.2, 9.24]
    assert taken(Sampling(fps=5), times) == [0, 2, 3, 5, 6]  # moments 7.03, 7.23, ..., 9.03, 9.23


def test_a_video_slower_than_the_rate_gives_every_frame() -> None:
    assert taken(Sampling(fps=50), [0.1 * n for n in range(5)]) == [0, 1, 2, 3, 4]


def test_state_goes_on_where_it_was() -> None:
    times = [0.031 * n for n in range(200)]
    whole = Sampler(Sampling(fps=7))
    expected = [whole.due(n, t) for n, t in enumerate(times)]
    first = Sampler(Sampling(fps=7))
    got = [first.due(n, t) for n, t in enumerate(times[:77])]
    second = Sampler(Sampling(fps=7), json.loads(json.dumps(first.state)))
    got += [second.due(n, t) for n, t in enumerate(times[77:], 77)]
    assert got == expected


@pytest.mark.parametrize(
    "values",
    [
        {"every": 0},
        {"fps": 0.0},
        {"fps": float("inf")},
        {"scene": 1.5},
        {"every": 2, "fps": 3.0},
        {"keyframes": True, "fps": 3.0},
        {"start_s": -1.0},
        {"start_s": 5.0, "end_s": 5.0},
    ],
)
def test_what_cannot_be_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as caught:
        Sampling(**values)
    assert caught.value.hint


def test_backoff_doubles_with_jitter_up_to_its_limit() -> None:
    backoff = Backoff(0.5, 8.0, random.Random(3))
    waits = [backoff.next_s() for _ in range(9)]
    for number, wait in enumerate(waits):
        limit = min(8.0, 0.5 * 2**number)
        assert limit / 2 <= wait <= limit
    assert len(set(waits)) == len(waits)
    backoff.reset()
    assert backoff.next_s() <= 0.5
