"""Detectors: what each family's outputs mean, and the detector that runs one."""

from facefleet.models.detectors.base import Candidates, DetectorHead
from facefleet.models.detectors.detector import Detector, Selection, settle
from facefleet.models.detectors.registry import create_head
from facefleet.models.detectors.sparse import SparseHead

__all__ = ["Candidates", "Detector", "DetectorHead", "Selection", "SparseHead", "create_head", "settle"]
