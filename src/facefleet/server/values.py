"""What fronts ask of the service, and what they get. Frozen; an `Ask` knows when it was made."""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from facefleet.batching import Priority
from facefleet.errors import NoFaceError
from facefleet.types import FaceRecord, Faces, FaceStatus, Outcome
from facefleet.workers import WorkerStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """How pictures are to be analyzed.

    Attributes:
        embed: Whether faces are embedded.
        chips: Whether the aligned faces are returned too.
        priority: Who goes first.
        timeout_s: From `asked_at`: what the body takes to come counts too.
        client: Whose it is, for a fair share of the room; None: nobody's.
        asked_at: Monotonic seconds.
    """

    embed: bool = True
    chips: bool = False
    priority: Priority = Priority.INTERACTIVE
    timeout_s: float = 30.0
    client: Hashable = None
    asked_at: float = field(default_factory=time.monotonic)

    @property
    def left_s(self) -> float:
        """Seconds until the deadline."""
        return self.asked_at + self.timeout_s - time.monotonic()


@dataclass(frozen=True, slots=True)
class Answer:
    """One item of a batch.

    Attributes:
        index: Its place, from 0.
        id: What the caller calls it.
        outcome: Faces or why not.
    """

    index: int
    id: str
    outcome: Outcome[Faces]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Whether two pictures show the same person.

    Attributes:
        same: Whether `cosine` reaches `threshold`.
        cosine: Cosine similarity of the largest faces, in [-1, 1].
        threshold: What it is held against.
        faces: The two faces that were compared.
    """

    same: bool
    cosine: float
    threshold: float
    faces: tuple[FaceRecord, FaceRecord]


def largest(faces: Faces, name: str) -> FaceRecord:
    """The face with the largest box among those with an embedding.

    Raises:
        NoFaceError: There is none.
    """
    usable = [face for face in faces if face.status is FaceStatus.OK]
    if not usable:
        raise NoFaceError(
            f"{name}: no face to compare", hint=f"the best rejected detector score was {faces.best_rejected:.2f}"
        )
    return max(usable, key=lambda face: float((face.box[2] - face.box[0]) * (face.box[3] - face.box[1])))


def devices_of(workers: Sequence[WorkerStatus], runtime: Mapping[str, str]) -> list[dict[str, str]]:
    """Name, stage and state of each device."""
    if not workers:
        return [{"name": runtime.get("device", "cpu"), "stage": "all", "state": "ready"}]
    return [{"name": each.name, "stage": each.stage, "state": str(each.state.value)} for each in workers]
