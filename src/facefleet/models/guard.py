"""Whether a faster precision is accurate enough, and whether opened models answer rightly at all.

Owns the two checks and the store of verdicts. Both run on drawn faces: they find a runtime that is broken, or a
precision that a network does not stand. A loss of a tenth of a point takes labeled photos to see.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np

from facefleet.backends.facts import device_facts, runtime_version
from facefleet.errors import SelfTestError
from facefleet.models.detectors import Detector, Selection, settle
from facefleet.models.drawn import drawn_chips, drawn_scene
from facefleet.models.embedders import Embedder
from facefleet.ops import plan_letterbox
from facefleet.ops.nms import overlaps
from facefleet.types import Detections

_log = logging.getLogger(__name__)
_MIN_COSINE = 0.99  # bf16 keeps 8 bits of 24; SFace and MobileFaceNet measured above 0.998
_MAX_SCORE_SHIFT = 0.12
_MIN_IOU = 0.9
_PROBE_SCORE = 0.3
_DISTINCT = 0.999


def remembered(home: Path, key: list[str], measure: Callable[[], dict[str, float | bool]]) -> bool:
    """A verdict that is measured once for a model, a precision and a kind of machine.

    Args:
        home: Where verdicts are kept.
        key: What it depends on besides the machine: model digest, backend, precision.
        measure: Gives the verdict under ``holds``, with the figures it rests on.
    """
    name = hashlib.sha256(json.dumps([*key, runtime_version(key[1]), device_facts("cpu")]).encode()).hexdigest()[:32]
    file = home / "guard" / f"{name}.json"
    try:
        return bool(json.loads(file.read_text())["holds"])
    except (OSError, ValueError, KeyError):
        pass
    verdict = measure()
    _log.info("accuracy guard, %s: %s", " ".join(key[1:]), verdict)
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps({"key": key, **verdict}))
    temporary.replace(file)
    return bool(verdict["holds"])


def compare_detectors(reference: Callable[[], Detector], other: Callable[[], Detector]) -> dict[str, float | bool]:
    """Whether a detector finds the same drawn faces as its reference, in the same places.

    Args:
        reference: Makes the detector in fp32.
        other: Makes it in the precision in question.

    Returns:
        ``holds``: as many faces, each with IoU >= 0.9 and its score within 0.12; and the figures.
    """
    results: list[Detections] = []
    for make in (reference, other):
        with make() as detector:
            height, width = detector.warm_size
            found = detector.infer(drawn_scene(height, width)[None], _PROBE_SCORE)[0]
            plan = plan_letterbox(width, height, "native", 1)
            results.append(settle([(plan, found)], width, height, Selection(_PROBE_SCORE, 0.4, order="area")))
    want, got = results
    if len(want) != len(got):
        return {"holds": False, "faces": len(want), "faces_in_question": len(got)}
    if not len(want):
        return {"holds": True, "faces": 0}
    overlap = overlaps(want.boxes, got.boxes)
    shift = np.abs(want.scores - got.scores[overlap.argmax(axis=1)])
    iou_min, shift_max = float(overlap.max(axis=1).min()), float(shift.max())
    return {
        "holds": iou_min >= _MIN_IOU and shift_max <= _MAX_SCORE_SHIFT,
        "faces": len(want),
        "iou_min": iou_min,
        "score_shift_max": shift_max,
    }


def compare_embedders(reference: Callable[[], Embedder], other: Callable[[], Embedder]) -> dict[str, float | bool]:
    """Whether an embedder puts drawn faces where its reference does.

    Returns:
        ``holds``: every cosine >= 0.99; and the least one.
    """
    chips = drawn_chips(8)
    vectors = []
    for make in (reference, other):
        with make() as embedder:
            vectors.append(embedder.embed(chips).vectors)
    cosine = float(np.einsum("nd,nd->n", *vectors).min())
    return {"holds": cosine >= _MIN_COSINE, "cosine_min": cosine}


def check_detector(detector: Detector, threshold: float) -> None:
    """Check that an opened detector finds no face where there is none.

    Raises:
        SelfTestError: It does; it must not be used.
    """
    blank = np.full((1, *detector.warm_size, 3), 127, np.uint8)
    if len(detector.infer(blank, threshold)[0].scores):
        raise SelfTestError(
            "the detector finds a face in a blank picture", hint="try another backend, or precision=fp32"
        )


def check_embedder(embedder: Embedder) -> None:
    """Check that an opened embedder tells faces apart.

    Raises:
        SelfTestError: It does not; it must not be used.
    """
    first, other = drawn_chips(2)
    similar = cv2.GaussianBlur(first, (3, 3), 0)
    vectors = embedder.embed(np.stack([first, similar, other])).vectors
    same, different = float(vectors[0] @ vectors[1]), float(vectors[0] @ vectors[2])
    if not different < min(same, _DISTINCT):
        raise SelfTestError(
            f"the embedder does not tell faces apart: same {same:.4f}, different {different:.4f}",
            hint="try another backend, or precision=fp32; check color, mean and std in the manifest",
        )
