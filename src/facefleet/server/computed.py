"""Pictures that were analyzed already, for who wants an engine. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from facefleet.types import Faces, ImageSource, Outcome


class Computed:
    """Gives outcomes that are known, in the order of the pictures.

    Args:
        outcomes: One for each picture.
        fingerprint: Of the engine that made them.
        dimension: Of their embeddings.
    """

    def __init__(self, outcomes: Sequence[Outcome[Faces]], fingerprint: str, dimension: int) -> None:
        self._outcomes = outcomes
        self._fingerprint = fingerprint
        self._dimension = dimension

    @property
    def fingerprint(self) -> str:
        """The engine's."""
        return self._fingerprint

    @property
    def dimension(self) -> int:
        """The engine's."""
        return self._dimension

    def as_ready(self, images: Iterable[ImageSource], *, chips: bool = False) -> Iterator[tuple[int, Outcome[Faces]]]:
        """Position and outcome of every picture."""
        del chips
        for index, _ in enumerate(images):
            yield index, self._outcomes[index]
