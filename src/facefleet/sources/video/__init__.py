"""Video as a source: files frame by frame, live streams newest frame first. Needs the extra ``[video]``."""

from facefleet.sources.video.file import Position, VideoFile
from facefleet.sources.video.frame import Damage, VideoFrame, VideoInfo
from facefleet.sources.video.sampling import Sampling
from facefleet.sources.video.stream import LiveStream, StreamOptions, StreamState, StreamStatus, is_live

__all__ = [
    "Damage",
    "LiveStream",
    "Position",
    "Sampling",
    "StreamOptions",
    "StreamState",
    "StreamStatus",
    "VideoFile",
    "VideoFrame",
    "VideoInfo",
    "is_live",
]
