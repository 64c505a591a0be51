"""The fingerprint of a pipeline: equal exactly when embeddings and detections may be compared and mixed."""

from __future__ import annotations

import dataclasses
import hashlib
import json

from facefleet.config import Settings
from facefleet.models.load import Loaded
from facefleet.ops import TEMPLATE_112

_VERSION = 1  # raised when the meaning of a result changes without a change of files or settings


def fingerprint(models: Loaded, settings: Settings) -> str:
    """Digest of models, alignment and every option that changes which faces are found or what a vector means.

    Backend, precision, threads and batch sizes are left out: their results agree within the accuracy guard.

    Returns:
        sha256 in hexadecimal.
    """
    detector = dataclasses.asdict(models.manifest.detector)
    embedder = dataclasses.asdict(models.manifest.embedder)
    for spec in (detector, embedder):
        del spec["source"]
    parts = {
        "version": _VERSION,
        "detector": [models.detector_sha256, detector],
        "embedder": [models.embedder_sha256, embedder],
        "template": TEMPLATE_112.tolist(),
        "decode": [settings.decode.truncated, settings.decode.scaled],
        "detect": dataclasses.asdict(models.select) | {"sizes": list(models.sizes), "scale": settings.detect.scale},
        "flip": settings.embed.flip,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()
