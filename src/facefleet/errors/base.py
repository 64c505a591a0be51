"""The root of the tree and its single leaves."""

from __future__ import annotations

from typing import ClassVar


class FacefleetError(Exception):
    """Base of every error a caller can act on.

    Attributes:
        message: What happened, with the value at fault.
        hint: What to do about it; may be empty where the message says it.
        code: A stable identifier for programs, e.g. ``image_too_large``.
        retryable: Whether the same call may succeed later without a change.
    """

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.hint))


def _rebuild(cls: type[FacefleetError], message: str, hint: str) -> FacefleetError:
    return cls(message, hint=hint)


class ConfigError(FacefleetError):
    """An unknown key, a malformed value, or options that contradict each other."""

    code = "config"


class CancelledError(FacefleetError):
    """The caller took the item back."""

    code = "cancelled"


class ClosedError(FacefleetError):
    """The engine was closed."""

    code = "closed"


class CacheError(FacefleetError):
    """The feature cache cannot be used."""

    code = "cache"


class InternalError(Exception):
    """A bug in facefleet: please report it with its traceback.

    It answers to the attributes of `FacefleetError`, so that one item that runs into a bug is reported like any
    other failure and its neighbors go on.
    """

    code: ClassVar[str] = "internal"
    retryable: ClassVar[bool] = False
    hint: ClassVar[str] = "this is a bug in facefleet: please report it"

    @property
    def message(self) -> str:
        """What happened."""
        return str(self)
