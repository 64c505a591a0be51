"""Runtimes, engines and worker processes."""

from __future__ import annotations

from facefleet.errors.base import FacefleetError


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
