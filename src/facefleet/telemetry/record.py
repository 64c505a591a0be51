"""What code calls to record metrics: bound to their labels beforehand, so that a call looks nothing up.

Everything here writes to `METRICS`, the one `Metrics` of this process; each class also takes another one, for tests.
Any thread may record. Importing this module imports prometheus-client.

    STAGES["detect"].batch(size=8, padded=8, seconds=0.0452)
    ANSWERS.answered(None, faces=3, seconds=0.061)
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from prometheus_client import Counter, Gauge, Histogram

from facefleet.errors import CancelledError, ClosedError, DeadlineError, InternalError, OverloadError
from facefleet.telemetry.devices import DeviceLoad
from facefleet.telemetry.metrics import OUTCOMES, WORKER_STATES
from facefleet.telemetry.registry import Metrics

T = TypeVar("T")
METRICS = Metrics()


class Stage:
    """What a stage records: ``load``, ``decode``, ``detect``, ``align``, ``embed``, or a worker's ``photo``."""

    __slots__ = ("_age", "_depth", "_limit", "_padding", "_quarantined", "_requeues", "_seconds", "_size", "_wait")

    def __init__(self, metrics: Metrics, stage: str) -> None:
        self._size = metrics.instrument("facefleet_stage_batch_size", Histogram, stage).observe
        self._padding = metrics.instrument("facefleet_stage_padding_rows_total", Counter, stage).inc
        self._seconds = metrics.instrument("facefleet_stage_duration_seconds", Histogram, stage).observe
        self._wait = metrics.instrument("facefleet_stage_queue_wait_seconds", Histogram, stage).observe
        self._depth = metrics.instrument("facefleet_stage_queue_depth", Gauge, stage).set
        self._limit = metrics.instrument("facefleet_stage_batch_limit", Gauge, stage).set
        self._age = metrics.instrument("facefleet_stage_queue_age_seconds", Gauge, stage).set
        self._requeues = metrics.instrument("facefleet_requeues_total", Counter, stage).inc
        self._quarantined = metrics.instrument("facefleet_quarantined_total", Counter, stage).inc

    def batch(self, size: int, padded: int, seconds: float) -> None:
        """A batch was run.

        Args:
            size: Items in it.
            padded: Rows that were run, padding included; `size` where nothing was padded.
            seconds: How long it took.
        """
        self._size(size)
        self._seconds(seconds)
        if padded > size:
            self._padding(padded - size)

    def took(self, seconds: float) -> None:
        """One item was done, in a stage without batches."""
        self._seconds(seconds)

    def waited(self, seconds: float) -> None:
        """An item was taken from the queue after so long."""
        self._wait(seconds)

    def queue(self, depth: int, age_s: float) -> None:
        """What waits now, and how long the oldest has waited."""
        self._depth(depth)
        self._age(age_s)

    def limit(self, items: int) -> None:
        """So many items a batch are the most at present."""
        self._limit(items)

    def requeued(self, items: int = 1) -> None:
        """Items were given to another worker."""
        self._requeues(items)

    def quarantined(self, items: int = 1) -> None:
        """Items were given up."""
        self._quarantined(items)


class Answers:
    """How images were answered."""

    def __init__(self, metrics: Metrics = METRICS) -> None:
        self._metrics = metrics
        self._counted = {(kind, ""): self._bind(kind, "") for kind in OUTCOMES}
        self._images = metrics.instrument("facefleet_images_total", Counter).inc
        self._faces = metrics.instrument("facefleet_faces_total", Counter).inc
        self._seconds = metrics.instrument("facefleet_image_duration_seconds", Histogram).observe

    def answered(self, error: BaseException | None, *, faces: int = 0, seconds: float | None = None) -> None:
        """An image got its answer.

        Args:
            error: What it failed with; None: a result.
            faces: Faces in the result.
            seconds: Since it was accepted; None for one that was not accepted.
        """
        if error is None:
            key = ("ok" if faces else "no_face", "")
            self._images()
            if faces:
                self._faces(faces)
        else:
            key = (outcome_of(error), str(getattr(error, "code", "") or "internal"))
        counted = self._counted.get(key)
        if counted is None:
            counted = self._counted[key] = self._bind(*key)
        counted()
        if seconds is not None:
            self._seconds(seconds)

    def _bind(self, kind: str, code: str) -> Any:  # noqa: ANN401  # a bound method of prometheus-client
        return self._metrics.instrument("facefleet_outcomes_total", Counter, kind, code).inc


