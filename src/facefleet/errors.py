"""The error tree of facefleet: what went wrong, what to do about it, whether trying again can help.

FacefleetError
├── ConfigError                 unknown key, malformed value, options that contradict each other
├── InputError                  this one input is at fault; its neighbours are not
│   ├── SourceError             the bytes could not be read (missing, no permission, a folder, bad archive member)
│   ├── EmptyInputError         zero bytes
│   ├── UnsupportedFormatError  no decoder in this install reads it
│   ├── CorruptImageError       the bytes are not what their magic says
│   ├── TruncatedImageError     the bytes end too early
│   ├── ImageTooLargeError      more pixels than `decode.max_pixels`
│   ├── InvalidArrayError       an array that is not a picture (shape, dtype, non-finite)
│   └── AlignmentError          landmarks of one face from which no transform can be made
├── PackError                   something is wrong with a model pack
│   ├── PackNotFoundError       no pack of that name
│   ├── ManifestError           a manifest that cannot be used
│   ├── LicenseRequiredError    a licence has to be accepted first
│   ├── DownloadError           a file could not be fetched (retryable)
│   ├── DigestError             a file is not the one that was promised
│   ├── GraphError              an ONNX graph that is not understood or was rewritten wrongly
│   └── CheckpointError         a file of weights that is damaged, or not of a network that is known
├── BackendError                the runtime
│   ├── BackendUnavailableError not installed, or the device is not there
│   ├── InferenceError          a run failed (retryable)
│   ├── BadOutputError          a run returned NaN, the wrong shape or constant rows (retryable)
│   ├── OutOfMemoryError        a run did not fit (retryable)
│   ├── DeviceLostError         this process cannot use the device any more (retryable, in another one)
│   └── SelfTestError           the engine gives wrong answers; it never becomes ready
├── EngineError                 an engine cannot be built or used
│   ├── ProfileError            min, opt and max contradict each other, the network or the device
│   └── ParityError             it answers differently from the reference; it is never published
├── OverloadError               accepted nothing; try later (retryable)
│   ├── QueueFullError
│   │   └── RateLimitError      a client asks more often than its key allows
│   ├── NotReadyError           the server is starting or stopping
│   └── DeadlineError
├── RequestError                a request to a server that cannot be understood
│   ├── PayloadTooLargeError    more bytes or pictures than the server takes
│   ├── RequestTimeoutError     its body came too slowly
│   ├── MediaTypeError          a body of a type that this route does not take
│   ├── UnauthorizedError       no API key, or one that is not known
│   ├── ForbiddenError          the key does not allow it
│   ├── FetchError              the picture at a URL could not be fetched (retryable)
│   ├── NotFoundError           no such route, model or thing
│   └── NoFaceError             no face, where one was required
├── ServerError                 a server that did not answer, or not as it should (retryable)
├── WorkerError                 a worker process
│   ├── WorkerStartError        it could not be started
│   ├── WorkerLostError         all of them are gone (retryable)
│   └── QuarantinedError        this item ended or hung so many workers that it is not tried again
├── CancelledError              the caller took the item back
├── ClosedError                 the engine was closed
├── JobError                    a job as a whole
│   ├── OutputExistsError       the output belongs to another job or other settings
│   └── OutputError             the output cannot be written
├── GalleryError                a gallery of known people
│   ├── GalleryNotFoundError    there is none at that path
│   ├── GalleryExistsError      there is one already
│   ├── GalleryBusyError        another process writes to it (retryable)
│   ├── GalleryCorruptError     what is stored is not what was written
│   ├── GalleryWriteError       the disk does not take it
│   ├── PipelineMismatchError   embeddings of another model, aligner or detector
│   ├── PersonNotFoundError     no person or sample of that id or name, or several of that name
│   ├── InvalidEmbeddingError   not finite, zero, or of another dimension
│   ├── ExchangeError           a file that cannot be imported
│   ├── EraseIncompleteError    erased, but traces are left for now (retryable)
│   └── SearchUnavailableError  the index's server is away (retryable)
└── CacheError                  the feature cache cannot be used

InternalError stands outside the tree: it is a bug of facefleet's and should be reported.

Owns the taxonomy only; every library's exceptions are mapped where that library is used.
"""

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


class AlignmentError(InputError):
    """Landmarks from which no similarity transform can be made."""

    code = "alignment_failed"


