"""The way of a photo: decode, detect, align, embed; faces of many photos share one embedding batch."""

from facefleet.pipeline.async_engine import AsyncEngine
from facefleet.pipeline.engine import Engine

__all__ = ["AsyncEngine", "Engine"]
