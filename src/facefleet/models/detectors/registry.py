"""Which head reads which family."""

from __future__ import annotations

from collections.abc import Sequence

from facefleet.errors import ManifestError
from facefleet.models.detectors.base import DetectorHead
from facefleet.models.detectors.retinaface import RetinaFaceHead
from facefleet.models.detectors.scrfd import ScrfdHead
from facefleet.models.detectors.yunet import YuNetHead

HEADS: dict[str, type[DetectorHead]] = {"scrfd": ScrfdHead, "retinaface": RetinaFaceHead, "yunet": YuNetHead}
"""Heads by the `family` of a manifest."""


def create_head(family: str, outputs: Sequence[tuple[str, int]]) -> DetectorHead:
    """The head for `family`.

    Raises:
        ManifestError: There is none; the message names the choices.
        GraphError: The outputs are not those of the family.
    """
    if family not in HEADS:
        raise ManifestError(f"detector family {family!r}", hint=f"choose one of {', '.join(HEADS)}")
    return HEADS[family](outputs)
