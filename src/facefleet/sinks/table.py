"""What a result table offers: parts written as a job goes, and one output merged from them in the order of inputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from facefleet.types import Faces


@dataclass(frozen=True, slots=True)
class Span:
    """Where the results of one picture lie in a file.

    Attributes:
        start: First row, or first byte.
        length: Rows, or bytes.
    """

    start: int
    length: int


class Table(ABC):
    """A format of results. Files are written under the name they are given; making them durable is the caller's.

    Args:
        dimension: Length of an embedding.
        metadata: Text -> text, kept in the output where the format has a place for it.
    """

    def __init__(self, dimension: int, metadata: dict[str, str]) -> None:
        self.dimension = dimension
        self.metadata = metadata

    @abstractmethod
    def write_part(self, path: Path, results: Sequence[tuple[str, Faces]]) -> list[Span]:
        """Write the results of some pictures.

        Args:
            path: The new file.
            results: Key of the input and its faces.

        Returns:
            For each picture where its results lie.
        """

    @abstractmethod
    def merge(self, path: Path, spans: Iterable[tuple[Path, Span]]) -> Iterable[Span]:
        """Write an output from pieces of other files of this format.

        Args:
            path: The new file; complete once the result has been iterated to its end.
            spans: For each picture, in order, the file and where in it. The bytes of the output depend on the
                results and their order only, not on how they were spread over files.

        Yields:
            For each picture where its results lie in the output.
        """
