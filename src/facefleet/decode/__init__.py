"""Bytes to pictures: format, size, orientation, color and bit depth are settled here, once, for every way in.

Runs in the threads that call it. Refuses nothing silently: whatever is wrong with a picture is an `InputError`.
"""

from facefleet.decode.decoder import Decoder
from facefleet.decode.formats import supported_formats
from facefleet.decode.header import Header, probe

__all__ = ["Decoder", "Header", "probe", "supported_formats"]
