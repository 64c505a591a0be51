"""Model packs, graphs and checkpoints."""

from __future__ import annotations

from facefleet.errors.base import FacefleetError


class PackError(FacefleetError):
    """Something is wrong with a model pack."""

    code = "pack"


class PackNotFoundError(PackError):
    """There is no pack of that name."""

    code = "pack_not_found"


class ManifestError(PackError):
    """A manifest that cannot be used."""

    code = "manifest"


class LicenseRequiredError(PackError):
    """The licence of a pack has not been accepted yet."""

    code = "license_required"


class DownloadError(PackError):
    """A file could not be fetched."""

    code = "download"
    retryable = True


class DigestError(PackError):
    """A file is not the one its manifest promises."""

    code = "digest_mismatch"


class GraphError(PackError):
    """An ONNX graph that is not understood, or that was rewritten wrongly."""

    code = "graph"


class CheckpointError(PackError):
    """A file of weights that is damaged, or not of a network that is known."""

    code = "checkpoint"
