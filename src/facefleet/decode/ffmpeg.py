"""PyAV: importing it, and what its errors mean.

Owns the one place where FFmpeg's errors become facefleet's. Nothing is imported before it is needed.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from facefleet.errors import (
    BackendUnavailableError,
    CorruptVideoError,
    FacefleetError,
    SourceError,
    StreamError,
    StreamTimeoutError,
    UnsupportedFormatError,
)

AvObject: TypeAlias = Any
"""An object of PyAV: an extra, whose types are not there."""

_TIMEOUTS = ("ExitError", "TimeoutError")
_FILES = ("FileNotFoundError", "PermissionError", "IsADirectoryError", "NotADirectoryError")
_UNKNOWN = (
    "DecoderNotFoundError",
    "DemuxerNotFoundError",
    "ProtocolNotFoundError",
    "StreamNotFoundError",
    "PatchWelcomeError",
    "BSFNotFoundError",
    "FilterNotFoundError",
    "OptionNotFoundError",
)
_DAMAGED = ("InvalidDataError", "EOFError", "BugError", "BufferTooSmallError", "ExternalError", "UnknownError")


def load() -> AvObject:
    """The module ``av``.

    Raises:
        BackendUnavailableError: It is not installed.
    """
    try:
        import av
        import av.error
    except ImportError as error:
        raise BackendUnavailableError("PyAV is not installed", hint='pip install "facefleet[video]"') from error
    return av


def explain(error: BaseException, name: str, *, live: bool = False) -> FacefleetError:
    """What an error of FFmpeg means for the video `name`.

    Args:
        error: Any exception of PyAV, or OSError.
        name: What the video is called.
        live: Whether it is a stream, where what fails now may work again later.
    """
    kinds = [base.__name__ for base in type(error).__mro__]
    reason = getattr(error, "strerror", None) or str(error) or kinds[0]
    if any(kind in _TIMEOUTS for kind in kinds):
        return StreamTimeoutError(f"{name}: no data within the time allowed", hint="check the source, or wait longer")
    if live:
        return StreamError(f"{name}: {reason}", hint="check address, network and credentials")
    if any(kind in _FILES for kind in kinds):
        return SourceError(f"{name}: {reason}", hint="check the path and its permissions")
    if any(kind in _UNKNOWN for kind in kinds):
        return UnsupportedFormatError(f"{name}: {reason}", hint="convert it, or install a PyAV wheel that reads it")
    if any(kind in _DAMAGED for kind in kinds):
        return CorruptVideoError(
            f"{name}: not a video, or its index is missing or damaged: {reason}",
            hint="a recording that was cut off can often be repaired with a tool made for it",
        )
    return SourceError(f"{name}: {reason}", hint="check the path")
