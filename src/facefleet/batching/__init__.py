"""When pending items become a batch: pure policy, no framework, no clock of its own."""

from facefleet.batching.batcher import Batcher, BatchPolicy

__all__ = ["BatchPolicy", "Batcher"]
