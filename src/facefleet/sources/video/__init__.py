"""Video as a source: files frame by frame, live streams newest frame first. Needs the extra ``[video]``."""

from facefleet.sources.video.file import Position, VideoFile
from facefleet.sources.video.frame import Damage, VideoFrame, VideoInfo
from facefleet.sources.video.sampling import Sampling

__all__ = ["Damage", "Position", "Sampling", "VideoFile", "VideoFrame", "VideoInfo"]
