"""One process a device: what is handed in is answered once, whatever ends in between. Knows nothing of faces."""

from facefleet.workers.fleet import Fleet
from facefleet.workers.handler import BatchHandler, Handler, HandlerSpec, StreamHandler, WorkerSpec
from facefleet.workers.supervisor import FleetOptions
from facefleet.workers.work import Payload, Work
from facefleet.workers.worker import WorkerState, WorkerStatus

__all__ = [
    "BatchHandler",
    "Fleet",
    "FleetOptions",
    "Handler",
    "HandlerSpec",
    "Payload",
    "StreamHandler",
    "Work",
    "WorkerSpec",
    "WorkerState",
    "WorkerStatus",
]
