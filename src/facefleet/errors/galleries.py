"""Galleries of known people."""

from __future__ import annotations

from facefleet.errors.base import FacefleetError


class GalleryError(FacefleetError):
    """A gallery cannot do what is asked."""

    code = "gallery"


class GalleryNotFoundError(GalleryError):
    """There is no gallery at that path."""

    code = "gallery_not_found"


class GalleryExistsError(GalleryError):
    """There is a gallery at that path already."""

    code = "gallery_exists"


class GalleryBusyError(GalleryError):
    """Another process has been writing for longer than one waits."""

    code = "gallery_busy"
    retryable = True


class GalleryCorruptError(GalleryError):
    """What is stored is not what was written."""

    code = "gallery_corrupt"


class GalleryWriteError(GalleryError):
    """The disk does not take what is written."""

    code = "gallery_write"


class PipelineMismatchError(GalleryError):
    """Embeddings made by another model, aligner or detector, or compared by another metric."""

    code = "pipeline_mismatch"


class PersonNotFoundError(GalleryError):
    """No person or sample of that id or name, or several people of that name."""

    code = "person_not_found"


class InvalidEmbeddingError(GalleryError):
    """A vector that is not finite, zero, or of another dimension."""

    code = "invalid_embedding"


class ExchangeError(GalleryError):
    """A file that cannot be imported."""

    code = "exchange"


class EraseIncompleteError(GalleryError):
    """A person was erased, but traces are still on the disk: something is still reading the old state."""

    code = "erase_incomplete"
    retryable = True


class SearchUnavailableError(GalleryError):
    """The server that holds the index does not answer."""

    code = "search_unavailable"
    retryable = True
