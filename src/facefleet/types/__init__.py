"""The values that move through facefleet: frozen struct-of-arrays, checked once, when they are made.

Owns shapes, dtypes and invariants. Refuses behavior: nothing here computes on pixels. Safe in any thread.
"""

from facefleet.types.arrays import BoolArray, F32Array, RGBArray, U8Array
from facefleet.types.faces import FaceRecord, Faces, FaceStatus, Quality
from facefleet.types.image import DeferredImage, EncodedImage, Image, ImageSource
from facefleet.types.outcome import Outcome
from facefleet.types.vision import Detections, Embeddings, FaceChips

__all__ = [
    "BoolArray",
    "DeferredImage",
    "Detections",
    "Embeddings",
    "EncodedImage",
    "F32Array",
    "FaceChips",
    "FaceRecord",
    "FaceStatus",
    "Faces",
    "Image",
    "ImageSource",
    "Outcome",
    "Quality",
    "RGBArray",
    "U8Array",
]
