"""Faults on purpose: for tests of what is built on facefleet, and of facefleet itself."""

from facefleet.testing.faults import Fault, FaultPlan
from facefleet.testing.handlers import KnownAnswers, known_answer
from facefleet.testing.runners import FakeRunner, FaultyRunner

__all__ = ["FakeRunner", "Fault", "FaultPlan", "FaultyRunner", "KnownAnswers", "known_answer"]
