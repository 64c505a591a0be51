"""Whose each sample is, as arrays: one state, frozen.

Big and fixed arrays, and a small dict of what changed since; joined when the dict grows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

_MOST_CHANGES = 4096


@dataclass(frozen=True, slots=True)
class Roster:
    """Samples and people.

    Attributes:
        ids: (n,) int64 sample ids, ascending.
        people: (n,) int64, whose each is.
        changes: What differs from these: sample -> person, None where it was removed.
    """

    ids: NDArray[np.int64]
    people: NDArray[np.int64]
    changes: Mapping[int, int | None] = field(default_factory=dict, repr=False)

    def changed(self, ids: NDArray[np.int64], people: NDArray[np.int64], removed: NDArray[np.int64]) -> Self:
        """The next state."""
        if not len(ids) and not len(removed):
            return self
        changes = dict(self.changes)
        changes |= dict.fromkeys(removed.tolist())
        changes |= dict(zip(ids.tolist(), people.tolist(), strict=True))
        fresh = type(self)(self.ids, self.people, changes)
        return fresh if len(changes) <= _MOST_CHANGES else type(self)(*fresh.arrays())

    def arrays(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(n,) sample ids, ascending, and (n,) whose each is."""
        if not self.changes:
            return self.ids, self.people
        touched = np.fromiter(self.changes, np.int64)
        rows = ~np.isin(self.ids, touched)
        living = [(sample, person) for sample, person in self.changes.items() if person is not None]
        fresh = np.array(living, np.int64).reshape(-1, 2)
        ids = np.concatenate([self.ids[rows], fresh[:, 0]])
        people = np.concatenate([self.people[rows], fresh[:, 1]])
        order = np.argsort(ids)
        return ids[order], people[order]

    def people_of(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Whose samples are; -1 for those that are not there.

        Args:
            ids: int64 of any shape.

        Returns:
            int64 of the same shape.
        """
        flat = ids.reshape(-1)
        out = np.full(len(flat), -1, np.int64)
        if len(self.ids):
            places = np.minimum(np.searchsorted(self.ids, flat), len(self.ids) - 1)
            found = self.ids[places] == flat
            out[found] = self.people[places[found]]
        if self.changes:
            for i, number in enumerate(flat.tolist()):
                if number in self.changes:
                    person = self.changes[number]
                    out[i] = -1 if person is None else person
        return out.reshape(ids.shape)

    def samples_of(self, people: Iterable[int]) -> NDArray[np.int64]:
        """(m,) sample ids of some people, ascending."""
        ids, owners = self.arrays()
        return ids[np.isin(owners, np.fromiter(people, np.int64))]
