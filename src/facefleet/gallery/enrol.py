"""Enrolling pictures: which face counts, whether it is good enough, whether it is known already.

Owns the gate and the warnings. Refuses to run networks: the engine is handed in as a `FaceAnalyzer`. Pictures go
through the engine side by side; faces are stored in commits of a bounded size, so that a crash loses none that was
reported.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from facefleet.decode import Decoder
from facefleet.errors import FacefleetError, InternalError
from facefleet.gallery import reads
from facefleet.gallery.face_table import FaceTable
from facefleet.gallery.gallery import Gallery
from facefleet.gallery.matching import best_people
from facefleet.gallery.record import find_or_add, without_chip
from facefleet.gallery.records import NewSample
from facefleet.gallery.vectors import checked_vectors
from facefleet.types import EncodedImage, F32Array, FaceRecord, Faces, FaceStatus, ImageSource, Outcome

Choice: TypeAlias = Literal["dominant", "only", "largest", "center"]
"""Which face of a picture: ``dominant``: the largest, if the next one is at most half its area; ``only``: refused
where there are several; ``largest``; ``center``: nearest to the middle."""

_DOMINANCE = 2.0
_COMMIT = 64


class FaceAnalyzer(Protocol):
    """An engine, as galleries see it."""

    @property
    def fingerprint(self) -> str:
        """Digest of everything that decides what an embedding means."""

    @property
    def dimension(self) -> int:
        """Length of an embedding."""

    def as_ready(self, images: Iterable[ImageSource], *, chips: bool = False) -> Iterator[tuple[int, Outcome[Faces]]]:
        """Position and outcome of every picture, each exactly once, as they are ready."""


@dataclass(frozen=True, slots=True)
class QualityGate:
    """What a face must be to be enrolled; a measure that is not there is not held against it.

    Attributes:
        min_size_px: Shorter side of the box.
        min_score: Detector score.
        min_blur: Variance of the Laplacian of the chip; low is blurred.
        max_yaw_deg: Turn to either side.
        max_pitch_deg: Nod either way.
        max_roll_deg: Tilt either way; alignment takes it out.
    """

    min_size_px: float = 40.0
    min_score: float = 0.5
    min_blur: float = 20.0
    max_yaw_deg: float = 50.0
    max_pitch_deg: float = 50.0
    max_roll_deg: float = 60.0

    def reasons(self, quality: Mapping[str, float]) -> list[str]:
        """Why a face is not good enough; empty where it is."""
        found = []
        for key, limit, low in (
            ("size_px", self.min_size_px, True),
            ("score", self.min_score, True),
            ("blur", self.min_blur, True),
            ("yaw_deg", self.max_yaw_deg, False),
            ("pitch_deg", self.max_pitch_deg, False),
            ("roll_deg", self.max_roll_deg, False),
        ):
            value = quality.get(key, float("nan"))
            if (value < limit) if low else (abs(value) > limit):
                found.append(f"{key} {value:.4g}, {'at least' if low else 'at most'} {limit:g} is wanted")
        return found


@dataclass(frozen=True, slots=True)
class EnrolItem:
    """A picture of somebody.

    Attributes:
        who: Id or name.
        key: What the picture is called; a path is kept as the source to embed again.
        picture: What the engine takes.
        metadata: For a new person.
    """

    who: int | str
    key: str
    picture: ImageSource
    metadata: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class EnrolResult:
    """What became of one picture.

    Attributes:
        key: The picture.
        who: As asked for.
        person: Id, if it was stored.
        sample: Id, if it was stored.
        reasons: Why it was not, where the picture was read and the face was not good enough.
        warnings: What to look at: the same picture is there already, the face is like somebody else's, or unlike
            this person's others.
        error: Why it was not, where the picture could not be read.
    """

    key: str
    who: int | str
    person: int | None = None
    sample: int | None = None
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    error: FacefleetError | InternalError | None = None


@dataclass(slots=True)
class _Pending:
    item: EnrolItem
    sample: NewSample
    warnings: list[str] = field(default_factory=list)


def enrol_pictures(
    gallery: Gallery,
    engine: FaceAnalyzer,
    items: Iterable[EnrolItem],
    *,
    gate: QualityGate | None = None,
    face: Choice = "dominant",
    allow_duplicates: bool = False,
) -> Iterator[EnrolResult]:
    """Store one face of each picture.

    Args:
        gallery: Where to.
        engine: What the gallery was made with.
        items: Pictures; read as far ahead as the engine wants.
        gate: What is good enough.
        face: Which face of a picture.
        allow_duplicates: Whether a picture that this person has already is stored once more.

    Yields:
        What became of each picture, in the order they are ready; what is stored is on the disk then.

    Raises:
        PipelineMismatchError: The engine is not the gallery's.
        GalleryError: The gallery cannot be written to; what was yielded is stored.
    """
    gallery.require(engine.fingerprint)
    gate = gate or QualityGate()
    waiting: dict[int, tuple[EnrolItem, str | None]] = {}
    pending: list[_Pending] = []
    for index, outcome in engine.as_ready(_opened(items, waiting), chips=gallery.header.keep_chips):
        item, digest = waiting.pop(index)
        if not outcome.ok:
            yield EnrolResult(item.key, item.who, error=outcome.error)
            continue
        sample, reasons = _sample(item, digest, outcome.unwrap(), gate, face)
        if sample is None:
            yield EnrolResult(item.key, item.who, reasons=tuple(reasons))
            continue
        pending.append(_Pending(item, sample))
        if len(pending) >= _COMMIT:
            yield from _store(gallery, pending, allow_duplicates=allow_duplicates)
            pending = []
    yield from _store(gallery, pending, allow_duplicates=allow_duplicates)


def enrol_table(
    gallery: Gallery,
    table: FaceTable,
    who: Callable[[int], int | str],
    *,
    gate: QualityGate | None = None,
    face: Choice = "dominant",
    allow_duplicates: bool = False,
) -> Iterator[EnrolResult]:
    """Store one face of each picture of a table.

    Args:
        gallery: Where to.
        table: Faces with embeddings.
        who: Whose face a row is: id or name.
        gate: What is good enough.
        face: Which face of a picture; ``center`` is not known here and means ``largest``.
        allow_duplicates: See `enrol_pictures`.

    Yields:
        What became of each picture.

    Raises:
        PipelineMismatchError: The table was made by another pipeline, or does not say by which.
    """
    gallery.require(table.fingerprint)
    gate = gate or QualityGate()
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(table.inputs):
        rows.setdefault(name, []).append(row)
    pending: list[_Pending] = []
    for name, found in rows.items():
        areas = np.nan_to_num((table.boxes[found, 2:] - table.boxes[found, :2]).prod(axis=1))
        best, reason = _by_area(areas, face)
        row = found[best]
        quality = {key: float(values[row]) for key, values in table.quality.items()}
        reasons = [reason] if reason else gate.reasons(quality)
        if reasons:
            yield EnrolResult(name, who(row), reasons=tuple(reasons))
            continue
        box = tuple(float(value) for value in table.boxes[row])
        kept_box = (box[0], box[1], box[2], box[3]) if np.isfinite(table.boxes[row]).all() else None
        pending.append(
            _Pending(EnrolItem(who(row), name, b""), NewSample(table.embeddings[row], name, None, quality, kept_box))
        )
        if len(pending) >= _COMMIT:
            yield from _store(gallery, pending, allow_duplicates=allow_duplicates)
            pending = []
    yield from _store(gallery, pending, allow_duplicates=allow_duplicates)


def _opened(items: Iterable[EnrolItem], waiting: dict[int, tuple[EnrolItem, str | None]]) -> Iterator[ImageSource]:
    """Pictures with their bytes' digest, where they have bytes."""
    decoder = Decoder()
    for index, item in enumerate(items):
        picture, digest = with_digest(decoder, item.picture, item.key)
        waiting[index] = item, digest
        yield picture


