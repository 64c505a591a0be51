"""Who appears when, as chapters: WebVTT cues for players, or JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from facefleet.sinks.video.rows import TrackRow

_JOIN_S = 1.0
_LEAST_S = 0.04


def appearances(tracks: Sequence[TrackRow], *, join_s: float = _JOIN_S) -> list[tuple[float, float, str]]:
    """Start, end and person of every appearance; pauses up to `join_s` do not count."""
    out: list[tuple[float, float, str]] = []
    last: dict[str, int] = {}
    for track in sorted(tracks, key=lambda track: (track.start_s, track.track)):
        at = last.get(track.person)
        if at is not None and track.start_s - out[at][1] <= join_s:
            out[at] = (out[at][0], max(out[at][1], track.end_s), track.person)
        else:
            last[track.person] = len(out)
            out.append((track.start_s, track.end_s, track.person))
    return out


def write_chapters(path: Path, tracks: Sequence[TrackRow], *, start_s: float = 0.0) -> None:
    """Write appearances.

    Args:
        path: ``.vtt`` for WebVTT (W3C), else JSON: a list of ``start_s``, ``end_s``, ``person``.
        tracks: The tracks.
        start_s: Time of the video's first frame, which players call 0.
    """
    found = [(start - start_s, end - start_s, person) for start, end, person in appearances(tracks)]
    if path.suffix == ".vtt":
        cues = [
            f"{number}\n{_clock(start)} --> {_clock(max(end, start + _LEAST_S))}\n{_text(person)}\n"
            for number, (start, end, person) in enumerate(found, 1)
        ]
        path.write_text("\n".join(["WEBVTT\n", *cues]), encoding="utf-8")
        return
    rows = [{"start_s": round(start, 3), "end_s": round(end, 3), "person": person} for start, end, person in found]
    path.write_text(json.dumps(rows, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def _clock(seconds: float) -> str:
    whole = max(0, round(seconds * 1000))
    return f"{whole // 3_600_000:02d}:{whole // 60_000 % 60:02d}:{whole // 1000 % 60:02d}.{whole % 1000:03d}"


def _text(name: str) -> str:
    """A name as cue text: no markup, and no line that could end the cue."""
    escaped = name.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return " ".join(escaped.split()) or "?"
