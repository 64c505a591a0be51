"""The answers of the REST API, declared for OpenAPI; what is sent is built in `answers` without going through these."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

from pydantic import BaseModel, Field

JPEG_BASE64 = "/9j/4AAQSkZJRg=="
FACE: dict[str, Any] = {
    "box": [62.1, 40.5, 130.9, 131.0],
    "landmarks": [[80.0, 75.0], [112.0, 75.2], [96.3, 93.0], [82.5, 110.1], [110.0, 110.4]],
    "score": 0.93,
    "status": "ok",
    "embedding": [0.031, -0.012],
    "norm": 11.8,
    "quality": {"size_px": 68.8, "blur": 310.0, "yaw_deg": 2.1, "pitch_deg": -3.0, "roll_deg": 0.4},
}
FACES: dict[str, Any] = {
    "input": "image",
    "status": "ok",
    "width": 250,
    "height": 250,
    "best_rejected": 0.1,
    "faces": [FACE],
}


class Problem(BaseModel):
    """Problem details, RFC 9457, with our members from `code` on."""

    type: str = Field(examples=["urn:facefleet:error:corrupt_image"])
    title: str
    status: int
    detail: str
    code: str = Field(description="Stable, for programs.", examples=["corrupt_image"])
    hint: str = Field(description="What to do; may be empty.")
    retryable: bool = Field(description="Whether the same request may succeed later.")
    request_id: str | None = None
    retry_after_s: float | None = None


class Quality(BaseModel):
    """How usable a face is."""

    size_px: float | None
    blur: float | None
    yaw_deg: float | None
    pitch_deg: float | None
    roll_deg: float | None


class FaceAnswer(BaseModel):
    """One face, in pixels of the upright picture."""

    box: list[float] = Field(description="x1 y1 x2 y2")
    landmarks: list[list[float]] | None
    score: float
    status: Literal["ok", "alignment_failed"]
    embedding: list[float] | str | None = Field(description="L2-normalized; base64 is little-endian float32")
    norm: float | None
    quality: Quality


class FacesAnswer(BaseModel):
    """Every face of a picture; none is an answer too."""

    model_config = {"json_schema_extra": {"examples": [FACES]}}
    input: str
    status: Literal["ok", "no_face"]
    width: int
    height: int
    best_rejected: float | None
    faces: list[FaceAnswer]


class VerifyAnswer(BaseModel):
    """Whether the largest faces of two pictures are of the same person."""

    same: bool
    cosine: float
    threshold: float
    metric: Literal["cosine"]
    faces: list[dict[str, Any]] = Field(description="box and score of the two faces")


class InfoAnswer(BaseModel):
    """What is running and what it takes."""

    version: str
    pack: str
    license: str
    commercial_use: bool
    dimension: int
    metric: str
    threshold: float
    fingerprint: str
    runtime: dict[str, str]
    devices: list[dict[str, str]] = Field(description="name, stage and state of each")
    max_pixels: int
    limits: dict[str, float]


class GalleryAnswer(BaseModel):
    """A gallery: `id` is opaque, `name` is data."""

    id: str
    name: str
    people: int
    samples: int
    dimension: int
    fingerprint: str = Field(description="Of the pipeline that made its embeddings")
    index: str
    keep_chips: bool


class GalleriesAnswer(BaseModel):
    """All of them."""

    galleries: list[GalleryAnswer]


class PersonAnswer(BaseModel):
    """Somebody."""

    id: int
    name: str
    metadata: dict[str, Any]
    samples: int
    created_s: float
    faces: list[dict[str, Any]] | None = None


class PeopleAnswer(BaseModel):
    """Some people, and how many there are."""

    total: int
    people: list[PersonAnswer]


class EnrolAnswer(BaseModel):
    """Whose face it is now, and what became of each picture."""

    person: int | None = Field(description="null where nothing could be stored for somebody new")
    results: list[dict[str, Any]] = Field(description="id, sample, reasons, warnings, error")


class ErasedAnswer(BaseModel):
    """What was removed; every file of the gallery was searched, and nothing of it was left."""

    person: int
    samples: int
    files_scanned: int


class DecisionAnswer(BaseModel):
    """Whether it is this person."""

    person: int
    same: bool
    score: float
    threshold: float
    probability: float | None
    metric: Literal["cosine"]


class SearchAnswer(BaseModel):
    """For each face its matches: person, name, metadata, score, sample, probability."""

    gallery: str
    metric: Literal["cosine"]
    faces: list[dict[str, Any]]


class HealthAnswer(BaseModel):
    """Live or ready."""

    live: bool | None = None
    ready: bool | None = None
    reason: str | None = None


PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": text,
        "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    for status, text in {
        400: "The request cannot be understood.",
        401: "No API key, or one that is not known.",
        403: "The key does not allow it.",
        408: "The body came too slowly.",
        409: "It does not fit what is there.",
        413: "Too many bytes, pictures or pixels.",
        415: "A content type or picture format that is not taken.",
        422: "The picture is damaged, or shows no face where one was required.",
        424: "The picture at the URL could not be fetched.",
        429: "Too many for this key: see Retry-After.",
        499: "The client went away.",
        500: "A bug of the server's.",
        503: "Overloaded, starting or stopping, or the deadline passed: see Retry-After.",
    }.items()
}


FACES_TYPES: dict[str, Any] = {
    "description": "By Accept: JSON, msgpack, or an Arrow stream with a row a face; with draw a JPEG.",
    "content": {
        "application/msgpack": {},
        "application/vnd.apache.arrow.stream": {},
        "image/jpeg": {"schema": {"type": "string", "format": "binary"}},
    },
}


def json_body(properties: dict[str, Any], *, example: dict[str, Any], required: list[str]) -> dict[str, Any]:
    """A JSON body that is read by hand, for OpenAPI."""
    tree = {"type": "object", "properties": properties} | ({"required": required} if required else {})
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": tree, "example": example}}}}


def body(*types: str, schema: dict[str, Any] | None = None, optional: Collection[str] = ()) -> dict[str, Any]:
    """A request body that is read by hand, for OpenAPI.

    Args:
        types: Raw content types.
        schema: Properties of the JSON body, each base64 or a list of base64; None: JSON is not taken.
        optional: Other properties that it may have.
    """
    binary = {"schema": {"type": "string", "format": "binary"}}
    content: dict[str, Any] = dict.fromkeys(types, binary)
    form = {"type": "object", "properties": {"image": {"type": "string", "format": "binary"}}}
    content["multipart/form-data"] = {"schema": form}
    if schema is not None:
        text: dict[str, Any] = {"type": "string", "format": "byte"}
        properties: dict[str, Any] = {
            name: {"type": "array", "items": text} if isinstance(example, list) else text
            for name, example in schema.items()
        }
        properties |= {name: {"type": "object" if name == "metadata" else "string"} for name in optional}
        required = list(schema)
        content["application/json"] = {
            "schema": {"type": "object", "properties": properties, "required": required},
            "example": schema,
        }
    return {"requestBody": {"required": True, "content": content}}
