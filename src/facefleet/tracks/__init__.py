"""Faces joined over time: which detections are one face going through a scene, and which tracks are one person.

Pure functions and small objects that never see a picture but the chips they keep; used by one thread each. Linear
assignment needs the extra ``[video]``.
"""

from facefleet.tracks.best import Best, BestFaces, usefulness
from facefleet.tracks.options import METHODS, Method, TrackerOptions
from facefleet.tracks.persons import Identifier, PersonOptions, Persons, TrackIdentity
from facefleet.tracks.tracker import FaceTracker, Tracker, open_tracker

__all__ = [
    "METHODS",
    "Best",
    "BestFaces",
    "FaceTracker",
    "Identifier",
    "Method",
    "PersonOptions",
    "Persons",
    "TrackIdentity",
    "Tracker",
    "TrackerOptions",
    "open_tracker",
    "usefulness",
]
