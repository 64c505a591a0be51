"""What every index offers, and the part of it that a kind of segment has to write.

An index maps 64-bit ids to unit vectors and finds the most similar ones. It may be changed by one thread at a time
while any number of threads search; a search sees one state, and takes no lock. Scores are cosines in [-1, 1], higher
is more alike; the best come first, equal ones by id.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from facefleet.types import BoolArray, F32Array

NOTHING = -1
"""Id of a place for which no vector is left."""
MARGIN = 16
"""Candidates beyond k, so that what the last bits of a score decide is decided in double precision."""


@dataclass(frozen=True, slots=True)
class Hits:
    """The nearest vectors of each query.

    Attributes:
        ids: (q, k) int64, best first; `NOTHING` where there are fewer than k.
        scores: (q, k) float32 cosines; -inf there.
    """

    ids: NDArray[np.int64]
    scores: F32Array

    @classmethod
    def none(cls, queries: int, k: int) -> Self:
        """No hit at all."""
        return cls(np.full((queries, k), NOTHING, np.int64), np.full((queries, k), -np.inf, np.float32))


class Searcher(Protocol):
    """One state of an index, for searching; safe in any thread."""

    def search(self, queries: F32Array, k: int, *, allowed: NDArray[np.int64] | None = None) -> Hits:
        """Find the nearest.

        Args:
            queries: (q, d) float32 of length one.
            k: How many, at least 1; may be more than there are.
            allowed: (m,) sorted ids to choose from; None: all.

        Raises:
            SearchUnavailableError: A server does not answer.
        """


class Index(ABC):
    """Ids and their vectors, and which are nearest.

    Attributes:
        kind: Its name in options and errors.
        dimension: Length of a vector.
    """

    kind: str
    dimension: int

    @property
    @abstractmethod
    def exact(self) -> bool:
        """Whether the nearest are always found."""

    @abstractmethod
    def apply(self, ids: NDArray[np.int64], vectors: F32Array, removed: NDArray[np.int64]) -> None:
        """Bring it to the next state: remove ids, then add others or replace their vectors, seen all at once.

        Args:
            ids: (n,) unique.
            vectors: (n, d) float32 of length one.
            removed: (m,); those that are not there are passed over.

        Raises:
            SearchUnavailableError: A server does not answer; applying the same again is harmless.
        """

    @abstractmethod
    def searcher(self) -> Searcher:
        """The present state; later changes do not show in it, except where a server holds it."""

    def search(self, queries: F32Array, k: int, *, allowed: NDArray[np.int64] | None = None) -> Hits:
        """As `Searcher.search`, in the present state."""
        return self.searcher().search(queries, k, allowed=allowed)

    @abstractmethod
    def __len__(self) -> int:
        """How many vectors it has."""

    def close(self) -> None:  # noqa: B027  # most have nothing to give back
        """Give everything back."""


class Segment(ABC):
    """A fixed array of vectors, arranged for searching; rows are its ids. Safe in any thread.

    Attributes:
        kind: Its name in options.
        exact: Whether the nearest are always found.
        margin: How many more than are wanted have to be asked for, since its scores are rounded.
    """

    kind: ClassVar[str]
    exact: bool
    margin: int = MARGIN

    @classmethod
    @abstractmethod
    def build(cls, vectors: F32Array, options: Mapping[str, Any]) -> Self:
        """Arrange vectors.

        Args:
            vectors: (n, d) float32 of length one, n >= 1; kept and not changed.
            options: Of this kind.

        Raises:
            ConfigError: An option is unknown or out of range.
            BackendUnavailableError: A library or device is missing.
        """

    @abstractmethod
    def search(self, queries: F32Array, k: int, keep: BoolArray | None) -> tuple[F32Array, NDArray[np.int64]]:
        """Scores and rows of the best, in any order; row -1 and score -inf where there are fewer than k.

        Args:
            queries: (q, d) float32 of length one.
            k: How many, at most the number of rows.
            keep: (n,) the rows to choose from; None: all.
        """

    def save(self, stream: BinaryIO) -> None:  # noqa: B027  # most are made of the vectors at no cost
        """Write what `load` needs beside the vectors."""

    @classmethod
    def load(cls, stream: BinaryIO, vectors: F32Array, options: Mapping[str, Any]) -> Self:
        """Read what `save` wrote."""
        del stream
        return cls.build(vectors, options)

    def facts(self) -> dict[str, object]:
        """What it was built with and what was measured, for people."""
        return {}
