"""Kinds of index by name; heavy libraries are imported when one is made."""

from __future__ import annotations

from facefleet.errors import ConfigError
from facefleet.gallery.index.base import Segment

SEGMENTS = ("flat", "faiss", "flat-cuda")
KINDS = (*SEGMENTS, "milvus")


def segment_type(kind: str) -> type[Segment]:
    """The class of a kind of segment.

    Raises:
        ConfigError: There is none of that name.
    """
    if kind == "flat":
        from facefleet.gallery.index.flat import FlatSegment

        return FlatSegment
    if kind == "faiss":
        from facefleet.gallery.index.faiss import FaissSegment

        return FaissSegment
    if kind == "flat-cuda":
        from facefleet.gallery.index.flat_cuda import FlatCudaSegment

        return FlatCudaSegment
    raise ConfigError(f"index {kind!r}", hint=f"choose one of {', '.join(KINDS)}")
