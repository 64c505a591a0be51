"""One track, as results say it."""

from __future__ import annotations

from dataclasses import dataclass, field

from facefleet.types import F32Array


@dataclass(frozen=True, slots=True)
class TrackRow:
    """A face through a scene, and whose it is.

    Attributes:
        track: Its number within the video.
        person: The gallery's name, ``person N`` for somebody unknown, ``unknown`` without an embedding.
        known: Whether the gallery knows the person.
        person_score: Cosine similarity to the person; None for the first track of an unknown person.
        start_s: Time of its first face.
        end_s: Time of its last face.
        faces: Faces seen.
        score: Mean detector score.
        embedded: How many of them were embedded.
        best_s: Time of the best one; None without an embedding.
        chip: Path of its chip, relative to the output; None likewise.
        embedding: (d,) float32, L2-normalised; None likewise.
    """

    track: int
    person: str
    known: bool
    person_score: float | None
    start_s: float
    end_s: float
    faces: int
    score: float
    embedded: int
    best_s: float | None = None
    chip: str | None = None
    embedding: F32Array | None = field(default=None, repr=False)
