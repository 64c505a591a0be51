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
│   ├── CorruptVideoError       a video of which nothing can be decoded
│   ├── StreamError             a live stream that is not there or broke off (retryable)
│   │   └── StreamTimeoutError  nothing came within the time allowed
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

Owns the taxonomy only, a module a branch; every library's exceptions are mapped where that library is used.
"""

from __future__ import annotations

from facefleet.errors.base import CacheError, CancelledError, ClosedError, ConfigError, FacefleetError, InternalError
from facefleet.errors.devices import (
    BackendError,
    BackendUnavailableError,
    BadOutputError,
    DeviceLostError,
    EngineError,
    InferenceError,
    OutOfMemoryError,
    ParityError,
    ProfileError,
    QuarantinedError,
    SelfTestError,
    WorkerError,
    WorkerLostError,
    WorkerStartError,
)
from facefleet.errors.galleries import (
    EraseIncompleteError,
    ExchangeError,
    GalleryBusyError,
    GalleryCorruptError,
    GalleryError,
    GalleryExistsError,
    GalleryNotFoundError,
    GalleryWriteError,
    InvalidEmbeddingError,
    PersonNotFoundError,
    PipelineMismatchError,
    SearchUnavailableError,
)
from facefleet.errors.inputs import (
    AlignmentError,
    CorruptImageError,
    CorruptVideoError,
    EmptyInputError,
    ImageTooLargeError,
    InputError,
    InvalidArrayError,
    SourceError,
    StreamError,
    StreamTimeoutError,
    TruncatedImageError,
    UnsupportedFormatError,
)
from facefleet.errors.jobs import JobError, OutputError, OutputExistsError
from facefleet.errors.packs import (
    CheckpointError,
    DigestError,
    DownloadError,
    GraphError,
    LicenseRequiredError,
    ManifestError,
    PackError,
    PackNotFoundError,
)
from facefleet.errors.requests import (
    DeadlineError,
    FetchError,
    ForbiddenError,
    MediaTypeError,
    NoFaceError,
    NotFoundError,
    NotReadyError,
    OverloadError,
    PayloadTooLargeError,
    QueueFullError,
    RateLimitError,
    RequestError,
    RequestTimeoutError,
    ServerError,
    UnauthorizedError,
)

__all__ = [
    "AlignmentError",
    "BackendError",
    "BackendUnavailableError",
    "BadOutputError",
    "CacheError",
    "CancelledError",
    "CheckpointError",
    "ClosedError",
    "ConfigError",
    "CorruptImageError",
    "CorruptVideoError",
    "DeadlineError",
    "DeviceLostError",
    "DigestError",
    "DownloadError",
    "EmptyInputError",
    "EngineError",
    "EraseIncompleteError",
    "ExchangeError",
    "FacefleetError",
    "FetchError",
    "ForbiddenError",
    "GalleryBusyError",
    "GalleryCorruptError",
    "GalleryError",
    "GalleryExistsError",
    "GalleryNotFoundError",
    "GalleryWriteError",
    "GraphError",
    "ImageTooLargeError",
    "InferenceError",
    "InputError",
    "InternalError",
    "InvalidArrayError",
    "InvalidEmbeddingError",
    "JobError",
    "LicenseRequiredError",
    "ManifestError",
    "MediaTypeError",
    "NoFaceError",
    "NotFoundError",
    "NotReadyError",
    "OutOfMemoryError",
    "OutputError",
    "OutputExistsError",
    "OverloadError",
    "PackError",
    "PackNotFoundError",
    "ParityError",
    "PayloadTooLargeError",
    "PersonNotFoundError",
    "PipelineMismatchError",
    "ProfileError",
    "QuarantinedError",
    "QueueFullError",
    "RateLimitError",
    "RequestError",
    "RequestTimeoutError",
    "SearchUnavailableError",
    "SelfTestError",
    "ServerError",
    "SourceError",
    "StreamError",
    "StreamTimeoutError",
    "TruncatedImageError",
    "UnauthorizedError",
    "UnsupportedFormatError",
    "WorkerError",
    "WorkerLostError",
    "WorkerStartError",
]
