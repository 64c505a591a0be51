"""Videos as jobs: who appears when, in one file or in live streams."""

from facefleet.jobs.video.embedding import ChipEmbedder, open_embedder
from facefleet.jobs.video.known import GalleryIdentifier
from facefleet.jobs.video.options import VideoOptions, VideoOutputs, VideoProgress, VideoResult
from facefleet.jobs.video.run import run_video
from facefleet.jobs.video.watch import WatchResult, watch

__all__ = [
    "ChipEmbedder",
    "GalleryIdentifier",
    "VideoOptions",
    "VideoOutputs",
    "VideoProgress",
    "VideoResult",
    "WatchResult",
    "open_embedder",
    "run_video",
    "watch",
]