class PackError(FacefleetError):
    """Something is wrong with a model pack."""

    code = "pack"


class PackNotFoundError(PackError):
    """There is no pack of that name."""

    code = "pack_not_found"


class ManifestError(PackError):
    """A manifest that cannot be used."""

    code = "manifest"


class LicenseRequiredError(PackError):
    """The licence of a pack has not been accepted yet."""

    code = "license_required"


class DownloadError(PackError):
    """A file could not be fetched."""

    code = "download"
    retryable = True


class DigestError(PackError):
    """A file is not the one its manifest promises."""

    code = "digest_mismatch"


class GraphError(PackError):
    """An ONNX graph that is not understood, or that was rewritten wrongly."""

    code = "graph"


class CheckpointError(PackError):
    """A file of weights that is damaged, or not of a network that is known."""

    code = "checkpoint"


class BackendError(FacefleetError):
    """The runtime failed."""

    code = "backend"


class BackendUnavailableError(BackendError):
    """The backend is not installed or the device is not there."""

    code = "backend_unavailable"


class InferenceError(BackendError):
    """A run failed."""

    code = "inference"
    retryable = True


class BadOutputError(BackendError):
    """A run returned something that cannot be an answer."""

    code = "bad_output"
    retryable = True


class OutOfMemoryError(BackendError):
    """A run did not fit in memory."""

    code = "out_of_memory"
    retryable = True


class DeviceLostError(BackendError):
    """This process cannot use the device any more: its context is broken, or the device is gone."""

    code = "device_lost"
    retryable = True


class SelfTestError(BackendError):
    """The engine gives wrong answers."""

    code = "self_test"


class EngineError(FacefleetError):
    """An engine cannot be built or used."""

    code = "engine"


class ProfileError(EngineError):
    """Min, opt and max contradict each other, the network or the device."""

    code = "profile"


class ParityError(EngineError):
    """An engine answers differently from the reference; it is never published."""

    code = "parity"


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


class WorkerError(FacefleetError):
    """A worker process."""

    code = "worker"


class WorkerStartError(WorkerError):
    """A worker process could not be started."""

    code = "worker_start"


class WorkerLostError(WorkerError):
    """No worker is left that could do it."""

    code = "worker_lost"
    retryable = True


class QuarantinedError(WorkerError):
    """An item that ended or hung a worker each time it ran."""

    code = "quarantined"


class CancelledError(FacefleetError):
    """The caller took the item back."""

    code = "cancelled"


class ClosedError(FacefleetError):
    """The engine was closed."""

    code = "closed"


class JobError(FacefleetError):
    """A job as a whole cannot go on."""

    code = "job"


class OutputExistsError(JobError):
    """The output belongs to another job or to other settings."""

    code = "output_exists"


class OutputError(JobError):
    """The output cannot be written."""

    code = "output"


class GalleryError(FacefleetError):
    """A gallery cannot do what is asked."""

    code = "gallery"


class GalleryNotFoundError(GalleryError):
    """There is no gallery at that path."""

    code = "gallery_not_found"


class GalleryExistsError(GalleryError):
    """There is a gallery at that path already."""

    code = "gallery_exists"


class GalleryBusyError(GalleryError):
    """Another process has been writing for longer than one waits."""

    code = "gallery_busy"
    retryable = True


class GalleryCorruptError(GalleryError):
    """What is stored is not what was written."""

    code = "gallery_corrupt"


class GalleryWriteError(GalleryError):
    """The disk does not take what is written."""

    code = "gallery_write"


class PipelineMismatchError(GalleryError):
    """Embeddings made by another model, aligner or detector, or compared by another metric."""

    code = "pipeline_mismatch"


class PersonNotFoundError(GalleryError):
    """No person or sample of that id or name, or several people of that name."""

    code = "person_not_found"


class InvalidEmbeddingError(GalleryError):
    """A vector that is not finite, zero, or of another dimension."""

    code = "invalid_embedding"


class ExchangeError(GalleryError):
    """A file that cannot be imported."""

    code = "exchange"


class EraseIncompleteError(GalleryError):
    """A person was erased, but traces are still on the disk: something is still reading the old state."""

    code = "erase_incomplete"
    retryable = True


class SearchUnavailableError(GalleryError):
    """The server that holds the index does not answer."""

    code = "search_unavailable"
    retryable = True


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
