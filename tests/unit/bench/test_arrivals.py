"""What is chosen for callers that come at random moments."""

from __future__ import annotations

from facefleet.bench.tune.arrivals import LOAD, settle
from facefleet.bench.tune.search import Found, Measured, Tried
from facefleet.bench.tune.space import Choice, Layout


def tried(embed: int, rate: float, shots: int = 2, p99_s: float = 0.05) -> Tried[Choice]:
    choice = Choice(Layout("cpu"), "fp32", 1, embed, 0.0, 2)
    return Tried(choice, [Measured(rate, p99_s / 2, p99_s) for _ in range(shots)])


class Machine:
    """Answers within so many seconds, by `embed`."""

    def __init__(self, p99_s: dict[int, float]) -> None:
        self.p99_s = p99_s
        self.asked: list[tuple[int, float]] = []

    def ask(self, choice: Choice, rate: float) -> Measured:
        self.asked.append((choice.embed, rate))
        p99_s = self.p99_s.get(choice.embed)
        return Measured(0.0, 0.0, 0.0, error="it broke") if p99_s is None else Measured(rate, p99_s / 2, p99_s)


def found(*entries: Tried[Choice]) -> Found[Choice]:
    return Found(entries[0], list(entries), 9)


def test_the_best_stays_where_it_holds_the_target() -> None:
    machine = Machine({1: 0.1})
    settled, asked = settle(found(tried(1, 100.0), tried(2, 90.0)), machine.ask, target_s=0.2)
    assert settled.best is not None
    assert settled.best.choice.embed == 1
    assert machine.asked == [(1, LOAD * 100.0)]
    assert [each.holds for each in asked] == [True]


def test_the_next_one_where_it_does_not() -> None:
    machine = Machine({1: 0.3, 4: 0.1})
    entries = found(tried(1, 100.0), tried(2, 99.0, shots=1), tried(4, 90.0), tried(8, 95.0, p99_s=0.4))
    settled, asked = settle(entries, machine.ask, target_s=0.2)
    assert settled.best is not None
    assert settled.best.choice.embed == 4  # measured twice, so before the one that was faster once
    assert [(each.choice.embed, each.holds) for each in asked] == [(1, False), (4, True)]
    assert settled.measurements == 9


def test_the_fastest_where_none_does_and_where_they_break() -> None:
    machine = Machine({1: 0.3, 2: 0.4})
    entries = found(tried(1, 100.0), tried(2, 90.0), tried(4, 80.0), tried(8, 70.0))
    settled, asked = settle(entries, machine.ask, target_s=0.2)
    assert settled.best is entries.best
    assert [each.choice.embed for each in asked] == [1, 2, 4]
    assert asked[-1].seen.error == "it broke"


def test_nothing_is_asked_where_nothing_was_found() -> None:
    machine = Machine({})
    nothing: Found[Choice] = Found(None, [tried(1, 100.0)], 9)
    assert settle(nothing, machine.ask, target_s=0.01) == (nothing, [])
