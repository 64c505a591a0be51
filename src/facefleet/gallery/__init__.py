"""Known people and their faces: enrol, identify (1:N), verify (1:1), erase; calibration and clustering.

Owns the record and the indexes made of it. Refuses pictures without an engine: what needs one takes a small protocol
(`FaceAnalyzer`), and the command line puts both together. Runs in the caller's threads; one thread of its own
rebuilds an index.
"""

from facefleet.gallery.calibration import Calibration, calibrate
from facefleet.gallery.erase import ErasedPerson
from facefleet.gallery.gallery import Gallery
from facefleet.gallery.header import galleries
from facefleet.gallery.records import Change, Decision, Header, Match, NewSample, Person, PipelineIdentity, Sample
from facefleet.gallery.search_queue import SearchQueue

__all__ = [
    "Calibration",
    "Change",
    "Decision",
    "ErasedPerson",
    "Gallery",
    "Header",
    "Match",
    "NewSample",
    "Person",
    "SearchQueue",
    "PipelineIdentity",
    "Sample",
    "calibrate",
    "galleries",
]
