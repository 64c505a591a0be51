"""One input is at fault."""

from __future__ import annotations

from facefleet.errors.base import FacefleetError


class InputError(FacefleetError):
    """One input is at fault."""

    code = "input"


class SourceError(InputError):
    """The bytes of an input could not be read."""

    code = "source_unreadable"


class EmptyInputError(InputError):
    """An input of zero bytes."""

    code = "empty_input"


class UnsupportedFormatError(InputError):
    """No decoder in this install reads the format."""

    code = "unsupported_format"


class CorruptImageError(InputError):
    """The bytes are damaged."""

    code = "corrupt_image"


class TruncatedImageError(InputError):
    """The bytes end before the picture does."""

    code = "truncated_image"


class ImageTooLargeError(InputError):
    """The picture has more pixels than allowed."""

    code = "image_too_large"


class InvalidArrayError(InputError):
    """An array that cannot be read as a picture."""

    code = "invalid_array"


class CorruptVideoError(InputError):
    """A video of which nothing can be decoded."""

    code = "corrupt_video"


class StreamError(InputError):
    """A live stream that is not there, or broke off."""

    code = "stream"
    retryable = True


class StreamTimeoutError(StreamError):
    """Nothing came from a stream within the time allowed."""

    code = "stream_timeout"


class AlignmentError(InputError):
    """Landmarks from which no similarity transform can be made."""

    code = "alignment_failed"
