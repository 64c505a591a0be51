"""The best faces of a track, and whose it is."""

from __future__ import annotations

import numpy as np
import pytest

from facefleet.tracks import BestFaces, PersonOptions, Persons, usefulness
from facefleet.types import Faces, Quality


def unit(*values: float) -> np.ndarray:
    vector = np.array(values, np.float32)
    return vector / np.linalg.norm(vector)


class Gallery:
    def identify(self, embedding: np.ndarray) -> tuple[str, float] | None:
        score = float(embedding[0])
        return ("Ada", score) if score > 0.9 else None


def test_the_best_are_kept_best_first() -> None:
    best = BestFaces(3)
    offered = [0.2, 0.9, 0.4, 0.9, 0.1, 0.5]
    kept = [best.offer(value, float(n), n, np.full((2, 2, 3), n, np.uint8)) for n, value in enumerate(offered)]
    assert kept == [True, True, True, True, False, True]
    assert [(face.row, face.usefulness) for face in best.faces] == [(1, 0.9), (3, 0.9), (5, 0.5)]
    assert best.faces[0].chip[0, 0, 0] == 1
    assert best.faces[0].time_s == 1.0


def test_kept_chips_do_not_hold_the_arrays_they_came_from() -> None:
    chips = np.zeros((50, 8, 8, 3), np.uint8)
    best = BestFaces(1)
    best.offer(0.5, 0.0, 0, chips[3])
    assert best.faces[0].chip.base is None


def test_usefulness_prefers_large_frontal_sharp_faces() -> None:
    n = 5
    quality = Quality(
        np.array([112, 20, 112, 112, 112], np.float32),
        np.array([500, 500, 5, 500, 500], np.float32),
        np.array([0, 0, 0, 70, 0], np.float32),
        np.zeros(n, np.float32),
        np.zeros(n, np.float32),
    )
    status = np.array([0, 0, 0, 0, 1], np.uint8)
    score = np.full(n, 0.9, np.float32)
    boxes = np.tile(np.array([0, 0, 9, 9], np.float32), (n, 1))
    faces = Faces(
        "", 99, 99, boxes, np.zeros((n, 5, 2), np.float32), score, np.empty((n, 0), np.float32), score, status, quality
    )
    values = usefulness(faces)
    assert values[0] == max(values)
    assert values[4] == 0
    assert (values[1:4] < 0.5 * values[0]).all()


def test_unknown_persons_are_told_apart_and_joined_again() -> None:
    persons = Persons(PersonOptions(threshold=0.6))
    a, b = unit(1, 0, 0.1), unit(0, 1, 0)
    assert persons.identify(a, 0, 1).person == "person 1"
    assert persons.identify(b, 0, 1).person == "person 2"
    again = persons.identify(unit(1, 0.2, 0), 5, 6)
    assert again.person == "person 1"
    assert again.score == pytest.approx(float(a @ unit(1, 0.2, 0)))


def test_nobody_is_in_two_places_at_once() -> None:
    persons = Persons(PersonOptions(threshold=0.6))
    persons.identify(unit(1, 0), 0, 10)
    assert persons.identify(unit(1, 0.01), 4, 6).person == "person 2"
    assert persons.identify(unit(1, 0.0), 11, 12).person == "person 1"


def test_the_gallery_is_asked_first() -> None:
    persons = Persons(PersonOptions(threshold=0.6), Gallery())
    found = persons.identify(unit(1, 0.1), 0, 1)
    assert (found.person, found.known) == ("Ada", True)
    assert persons.identify(unit(0.2, 1), 0, 1).person == "person 1"


def test_without_an_embedding_it_is_nobody() -> None:
    found = Persons(PersonOptions(threshold=0.6), Gallery()).identify(None, 0, 1)
    assert (found.person, found.known, found.score) == ("unknown", False, None)


def test_two_cameras_may_see_one_person_at_once() -> None:
    persons = Persons(PersonOptions(threshold=0.6))
    assert persons.identify(unit(1, 0), 0, 10, camera="door").person == "person 1"
    assert persons.identify(unit(1, 0.01), 4, 6, camera="hall").person == "person 1"
    assert persons.identify(unit(1, 0.02), 5, 6, camera="hall").person == "person 2"


def test_of_a_stream_without_end_only_the_last_persons_are_remembered() -> None:
    persons = Persons(PersonOptions(threshold=0.9, most=2, most_times=3))
    a, b, c = unit(1, 0, 0), unit(0, 1, 0), unit(0, 0, 1)
    times = iter(range(100))

    def seen(embedding: np.ndarray) -> str:
        start = next(times)
        return persons.identify(embedding, start, start + 0.5).person

    assert [seen(each) for each in (a, b, a, c)] == ["person 1", "person 2", "person 1", "person 3"]
    assert [seen(each) for each in (a, c, b)] == ["person 1", "person 3", "person 4"]
    assert all(len(person.times) <= 3 for person in persons._people.values())
    assert len(persons._people) == 2
