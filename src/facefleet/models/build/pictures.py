"""Pictures that engines are tried, calibrated and gated with: a user's photos, or faces drawn by program.

Owns the choice and how photos become inputs of one network. Reads files; keeps nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np

from facefleet.decode import Decoder
from facefleet.errors import ConfigError, InputError, SourceError
from facefleet.models.build.judge import Pairs
from facefleet.models.detectors import Detector, Selection, settle
from facefleet.models.drawn import drawn_chips, drawn_scene
from facefleet.ops import alignment_matrices, letterbox, plan_letterbox, warp_chips
from facefleet.types import Image, U8Array

_log = logging.getLogger(__name__)
_SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff"}


def photos(folder: Path) -> Iterator[Image]:
    """Every photo below a folder, by name; what cannot be decoded is logged and left out.

    Raises:
        SourceError: There is no such folder.
    """
    if not folder.is_dir():
        raise SourceError(f"{folder}: no such folder", hint="give a folder with photos of faces")
    decoder = Decoder()
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in _SUFFIXES:
            try:
                yield decoder.decode(path)
            except InputError as error:
                _log.warning("left out: %s", error.message)


def scenes(folder: Path | None, count: int, height: int, width: int) -> tuple[U8Array, str]:
    """Inputs for a detector.

    Args:
        folder: Photos; None: drawn faces.
        count: Most pictures.
        height: Input height in pixels.
        width: Input width.

    Returns:
        (n, height, width, 3) uint8 RGB, all different, and what they are.
    """
    found = []
    for image in photos(folder) if folder is not None else ():
        plan = plan_letterbox(image.width, image.height, min(height, width), 1)
        found.append(letterbox(image.pixels, replace(plan, height=height, width=width)))
        if len(found) == count:
            break
    if found:
        return np.stack(found), "photos"
    return np.stack([_varied(drawn_scene(height, width), number) for number in range(count)]), "drawn scenes"


def chips(folder: Path | None, count: int, height: int, width: int, detector: Detector | None) -> tuple[U8Array, str]:
    """Inputs for an embedder.

    Args:
        folder: Photos, or aligned faces of just that size; None: drawn faces.
        count: Most faces.
        height: Chip height in pixels.
        width: Chip width.
        detector: Finds the faces of larger photos, open; without one only chips are taken.

    Returns:
        (n, height, width, 3) uint8 RGB, all different, and what they are.
    """
    found: list[U8Array] = []
    for image in photos(folder) if folder is not None else ():
        if (image.height, image.width) == (height, width):
            found.append(image.pixels[None])
        elif detector is not None:
            found.append(_faces(image, detector, height, width))
        if sum(map(len, found)) >= count:
            break
    if sum(map(len, found)) > 1:
        return np.ascontiguousarray(np.concatenate(found)[:count]), "faces of photos"
    return drawn_chips(count, height, width), "drawn faces"


def read_pairs(file: Path, detector: Detector, height: int, width: int) -> tuple[U8Array, Pairs]:
    """Labeled pairs of photos, for accuracy.

    Args:
        file: A line a pair: two paths, relative to the file, and 1 for the same person or 0, separated by tabs.
        detector: Finds the largest face of each photo, open.
        height: Chip height in pixels.
        width: Chip width.

    Returns:
        (n, height, width, 3) uint8 RGB chips, one a photo, and the pairs of them in ten folds.

    Raises:
        ConfigError: The file cannot be read as that.
        InputError: A photo cannot be decoded.
        SourceError: A photo has no face.
    """
    decoder = Decoder()
    rows: dict[str, int] = {}
    found: list[U8Array] = []
    pairs: list[tuple[int, int, int]] = []
    try:
        lines = [line.split("\t") for line in file.read_text().splitlines() if line.strip()]
        labels = [(first, second, {"0": False, "1": True}[same]) for first, second, same in lines]
    except (OSError, UnicodeDecodeError, ValueError, KeyError) as error:
        raise ConfigError(
            f"{file}: not a list of pairs ({error})", hint="a line a pair: path, path, 1 or 0, separated by tabs"
        ) from error
    for first, second, same in labels:
        for name in (first, second):
            if name not in rows:
                faces = _faces(decoder.decode(file.parent / name), detector, height, width)
                if not len(faces):
                    raise SourceError(f"{file}: {name} has no face", hint="leave the pair out")
                rows[name] = len(found)
                found.append(faces[0])
        pairs.append((rows[first], rows[second], same))
    if not pairs:
        raise ConfigError(f"{file}: no pairs", hint="a line a pair: path, path, 1 or 0, separated by tabs")
    table = np.array(pairs, np.intp)
    return np.stack(found), Pairs(table[:, 0], table[:, 1], table[:, 2] == 1, np.arange(len(pairs)) % 10)


def _faces(image: Image, detector: Detector, height: int, width: int) -> U8Array:
    plan = detector.plan(image.width, image.height, [640])[0]
    found = detector.infer(letterbox(image.pixels, plan)[None], 0.5)[0]
    detections = settle(
        [(plan, found)], image.width, image.height, Selection(score=0.5, nms=0.4, order="area", min_face_px=24)
    )
    if detections.landmarks is None or not len(detections):
        return np.empty((0, height, width, 3), np.uint8)
    matrices, usable = alignment_matrices(detections.landmarks)
    cut = warp_chips(image.pixels, matrices, usable, image.scale)[usable]
    top, left = (cut.shape[1] - height) // 2, (cut.shape[2] - width) // 2
    return np.asarray(cut[:, top : top + height, left : left + width])


def _varied(scene: U8Array, number: int) -> U8Array:
    """The same faces in other light, and every second time mirrored."""
    random = np.random.default_rng(number)
    lit = cv2.convertScaleAbs(scene, alpha=float(random.uniform(0.6, 1.2)), beta=float(random.uniform(-20, 30)))
    return np.ascontiguousarray(lit[:, ::-1] if number % 2 else lit, np.uint8)
