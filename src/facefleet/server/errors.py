"""Errors on the wire: the HTTP status of every error code, and problem details (RFC 9457).

Owns the one table from errors to statuses; the gRPC front maps statuses further. Pure functions.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from facefleet import errors
from facefleet.errors import FacefleetError, InternalError, QueueFullError

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:facefleet:error:"

STATUS: dict[type[FacefleetError], int] = {
    errors.RequestError: 400,
    errors.UnauthorizedError: 401,
    errors.ForbiddenError: 403,
    errors.FetchError: 424,
    errors.NotFoundError: 404,
    errors.RequestTimeoutError: 408,
    errors.PayloadTooLargeError: 413,
    errors.ImageTooLargeError: 413,
    errors.MediaTypeError: 415,
    errors.UnsupportedFormatError: 415,
    errors.InputError: 422,
    errors.NoFaceError: 422,
    errors.QuarantinedError: 422,
    errors.RateLimitError: 429,
    errors.CancelledError: 499,
    errors.GalleryNotFoundError: 404,
    errors.PersonNotFoundError: 404,
    errors.GalleryExistsError: 409,
    errors.PipelineMismatchError: 409,
    errors.GalleryBusyError: 503,
    errors.SearchUnavailableError: 503,
    errors.EraseIncompleteError: 503,
    errors.GalleryCorruptError: 500,
    errors.GalleryWriteError: 500,
    errors.GalleryError: 422,
    errors.OverloadError: 503,
    errors.ClosedError: 503,
    errors.WorkerLostError: 503,
    errors.DeviceLostError: 503,
    errors.OutOfMemoryError: 503,
    errors.FacefleetError: 500,
}
"""The nearest ancestor of an error decides."""

RETRY_STATUSES = frozenset({429, 503})
_RETRY_AFTER_S = 1.0


def status_of(error: FacefleetError | InternalError) -> int:
    """HTTP status of an error."""
    return next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 500)


def retry_after_s(error: FacefleetError | InternalError) -> float | None:
    """When to come again, for errors that say so by their status; None for others."""
    if status_of(error) not in RETRY_STATUSES:
        return None
    return error.retry_after_s if isinstance(error, QueueFullError) else _RETRY_AFTER_S


def problem_of(error: FacefleetError | InternalError, *, request_id: str = "") -> dict[str, Any]:
    """Problem details of an error, with our members ``code``, ``hint``, ``retryable`` and ``request_id``.

    What a bug of ours says stays in the log.
    """
    status = status_of(error)
    phrase = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else "Client Closed Request"
    internal = isinstance(error, InternalError)
    problem: dict[str, Any] = {
        "type": TYPE_PREFIX + error.code,
        "title": phrase,
        "status": status,
        "detail": "something went wrong here; the log knows this request by its id" if internal else error.message,
        "code": error.code,
        "hint": error.hint,
        "retryable": error.retryable or status in RETRY_STATUSES,
    }
    if request_id:
        problem["request_id"] = request_id
    after = retry_after_s(error)
    if after is not None:
        problem["retry_after_s"] = round(after, 3)
    return problem


def retry_after_header(seconds: float) -> str:
    """The value of ``Retry-After``: whole seconds, at least one."""
    return str(max(1, -int(-seconds // 1)))
