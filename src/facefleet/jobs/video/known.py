"""A gallery as the one who names the persons of a video. Used by one thread at a time."""

from __future__ import annotations

from facefleet.gallery.gallery import Gallery
from facefleet.types import F32Array


class GalleryIdentifier:
    """Asks a gallery; see `facefleet.tracks.Identifier`.

    Args:
        gallery: Open.
        fingerprint: Of the engine whose embeddings will be asked for.
        threshold: Least score; None: the gallery's.

    Raises:
        PipelineMismatchError: The gallery's embeddings are of another pipeline.
    """

    def __init__(self, gallery: Gallery, fingerprint: str, *, threshold: float | None = None) -> None:
        gallery.require(fingerprint)
        self._gallery = gallery
        self._fingerprint = fingerprint
        self._threshold = threshold

    def identify(self, embedding: F32Array) -> tuple[str, float] | None:
        """Name and score of the person, or None for somebody unknown."""
        matches = self._gallery.identify(embedding, fingerprint=self._fingerprint, threshold=self._threshold)[0]
        return (matches[0].name, matches[0].score) if matches else None
