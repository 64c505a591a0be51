"""Requests: refused for now, not understood, or not answered."""

from __future__ import annotations

from facefleet.errors.base import FacefleetError


class OverloadError(FacefleetError):
    """Nothing was accepted; try later."""

    code = "overload"
    retryable = True


class QueueFullError(OverloadError):
    """A bounded queue is full.

    Attributes:
        retry_after_s: When to come again, from the measured rate of service.
    """

    code = "queue_full"

    def __init__(self, message: str, *, hint: str = "", retry_after_s: float = 1.0) -> None:
        super().__init__(message, hint=hint or f"try again in {retry_after_s:.2g} s")
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_full, (type(self), self.message, self.hint, self.retry_after_s))


def _rebuild_full(cls: type[QueueFullError], message: str, hint: str, retry_after_s: float) -> QueueFullError:
    return cls(message, hint=hint, retry_after_s=retry_after_s)


class RateLimitError(QueueFullError):
    """A client asks more often than its key allows."""

    code = "rate_limited"


class NotReadyError(OverloadError):
    """The server is starting or stopping."""

    code = "not_ready"


class DeadlineError(OverloadError):
    """The deadline passed before the item ran."""

    code = "deadline"


class RequestError(FacefleetError):
    """A request to a server that cannot be understood."""

    code = "bad_request"


class PayloadTooLargeError(RequestError):
    """More bytes or pictures than the server takes."""

    code = "payload_too_large"


class RequestTimeoutError(RequestError):
    """The body of a request came too slowly."""

    code = "request_timeout"


class MediaTypeError(RequestError):
    """A body of a type that this route does not take."""

    code = "unsupported_media_type"


class UnauthorizedError(RequestError):
    """No API key, or one that is not known."""

    code = "unauthorized"


class ForbiddenError(RequestError):
    """The API key does not allow it."""

    code = "forbidden"


class FetchError(RequestError):
    """The picture at a URL could not be fetched."""

    code = "fetch"
    retryable = True


class NotFoundError(RequestError):
    """No such route, model or thing."""

    code = "not_found"


class NoFaceError(RequestError):
    """No face, where one was required."""

    code = "no_face"


class ServerError(FacefleetError):
    """A server that did not answer, or not as it should."""

    code = "server"
    retryable = True
