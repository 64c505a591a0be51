"""`Outcome`: a value or an error, one per item of a batch, so that a bad item never takes its neighbors down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from facefleet.errors import FacefleetError, InternalError

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """Exactly one of a value and an error.

    Attributes:
        value: The result, or None when the item failed.
        error: Why it failed, or None.
    """

    value: T | None = None
    error: FacefleetError | InternalError | None = None

    def __post_init__(self) -> None:
        if (self.value is None) == (self.error is None):
            raise InternalError("an Outcome holds exactly one of a value and an error")

    @property
    def ok(self) -> bool:
        """Whether there is a value."""
        return self.error is None

    def unwrap(self) -> T:
        """The value; raises the error when there is none."""
        if self.error is not None:
            raise self.error
        assert self.value is not None
        return self.value

    def map(self, function: Callable[[T], U]) -> Outcome[U]:
        """Apply `function` to the value; an error, old or raised by `function`, is kept as the outcome."""
        if self.error is not None:
            return Outcome(error=self.error)
        try:
            return Outcome(function(self.unwrap()))
        except FacefleetError as error:
            return Outcome(error=error)
