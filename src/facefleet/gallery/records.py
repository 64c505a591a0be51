"""The values of a gallery: its header, people, samples, matches, and what is handed in to be stored.

Owns shapes and meaning; refuses I/O. Frozen, safe in any thread.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from facefleet.types import F32Array, U8Array

METRIC = "cosine"
Scoring: TypeAlias = Literal["best", "mean"]
"""How a person with several samples is scored: ``best`` sample, or the normalized ``mean`` of all samples."""


@dataclass(frozen=True, slots=True)
class PipelineIdentity:
    """What made the embeddings.

    Attributes:
        fingerprint: Digest of models, aligner and options; an engine's `fingerprint`.
        dimension: Length of an embedding.
        threshold: Cosine at and above which two faces are taken for the same person: the pack's.
        description: What the engine says of itself, for people.
    """

    fingerprint: str
    dimension: int
    threshold: float = 0.5
    description: Mapping[str, str] = field(default_factory=dict)


def pipeline_text(pipeline: PipelineIdentity) -> str:
    """As it is stored: JSON."""
    values = {
        "fingerprint": pipeline.fingerprint,
        "dimension": pipeline.dimension,
        "threshold": pipeline.threshold,
        "description": dict(pipeline.description),
    }
    return json.dumps(values, sort_keys=True)


@dataclass(frozen=True, slots=True)
class Header:
    """The contract of a gallery.

    Attributes:
        uuid: Which gallery this is; a copy keeps it.
        pipeline: What made the embeddings; others are refused.
        metric: Always ``cosine``: scores in [-1, 1], higher is more alike.
        index: Kind of index, with its options.
        keep_chips: Whether the aligned faces are stored, so that another model can embed them later.
        created_s: Seconds since 1970.
    """

    uuid: str
    pipeline: PipelineIdentity
    index: Mapping[str, Any]
    keep_chips: bool
    created_s: float
    metric: str = METRIC


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody known.

    Attributes:
        id: Stable, 64 bits, never given again.
        name: Any text; names are data, several people may share one.
        metadata: A JSON object.
        samples: How many there are.
        created_s: Seconds since 1970.
    """

    id: int
    name: str
    metadata: Mapping[str, Any]
    samples: int
    created_s: float


@dataclass(frozen=True, slots=True)
class NewSample:
    """A face to be stored.

    Attributes:
        embedding: (d,) float32; stored normalized to length one.
        source: Where it came from: a path or key, kept to embed it again.
        source_sha256: Digest of the picture's bytes.
        quality: Measures by name, e.g. ``size_px``, ``blur``, ``score``.
        box: x1 y1 x2 y2 in the source, pixels of the upright picture.
        chip: (112, 112, 3) uint8 RGB aligned face.
    """

    embedding: F32Array
    source: str | None = None
    source_sha256: str | None = None
    quality: Mapping[str, float] = field(default_factory=dict)
    box: tuple[float, float, float, float] | None = None
    chip: U8Array | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """A stored face.

    Attributes:
        id: Stable, 64 bits, never given again.
        person: Whose it is.
        embedding: (d,) float32, L2-normalized.
        source: Where it came from.
        source_sha256: Digest of the picture's bytes.
        quality: Measures by name.
        box: x1 y1 x2 y2 in the source.
        chip_png: The aligned face as PNG, where chips are kept.
        created_s: Seconds since 1970.
    """

    id: int
    person: int
    embedding: F32Array
    source: str | None
    source_sha256: str | None
    quality: Mapping[str, float]
    box: tuple[float, float, float, float] | None
    chip_png: bytes | None
    created_s: float


@dataclass(frozen=True, slots=True)
class Match:
    """One candidate of an identification.

    Attributes:
        person: Id.
        name: As it is now.
        metadata: As it is now.
        score: Cosine in [-1, 1], higher is more alike.
        sample: The sample that scored best; None for mean scoring.
        probability: That both are the same person, both cases being equally likely beforehand; None without a
            calibration.
    """

    person: int
    name: str
    metadata: Mapping[str, Any]
    score: float
    sample: int | None
    probability: float | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer of a 1:1 verification.

    Attributes:
        person: Who it was compared with.
        same: Whether `score` reaches `threshold`.
        score: Cosine.
        threshold: Least score for the same person.
        probability: See `Match`.
        metric: What `score` is.
    """

    person: int
    same: bool
    score: float
    threshold: float
    probability: float | None = None
    metric: str = METRIC


@dataclass(frozen=True, slots=True)
class Change:
    """One line of the history: who did what to whom, when; never a picture, a vector or a name.

    Attributes:
        revision: State of the gallery after it.
        at_s: Seconds since 1970.
        who: The actor.
        action: E.g. ``enrol``, ``rename``, ``erase``.
        person: Id, or None for the gallery itself.
        samples: How many samples it concerned.
        detail: More, as JSON.
    """

    revision: int
    at_s: float
    who: str
    action: str
    person: int | None
    samples: int
    detail: Mapping[str, Any]
