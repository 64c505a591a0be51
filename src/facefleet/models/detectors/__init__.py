"""Detectors: what each family's outputs mean, and the detector that runs one."""

from facefleet.models.detectors.base import Candidates, DetectorHead
from facefleet.models.detectors.detector import Detector, Selection, settle
from facefleet.models.detectors.registry import create_head

__all__ = ["Candidates", "Detector", "DetectorHead", "Selection", "create_head", "settle"]
