"""Trackers against labels made by hand: faces in a track, identity switches, tracks that hold more than one person.

The built-in tracker and those of the package `trackers`, with the same detections, on the two clips of
`tests/parity/labels/video_tracks.json`, at 5 frames a second and at every frame.

    FACEFLEET_DATA=... python benchmarks/video_trackers.py
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.parity.test_video_tracks import LABELS, compare

from facefleet import Engine, Settings
from facefleet.jobs.video import VideoOptions, VideoOutputs, open_embedder, run_video
from facefleet.sources.video import Sampling
from facefleet.tracks import METHODS, TrackerOptions


def main() -> None:
    """Print a table."""
    folder = Path(os.environ["FACEFLEET_DATA"]).resolve() / "videos"
    settings = Settings()
    titles = ("labels", "found", "tracked", "switches", "mixed", "tracks")
    print(f"{'clip':26} {'sampled':10} {'tracker':10}", *(f"{title:>8}" for title in titles), " s")
    with Engine(settings) as engine, open_embedder(settings) as embed, tempfile.TemporaryDirectory() as temporary:
        for clip, labels in LABELS.items():
            for sampled, sampling in (("5 a second", Sampling(fps=5)), ("all", Sampling())):
                for method in METHODS:
                    result = run_video(
                        folder / clip,
                        Path(temporary),
                        engine,
                        embed,
                        dimension=engine.dimension,
                        options=VideoOptions(sampling=sampling, tracker=TrackerOptions(method=method)),
                        outputs=VideoOutputs(contact=False, chapters=False),
                        overwrite=True,
                    )
                    got = compare(labels, Path(temporary) / "faces.parquet")
                    figures = (len(labels), *(got[title] for title in titles[1:5]), len(result.tracks))
                    print(f"{clip:26} {sampled:10} {method:10}", *(f"{each!s:>8}" for each in figures), end=" ")
                    print(f" {result.seconds:.1f}", flush=True)


if __name__ == "__main__":
    main()
