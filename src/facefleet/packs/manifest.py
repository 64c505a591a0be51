"""The manifest of a model pack: what its files are, where they come from, and what their networks expect.

Owns the schema and its validation. Refuses I/O on models: `store` and `fetch` do that. Safe in any thread.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from facefleet.errors import ManifestError

_STRICT = ConfigDict(extra="forbid")
Triple = tuple[float, float, float]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


@checked(frozen=True, slots=True, kw_only=True, config=_STRICT)
class ModelFile:
    """One ONNX file.

    Attributes:
        file: Name in the store (or, in a pack of one's own, a path relative to the manifest).
        sha256: Digest of the file; required for files that are downloaded.
        size: Bytes, checked where given.
        url: Where it is downloaded from; for a member of an archive, the archive.
        archive_sha256: Digest of the archive at `url`, when `member` is given.
        archive_size: Bytes of that archive, checked where given.
        member: Path inside the archive.
        package: ``distribution==version`` whose package data holds the file at `member`.
    """

    file: str
    sha256: Sha256 | None = None
    size: Annotated[int, Field(gt=0)] | None = None
    url: str | None = None
    archive_sha256: Sha256 | None = None
    archive_size: Annotated[int, Field(gt=0)] | None = None
    member: str | None = None
    package: str | None = None


@checked(frozen=True, slots=True, kw_only=True, config=_STRICT)
class DetectorSpec:
    """What a detector expects and means.

    Attributes:
        family: How its outputs are read.
        source: The file, or several to try in order.
        color: Channel order of its input.
        mean: Subtracted from 0..255 values, per channel in `color` order.
        std: Divisor after that.
        stride: Input sides are rounded up to a multiple of this.
        fit: How pictures are fitted: ``square``: scaled up or down until they touch a square, as SCRFD was trained and
            is used; ``tight``: scaled down if need be, and padded no further than to the stride.
        enlarge_px: With ``tight``, pictures with a longer side below this are scaled up to it; 0: never.
        score: Default least score.
        nms: Default IoU of suppression.
    """

    family: Literal["scrfd", "retinaface", "yunet"]
    source: Annotated[tuple[ModelFile, ...], Field(min_length=1)]
    color: Literal["rgb", "bgr"]
    mean: Triple
    std: Triple
    stride: Annotated[int, Field(ge=1)] = 32
    fit: Literal["square", "tight"] = "square"
    enlarge_px: Annotated[int, Field(ge=0)] = 0
    score: Annotated[float, Field(gt=0, lt=1)] = 0.5
    nms: Annotated[float, Field(gt=0, le=1)] = 0.4


@checked(frozen=True, slots=True, kw_only=True, config=_STRICT)
class EmbedderSpec:
    """What an embedder expects and means.

    Attributes:
        family: ``arcface``: one output; ``adaface``: (feature, norm); ``sface``: as arcface.
        source: The file, or several to try in order.
        color: Channel order of its input.
        mean: Subtracted from 0..255 values, per channel in `color` order.
        std: Divisor after that.
        height: Chip height in pixels.
        width: Chip width in pixels; narrower chips are cut from the middle of the 112 x 112 one.
        dimension: Length of the embedding.
        threshold: Cosine at and above which two faces are taken for the same person.
    """

    family: Literal["arcface", "adaface", "sface"]
    source: Annotated[tuple[ModelFile, ...], Field(min_length=1)]
    color: Literal["rgb", "bgr"]
    mean: Triple
    std: Triple
    height: Annotated[int, Field(ge=16, le=1024)] = 112
    width: Annotated[int, Field(ge=16, le=1024)] = 112
    dimension: Annotated[int, Field(ge=1)]
    threshold: Annotated[float, Field(gt=-1, lt=1)]


@checked(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Manifest:
    """A model pack.

    Attributes:
        schema: Version of this format; 1.
        name: How the pack is asked for.
        license: SPDX expression, or a name for a licence that has none.
        commercial_use: Whether the licence allows it; if not, it has to be accepted once.
        description: One line for lists.
        detector: The detector.
        embedder: The embedder.
    """

    schema: Literal[1]
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._+-]*$")]
    license: str
    commercial_use: bool
    description: str
    detector: DetectorSpec
    embedder: EmbedderSpec


@dataclass(frozen=True, slots=True)
class LocatedManifest:
    """A manifest and the folder that relative paths in it start from (None for a built-in one)."""

    manifest: Manifest
    folder: Path | None


def parse(text: str, *, origin: str) -> Manifest:
    """Read a manifest from TOML.

    Args:
        text: The TOML.
        origin: What to call it in errors.

    Raises:
        ManifestError: It is not TOML, or a key is missing, unknown or malformed; the message names the key.
    """
    try:
        return TypeAdapter(Manifest).validate_python(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ManifestError(f"{origin}: not valid TOML: {error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ManifestError(f"{origin}: {where}: {first['msg']} (got {first.get('input')!r})") from error


def dump(manifest: Manifest) -> str:
    """Write a manifest as TOML that `parse` reads back."""
    lines = _pairs(manifest)
    for section, spec in (("detector", manifest.detector), ("embedder", manifest.embedder)):
        lines += ["", f"[{section}]", *_pairs(spec)]
        for file in spec.source:
            lines += ["", f"[[{section}.source]]", *_pairs(file)]
    return "\n".join(lines) + "\n"


def _pairs(value: Manifest | DetectorSpec | EmbedderSpec | ModelFile) -> list[str]:
    """``key = value`` of every plain field that is set; JSON's text, numbers, booleans and lists are TOML's too."""
    pairs = [(field.name, getattr(value, field.name)) for field in fields(value)]
    return [
        f"{key} = {json.dumps(content)}"
        for key, content in pairs
        if isinstance(content, (str, bool, int, float)) or (isinstance(content, tuple) and key != "source")
    ]
