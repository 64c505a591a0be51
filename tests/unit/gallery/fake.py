"""Vectors, pipelines and engines for tests of galleries."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from facefleet.errors import CorruptImageError, FacefleetError, SourceError
from facefleet.gallery import Gallery, Header, NewSample, PipelineIdentity
from facefleet.types import DeferredImage, Embeddings, EncodedImage, Faces, ImageSource, Outcome, Quality

DIMENSION = 32
IDENTITY = PipelineIdentity("a" * 64, DIMENSION, 0.5, {"pack": "fake"})
OTHER = PipelineIdentity("b" * 64, 16, 0.4, {"pack": "other"})


def unit_vectors(n: int, d: int = DIMENSION, *, seed: int = 0) -> np.ndarray:
    """(n, d) float32 of length one."""
    vectors = np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def header(kind: str, **options: object) -> Header:
    """A header for an index on its own."""
    return Header("0" * 32, IDENTITY, {"kind": kind, **options}, False, 0.0)


def filled(
    folder: Path, people: int = 10, samples: int = 2, **options: object
) -> tuple[Gallery, np.ndarray, list[int]]:
    """A gallery of people with a few similar samples each; their vectors (people, samples, d) and ids."""
    gallery = Gallery.create(folder, IDENTITY, **options)  # type: ignore[arg-type]
    base = unit_vectors(people, seed=11)
    noise = unit_vectors(people * samples, seed=12).reshape(people, samples, DIMENSION)
    vectors = base[:, None] + 0.4 * noise
    vectors /= np.linalg.norm(vectors, axis=2, keepdims=True)
    ids = []
    for number in range(people):
        faces = [NewSample(vector.astype(np.float32), source=f"{number}.jpg") for vector in vectors[number]]
        person, _ = gallery.enrol(
            f"person {number}", faces, fingerprint=IDENTITY.fingerprint, metadata={"team": ["red", "blue"][number % 2]}
        )
        ids.append(person)
    return gallery, vectors.astype(np.float32), ids


class PictureEngine:
    """An engine whose pictures are text: ``name[:property=value...]``, one face each; ``nobody``, ``two``, ``bad``.

    A face's vector follows from the name, with a little noise from all of the text.
    """

    def __init__(self, identity: PipelineIdentity = IDENTITY) -> None:
        self.identity = identity
        self.pictures = 0
        self.chips_asked = False

    @property
    def fingerprint(self) -> str:
        return self.identity.fingerprint

    @property
    def dimension(self) -> int:
        return self.identity.dimension

    def describe(self) -> dict[str, str]:
        return dict(self.identity.description)

    def as_ready(self, images: Iterable[ImageSource], *, chips: bool = False) -> Iterator[tuple[int, Outcome[Faces]]]:
        for index, image in enumerate(images):
            self.pictures += 1
            self.chips_asked = chips
            try:
                yield index, Outcome(self._faces(image, chips))
            except FacefleetError as error:
                yield index, Outcome(error=error)

    def embed(self, chips: np.ndarray) -> Embeddings:
        vectors = np.stack([vector_of(bytes(chip[0, :8, 0].tobytes()), self.dimension) for chip in chips])
        return Embeddings(vectors, np.ones(len(chips), np.float32))

    def _faces(self, image: ImageSource, chips: bool) -> Faces:
        if isinstance(image, DeferredImage):
            try:
                image = EncodedImage(image.load(), image.name)
            except OSError as error:
                raise SourceError(f"{image.name}: {error}") from error
        assert isinstance(image, EncodedImage)
        text = image.data.decode()
        if text.startswith("bad"):
            raise CorruptImageError(f"{image.name}: damaged")
        name, *properties = text.split(":")
        values = dict(each.split("=") for each in properties)
        n = {"nobody": 0, "two": 2}.get(name, 1)
        vector = vector_of(name.encode(), self.dimension) + 0.3 * vector_of(text.encode(), self.dimension)
        vectors = np.repeat((vector / np.linalg.norm(vector))[None], n, axis=0).astype(np.float32)
        size = float(values.get("size", 100))
        boxes = np.array([[10, 10, 10 + size, 10 + size]] * n, np.float32).reshape(n, 4)
        if n == 2:
            boxes[1] += 200
        row = np.ones(n, np.float32)
        quality = Quality(
            size * row, float(values.get("blur", 500)) * row, float(values.get("yaw", 0)) * row, 0 * row, 0 * row
        )
        pixels = np.zeros((n, 112, 112, 3), np.uint8)
        pixels[:, 0, :8, 0] = np.frombuffer(hashlib.sha256(name.encode()).digest()[:8], np.uint8)
        return Faces(
            image.name,
            640,
            480,
            boxes,
            np.zeros((n, 5, 2), np.float32),
            0.9 * row,
            vectors,
            row,
            np.zeros(n, np.uint8),
            quality,
            0.1,
            pixels if chips else None,
        )


def vector_of(data: bytes, dimension: int) -> np.ndarray:
    """(d,) float32 of length one that follows from bytes."""
    seed = int.from_bytes(hashlib.sha256(data).digest()[:8], "big")
    return unit_vectors(1, dimension, seed=seed)[0]