def outcome_of(error: BaseException) -> str:
    """Which outcome an error counts as, one of `metrics.OUTCOMES`."""
    if isinstance(error, DeadlineError):
        return "expired"
    if isinstance(error, CancelledError):
        return "cancelled"
    if isinstance(error, (OverloadError, ClosedError)):
        return "rejected"
    return "failed_retryable" if getattr(error, "retryable", False) else "failed_permanent"


class Cache:
    """Look-ups of a cache."""

    __slots__ = ("hit", "miss")

    def __init__(self, metrics: Metrics, cache: str) -> None:
        self.hit = metrics.instrument("facefleet_cache_hits_total", Counter, cache).inc
        self.miss = metrics.instrument("facefleet_cache_misses_total", Counter, cache).inc


class WorkerPlace:
    """One place for a worker process: its state and how often it was started again."""

    def __init__(self, metrics: Metrics, worker: str) -> None:
        self._metrics = metrics
        self._worker = worker
        self._role = ""
        self._restarts = metrics.instrument("facefleet_worker_restarts_total", Counter, worker).inc

    def state(self, role: str, state: str) -> None:
        """It is in this state now; a role it had before is forgotten.

        Raises:
            InternalError: There is no such state.
        """
        if state not in WORKER_STATES:
            raise InternalError(f"worker state {state!r}: not one of {', '.join(WORKER_STATES)}")
        if self._role != role:
            self.gone()
            self._role = role
        for name in WORKER_STATES:
            gauge = self._metrics.instrument("facefleet_worker_state", Gauge, self._worker, role, name)
            gauge.set(float(name == state))

    def restarted(self) -> None:
        """Its process was started again."""
        self._restarts()

    def gone(self) -> None:
        """There is no such worker any more; its restarts stay counted."""
        if self._role:
            for name in WORKER_STATES:
                self._metrics.remove("facefleet_worker_state", self._worker, self._role, name)
        self._role = ""


class Batcher:
    """A loop that hands out batches."""

    def __init__(self, metrics: Metrics, name: str) -> None:
        self._metrics = metrics
        self._name = name

    def tick(self) -> None:
        """It runs."""
        self._metrics.tick(self._name)

    def stopped(self) -> None:
        """It ended on purpose."""
        self._metrics.stop_ticking(self._name)


class Requests:
    """How requests of the server are answered."""

    def __init__(self, metrics: Metrics = METRICS) -> None:
        self._metrics = metrics

    def answered(self, protocol: str, route: str, status: int | str, seconds: float) -> None:
        """A request got its answer.

        Args:
            protocol: ``http`` or ``grpc``.
            route: As declared, without what stands for its parameters.
            status: Of the answer.
            seconds: Since it came.
        """
        self._metrics.instrument("facefleet_requests_total", Counter, protocol, route, str(status)).inc()
        self._metrics.instrument("facefleet_request_duration_seconds", Histogram, protocol, route).observe(seconds)


class Bound(dict[str, T], Generic[T]):
    """Name -> what records for it, made when first asked for.

    Two threads that ask for a new name at once may each make one: both write to the same instruments.
    """

    def __init__(self, make: type[T], metrics: Metrics = METRICS) -> None:
        super().__init__()
        self._make: Any = make
        self._metrics = metrics

    def __missing__(self, name: str) -> T:
        made: T = self._make(self._metrics, name)
        return self.setdefault(name, made)


def record_devices(loads: list[DeviceLoad], metrics: Metrics = METRICS) -> None:
    """Show what `devices.read_devices` and `devices.read_cores` found; what a device does not say is left out."""
    for load in loads:
        for name, value in (
            ("facefleet_device_memory_used_bytes", load.memory_bytes),
            ("facefleet_device_memory_limit_bytes", load.memory_total_bytes),
            ("facefleet_device_utilization_ratio", load.utilization),
            ("facefleet_device_temperature_celsius", load.temperature_celsius),
        ):
            if value is not None:
                metrics.instrument(name, Gauge, load.device).set(value)


def engine_rebuilt(backend: str, metrics: Metrics = METRICS) -> None:
    """An engine was compiled because none on disk fitted."""
    metrics.instrument("facefleet_engine_rebuilds_total", Counter, backend).inc()


STAGES: Bound[Stage] = Bound(Stage)
CACHES: Bound[Cache] = Bound(Cache)
WORKERS: Bound[WorkerPlace] = Bound(WorkerPlace)
BATCHERS: Bound[Batcher] = Bound(Batcher)
ANSWERS = Answers()
REQUESTS = Requests()
snapshot = METRICS.snapshot
fold = METRICS.fold
retire = METRICS.retire
render = METRICS.render
