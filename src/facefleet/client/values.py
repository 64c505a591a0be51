"""What a server answers, as values; problem details as the errors that they were. Pure, any thread."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from facefleet import errors
from facefleet.errors import FacefleetError, QueueFullError, ServerError


@dataclass(frozen=True, slots=True, eq=False)
class Face:
    """One face, in pixels of the upright picture.

    Attributes:
        box: (4,) float32 x1 y1 x2 y2.
        landmarks: (5, 2) float32; None where the detector has none.
        score: Detector score in [0, 1].
        embedding: (d,) float32, L2-normalized; None where it was not asked for or the face could not be aligned.
        norm: Norm before normalization; None likewise.
        quality: Measures by name; None where not known.
    """

    box: NDArray[np.float32]
    landmarks: NDArray[np.float32] | None
    score: float
    embedding: NDArray[np.float32] | None
    norm: float | None
    quality: Mapping[str, float | None]


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """The faces of one picture; none is an answer too.

    Attributes:
        width: Of the upright picture in pixels.
        height: Likewise.
        faces: Every face.
        best_rejected: Highest detector score below the threshold.
    """

    width: int
    height: int
    faces: tuple[Face, ...]
    best_rejected: float | None


@dataclass(frozen=True, slots=True)
class Item:
    """One picture of many.

    Attributes:
        id: Its path.
        picture: Its faces, or None.
        error: Why there are none, or None.
    """

    id: str
    picture: Picture | None
    error: FacefleetError | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether two pictures are of the same person: `cosine` in [-1, 1] against `threshold`."""

    same: bool
    cosine: float
    threshold: float


@dataclass(frozen=True, slots=True)
class Match:
    """Somebody whom a face may show: `score` is the cosine in [-1, 1], higher is more alike."""

    person: int
    name: str
    score: float
    metadata: Mapping[str, Any]
    probability: float | None = None


@dataclass(frozen=True, slots=True)
class Gallery:
    """A gallery of the server: `id` is opaque, `name` is data."""

    id: str
    name: str
    people: int
    samples: int

    @classmethod
    def of(cls, tree: Mapping[str, Any]) -> Gallery:
        """The value of a server's answer."""
        return cls(str(tree["id"]), str(tree["name"]), int(tree["people"]), int(tree["samples"]))


_BY_CODE = {
    kind.code: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, FacefleetError)
}


def picture_of(tree: Mapping[str, Any]) -> Picture:
    """The value of a server's answer."""
    return Picture(
        int(tree["width"]), int(tree["height"]), tuple(_face(face) for face in tree["faces"]), tree["best_rejected"]
    )


def matches_of(trees: list[dict[str, Any]]) -> list[Match]:
    """The values of a server's answer."""
    return [
        Match(int(t["person"]), str(t["name"]), float(t["score"]), dict(t["metadata"]), t["probability"]) for t in trees
    ]


def _face(tree: Mapping[str, Any]) -> Face:
    coded = tree["embedding"]
    vector = None if coded is None else np.frombuffer(base64.b64decode(coded), "<f4").astype(np.float32)
    points = tree["landmarks"]
    return Face(
        np.array(tree["box"], np.float32),
        None if points is None else np.array(points, np.float32),
        float(tree["score"]),
        vector,
        tree["norm"],
        dict(tree["quality"]),
    )


def error_of(problem: Any, status: int) -> FacefleetError:  # noqa: ANN401  # whatever came
    """The error that problem details stand for; `ServerError` for codes that are not known here, and for no problem."""
    if not isinstance(problem, dict) or "code" not in problem:
        return ServerError(f"the server answered with status {status}")
    message, hint = str(problem.get("detail", "")), str(problem.get("hint", ""))
    kind = _BY_CODE.get(str(problem["code"]), ServerError)
    if issubclass(kind, QueueFullError):
        return kind(message, hint=hint, retry_after_s=float(problem.get("retry_after_s", 1.0)))
    return kind(message, hint=hint)
