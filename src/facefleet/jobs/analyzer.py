"""What a job needs of an engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from facefleet.types import Faces, ImageSource, Outcome


class Analyzer(Protocol):
    """An engine, as jobs see it."""

    @property
    def fingerprint(self) -> str:
        """Digest of everything that results depend on."""

    @property
    def dimension(self) -> int:
        """Length of an embedding."""

    def describe(self) -> dict[str, str]:
        """What is in use, for the output's metadata."""

    def as_ready(self, images: Iterable[ImageSource], *, chips: bool = False) -> Iterator[tuple[int, Outcome[Faces]]]:
        """Position and outcome of every picture, each exactly once, as they are ready.

        `images` is read in the thread that iterates the result, and only so far ahead as bounded queues allow.
        """