def with_digest(decoder: Decoder, picture: ImageSource, name: str) -> tuple[ImageSource, str | None]:
    """A picture with its bytes read, and their sha256; what has no bytes, or cannot be read, stays as it is."""
    try:
        read = decoder.read(picture, name=name)
    except FacefleetError:
        return picture, None  # the engine says why
    if isinstance(read, EncodedImage):
        return read, hashlib.sha256(read.data).hexdigest()
    return read, None


def _sample(
    item: EnrolItem, digest: str | None, faces: Faces, gate: QualityGate, choice: Choice
) -> tuple[NewSample | None, list[str]]:
    record, reason = choose_face(faces, choice)
    if record is None:
        return None, [reason]
    quality = quality_of(record)
    reasons = gate.reasons(quality)
    if reasons:
        return None, reasons
    box = tuple(float(value) for value in record.box)
    sample = NewSample(record.embedding, item.key, digest, quality, (box[0], box[1], box[2], box[3]), record.chip)
    return sample, []


def choose_face(faces: Faces, choice: Choice = "dominant") -> tuple[FaceRecord | None, str]:
    """The face of a picture that counts, or None and why there is none."""
    good = [face for face in faces if face.status is FaceStatus.OK]
    if not good:
        return None, f"no face; the best rejected detector score was {faces.best_rejected:.2f}"
    areas = [float(np.prod(face.box[2:] - face.box[:2])) for face in good]
    if choice == "center":
        middle = np.array([faces.width, faces.height]) / 2
        return min(good, key=lambda face: float(np.linalg.norm((face.box[:2] + face.box[2:]) / 2 - middle))), ""
    best, reason = _by_area(np.array(areas), choice)
    return (None, reason) if reason else (good[best], "")


