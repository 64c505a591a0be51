"""Tracks on two clips with several people, against labels made by hand.

`labels/video_tracks.json` says who is where in some frames (center and size in pixels), as a person looking at those
frames sees it. A cut makes another person of everybody: tracks do not go on across it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from facefleet.jobs.video import VideoOptions, VideoResult, open_embedder, run_video
from facefleet.sources.video import Sampling
from tests.conftest import need_video

LABELS = json.loads(Path(__file__).with_name("labels").joinpath("video_tracks.json").read_text())
NEAR = 0.5  # of the face's size
CLIPS = sorted(LABELS)


@pytest.fixture(autouse=True, scope="module")
def _video() -> None:
    need_video()


def analyze(engine: object, clip: Path, output: Path, sampling: Sampling) -> VideoResult:
    with open_embedder(engine.settings) as embed:  # type: ignore[attr-defined]
        return run_video(
            clip,
            output,
            engine,  # type: ignore[arg-type]
            embed,
            dimension=engine.dimension,  # type: ignore[attr-defined]
            options=VideoOptions(sampling=sampling, threshold=engine.manifest.embedder.threshold),  # type: ignore[attr-defined]
        )


def compare(labels: list[dict[str, Any]], faces: Path) -> dict[str, int]:
    """Labels found, in a track, identity switches (as CLEAR MOT counts them), and persons of each track."""
    rows = pq.read_table(faces).to_pylist()
    found = tracked = switches = 0
    last: dict[str, int] = {}
    persons: dict[int, set[str]] = defaultdict(set)
    for label in labels:
        near = [row for row in rows if abs(row["time_s"] - label["time_s"]) < 0.01]
        far = [np.hypot((r["x1"] + r["x2"]) / 2 - label["x"], (r["y1"] + r["y2"]) / 2 - label["y"]) for r in near]
        if not far or min(far) > NEAR * label["size"]:
            continue
        found += 1
        track = near[int(np.argmin(far))]["track"]
        if track is None:
            continue
        tracked += 1
        person = str(label["person"])
        switches += last.get(person, track) != track
        last[person] = track
        persons[track].add(person)
    mixed = sum(len(each) > 1 for each in persons.values())
    return {"found": found, "tracked": tracked, "switches": switches, "tracks": len(persons), "mixed": mixed}


@pytest.mark.parametrize(
    ("clip", "persons", "most_switches", "most_mixed"),
    [("facenet_pytorch_video.mp4", 11, 6, 1), ("short_hamilton_clip.mp4", 12, 2, 0)],
)
def test_tracks_against_labels(
    engine: object, data_dir: Path, tmp_path: Path, clip: str, persons: int, most_switches: int, most_mixed: int
) -> None:
    labels = LABELS[clip]
    assert len({label["person"] for label in labels}) == persons
    analyze(engine, data_dir / "videos" / clip, tmp_path, Sampling(fps=5))
    got = compare(labels, tmp_path / "faces.parquet")
    print(clip, len(labels), "labels", got)
    assert got["found"] >= 0.97 * len(labels)
    assert got["tracked"] >= 0.85 * len(labels)
    assert got["switches"] <= most_switches
    assert got["mixed"] <= most_mixed


@pytest.mark.parametrize("clip", CLIPS)
def test_five_times_fewer_embeddings_than_faces(engine: object, data_dir: Path, tmp_path: Path, clip: str) -> None:
    result = analyze(engine, data_dir / "videos" / clip, tmp_path, Sampling())
    print(clip, result.faces, "faces", len(result.tracks), "tracks", result.embedded, "embedded")
    assert result.faces >= 5 * result.embedded
    assert 0 < len(result.tracks) <= result.embedded
