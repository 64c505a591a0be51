"""facefleet: pictures in as bytes; faces out, detected, aligned, embedded."""

__version__ = "0.1.0"
