"""Shared memory: allotted, freed, and never twice."""

from __future__ import annotations

import gc
import itertools
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from facefleet.workers.arena import Arena, Slot


@given(st.lists(st.tuples(st.integers(1, 5000), st.booleans(), st.integers(0, 99)), max_size=120))
def test_slots_never_overlap_and_all_comes_back(steps: list[tuple[int, bool, int]]) -> None:
    arena = Arena(16_384)
    held: list[Slot] = []
    for size, frees, which in steps:
        if frees and held:
            arena.release(held.pop(which % len(held)))
            continue
        slot = arena.allot(size)
        if slot is not None:
            assert slot.size >= size
            held.append(slot)
        spans = sorted((slot.offset, slot.offset + slot.size) for slot in held)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
        assert all(start >= 0 and end <= arena.size for start, end in spans)
        assert arena.used == sum(slot.size for slot in held)
    for slot in held:
        arena.release(slot)
    assert arena._free == [(0, arena.size)]
    arena.close()


def test_a_slot_is_free_when_its_last_holder_lets_go() -> None:
    arena = Arena(4096)
    slot = arena.allot(100)
    assert slot is not None
    slot.holders += 1
    arena.release(slot)
    assert arena.used == 128
    arena.release(slot)
    assert arena.used == 0
    arena.close()


def open_files() -> set[Path]:
    return {
        path for folder in ("/proc/self/fd", "/dev/shm") if Path(folder).is_dir() for path in Path(folder).iterdir()
    }


def test_nothing_is_left_in_any_file_system() -> None:
    gc.collect()  # what other tests left must not be closed meanwhile
    before = len(open_files())
    arena = Arena(1 << 20)
    view = arena.view[10:20]
    assert arena.offset_of(view) == 10
    view.release()
    arena.close()
    assert len(open_files()) <= before