def _by_area(areas: NDArray[np.floating], choice: Choice) -> tuple[int, str]:
    """The largest of several faces, and why it is not clear that it is meant."""
    order = np.argsort(-areas, kind="stable")
    several = len(areas) > 1
    if several and (choice == "only" or (choice == "dominant" and areas[order[0]] < _DOMINANCE * areas[order[1]])):
        return int(order[0]), f"{len(areas)} faces, and which one is meant is not clear: choose largest or center"
    return int(order[0]), ""


def quality_of(face: FaceRecord) -> dict[str, float]:
    """The measures that a gate looks at."""
    quality = face.faces.quality
    names = ("size_px", "blur", "yaw_deg", "pitch_deg", "roll_deg")
    return {name: float(getattr(quality, name)[face.index]) for name in names} | {"score": face.score}


def _store(gallery: Gallery, pending: list[_Pending], *, allow_duplicates: bool) -> Iterator[EnrolResult]:
    if not pending:
        return
    _warn(gallery, pending)
    results = []
    with gallery.writing() as change:
        counts: dict[int, int] = {}
        for entry in pending:
            item, sample = entry.item, entry.sample
            try:
                person = find_or_add(change, item.who, item.metadata, new=False)
            except FacefleetError as error:
                results.append(EnrolResult(item.key, item.who, error=error))
                continue
            known = "SELECT id FROM samples WHERE person = ? AND (source_sha256 = ? OR embedding = ?)"
            data = checked_vectors(sample.embedding, gallery.header.pipeline.dimension)[0].astype("<f4").tobytes()
            same = change.db.execute(known, (person, sample.source_sha256, data)).fetchone()
            if same is not None and not allow_duplicates:
                reason = f"the same picture is sample {same[0]} of this person"
                results.append(EnrolResult(item.key, item.who, person, None, (reason,)))
                continue
            vector = checked_vectors(sample.embedding, gallery.header.pipeline.dimension)[0]
            kept = sample if gallery.header.keep_chips else without_chip(sample)
            number = change.add_sample(person, vector, kept)
            counts[person] = counts.get(person, 0) + 1
            results.append(EnrolResult(item.key, item.who, person, number, (), tuple(entry.warnings)))
        for person, count in counts.items():
            change.note("enrol", person, count)
    yield from results


def _warn(gallery: Gallery, pending: list[_Pending]) -> None:
    """Look every face up among those that are stored, and among those that come with it."""
    dimension, limit = gallery.header.pipeline.dimension, gallery.header.pipeline.threshold
    vectors = checked_vectors(np.stack([entry.sample.embedding for entry in pending]), dimension)
    with gallery.view.searching() as (db, seen):
        nearest = best_people(seen, vectors, 2, -1.0, None)
        people = reads.some_people(db, sorted({each.person for answer in nearest for each in answer}))
        for entry, answer in zip(pending, nearest, strict=True):
            digest, who = entry.sample.source_sha256, entry.item.who
            if digest is not None:
                query = "SELECT person FROM samples WHERE source_sha256 = ?"
                for (person,) in db.execute(query, (digest,)):
                    if who not in (person, reads.person(db, person).name):
                        entry.warnings.append(f"the same picture is enrolled as person {person}")
            for candidate in answer:
                person = people[candidate.person]
                if who not in (person.id, person.name) and candidate.score >= limit:
                    entry.warnings.append(f"like person {person.id} ({person.name}): cosine {candidate.score:.3f}")
            _warn_unlike(db, entry, vectors[pending.index(entry)], limit)
    _warn_among(pending, vectors, limit)


def _warn_among(pending: list[_Pending], vectors: F32Array, limit: float) -> None:
    """Of the faces that come with it and before it, the one of another person that is most alike."""
    names = np.array([str(entry.item.who) for entry in pending])
    scores = vectors @ vectors.T
    for row in range(1, len(pending)):
        others = np.flatnonzero(names[:row] != names[row])
        if len(others) and scores[row, others].max() >= limit:
            other = pending[others[int(scores[row, others].argmax())]].item
            pending[row].warnings.append(f"like {other.key}, enrolled as {other.who} with it")


def _warn_unlike(db: Any, entry: _Pending, vector: Any, limit: float) -> None:  # noqa: ANN401  # a connection, an array
    try:
        person = reads.person(db, entry.item.who)
    except FacefleetError:
        return  # new, or not clear: said when it is stored
    others = reads.samples_of(db, person.id)
    if others and (best := max(float(vector @ sample.embedding) for sample in others)) < limit:
        entry.warnings.append(f"unlike every other face of person {person.id}: cosine {best:.3f} at most")
