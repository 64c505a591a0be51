"""When pending items become a batch, and who may come in: pure policy, no framework, no clock of its own."""

from facefleet.batching.admission import Admission, Bounds
from facefleet.batching.batcher import Batcher, Ticket, TicketState
from facefleet.batching.execute import SizeLimit, run_batch
from facefleet.batching.linear import LinearTime
from facefleet.batching.policy import BatchPolicy, Priority

__all__ = [
    "Admission",
    "BatchPolicy",
    "Batcher",
    "Bounds",
    "LinearTime",
    "Priority",
    "SizeLimit",
    "Ticket",
    "TicketState",
    "run_batch",
]
