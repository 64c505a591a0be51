"""Results of videos: tables of faces and tracks, annotated or redacted copies, contact sheet, timeline, chapters."""

from facefleet.sinks.video.annotate import CopyOptions, annotate_video
from facefleet.sinks.video.chapters import write_chapters
from facefleet.sinks.video.contact import contact_sheet
from facefleet.sinks.video.overlay import Overlay
from facefleet.sinks.video.rows import TrackRow
from facefleet.sinks.video.tables import FacesWriter, track_as_json, write_tracks
from facefleet.sinks.video.timeline import plot_timeline

__all__ = [
    "CopyOptions",
    "FacesWriter",
    "Overlay",
    "TrackRow",
    "annotate_video",
    "contact_sheet",
    "plot_timeline",
    "track_as_json",
    "write_chapters",
    "write_tracks",
]
