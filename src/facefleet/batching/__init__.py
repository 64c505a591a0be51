"""When pending items become a batch, and who may come in: pure policy, no framework, no clock of its own."""

from facefleet.batching.adaptive import Controller, ModelBased, Tuning
from facefleet.batching.admission import Admission, Bounds
from facefleet.batching.batcher import Batcher, Ticket, TicketState
from facefleet.batching.execute import SizeLimit, run_batch
from facefleet.batching.halving import HalvingRule
from facefleet.batching.latency import LatencyCurve
from facefleet.batching.linear import LinearTime
from facefleet.batching.policy import BatchPolicy, Priority

__all__ = [
    "Admission",
    "BatchPolicy",
    "Batcher",
    "Bounds",
    "Controller",
    "HalvingRule",
    "LatencyCurve",
    "LinearTime",
    "ModelBased",
    "Priority",
    "SizeLimit",
    "Ticket",
    "TicketState",
    "Tuning",
    "run_batch",
]
