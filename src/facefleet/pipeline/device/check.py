"""Whether the device's way answers as the host's does, tried on drawn faces before the first photo.

A library, a driver or a card that has never been tried may compile a kernel to something else: then pictures stay on
the host, and the log says so.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import simplejpeg

from facefleet.errors import SelfTestError
from facefleet.models.detectors import Selection, settle
from facefleet.models.drawn import drawn_scene
from facefleet.models.load import Loaded
from facefleet.ops import alignment_matrices, box_matrices, letterbox, warp_chips
from facefleet.pipeline.device.answers import DeviceBatch, Found
from facefleet.pipeline.device.lanes import Mark
from facefleet.pipeline.device.resident import Pixels, Resident
from facefleet.pipeline.photo import Photo
from facefleet.types import F32Array, Faces, RGBArray

_log = logging.getLogger(__name__)
_FRAME = (640, 480)
_SURE = 0.05  # a face so close to the threshold may be on either side of it in another batch
_BOX_PX = 2.0
_COSINE = 0.99
_GREY_LEVELS = 4  # nvJPEG's arithmetic measured 1 off


def check_resident(resident: Resident, models: Loaded) -> None:
    """Compare both ways on a drawn scene.

    Raises:
        SelfTestError: They differ; the device's way must not be used.
        FacefleetError: It does not run at all.
    """
    scene = drawn_scene(_FRAME[1], _FRAME[0])
    picture = Pixels(resident.detector.plan(*_FRAME), _FRAME, host=scene)
    # All faces, whatever was asked for: two of nearly one score may come in either order.
    asked, everything = resident.select, replace(models.select, max_faces=0, order="score")
    resident.select = everything
    try:
        _compare(_by_device(resident, picture), *_by_host(models, scene, everything), everything.score)
    finally:
        resident.select = asked


def check_card(resident: Resident) -> None:
    """Compare the card's decoding with the processors'; a card that decodes otherwise, or fails, is not used for it."""
    if resident.card is None:
        return
    scene = drawn_scene(_FRAME[1], _FRAME[0])
    data = simplejpeg.encode_jpeg(scene, quality=95, colorsubsampling="420")
    expected = np.asarray(simplejpeg.decode_jpeg(data, "RGB")).astype(int)
    try:
        slot, plans = resident.slots[0], resident.detector.plan(*_FRAME)
        resident.fill(slot, [Pixels(plans, _FRAME, file=data)])[0].wait()
        got = slot.pool[: expected.size].cpu().numpy().reshape(expected.shape)
        off = int(np.abs(expected - got).max())
    except Exception as error:  # of whatever library
        _log.warning("the processors decode: the card failed on a drawn picture: %s", error)
        resident.without_card()
        return
    if off > _GREY_LEVELS:
        _log.warning("the processors decode: the card's pixels are up to %d grey levels off", off)
        resident.without_card()


def _by_device(resident: Resident, picture: Pixels) -> Faces:
    slot, photo = resident.slots[0], Photo(b"", keep_chips=False, embed=resident.embedder is not None)
    photo.name = "drawn faces"
    filled, _ = resident.fill(slot, [picture])
    resident.find(slot, 1, filled).wait()
    batch = DeviceBatch(None, [Found(photo, picture.frame)], Mark(), [], 0.0, [])
    batch.take(*resident.read(slot, 1), resident.dimension)
    for start in range(0, len(batch.rows), resident.chips):
        stop = min(len(batch.rows), start + resident.chips)
        resident.cut(slot, start, stop, 0, embed=photo.embed)
        resident.finish(stop - start, resident.results[0], embed=photo.embed, chips=False)[0].wait()
        batch.results[start:stop] = resident.results[0].numpy()[: stop - start]
    for _, answer in batch.answers():
        if isinstance(answer, Faces):
            return answer
        raise answer
    raise SelfTestError("the device's way finds more candidates, or other numbers, in drawn faces than it can read")


def _by_host(models: Loaded, scene: RGBArray, select: Selection) -> tuple[F32Array, F32Array, F32Array | None]:
    """Boxes, scores and embeddings."""
    assert models.detector is not None
    width, height = _FRAME
    plans = models.detector.plan(width, height, models.sizes)
    parts = [(plan, models.detector.infer(letterbox(scene, plan)[None], select.score)[0]) for plan in plans]
    found = settle(parts, width, height, select)
    matrices, usable = box_matrices(found.boxes) if found.landmarks is None else alignment_matrices(found.landmarks)
    vectors = None
    if models.embedder is not None and usable.any():
        vectors = np.full((len(found), models.embedder.dimension), np.nan, np.float32)
        vectors[usable] = models.embedder.embed(warp_chips(scene, matrices, usable)[usable]).vectors
    return found.boxes, found.scores, vectors


def _compare(got: Faces, boxes: F32Array, scores: F32Array, vectors: F32Array | None, threshold: float) -> None:
    sure = np.flatnonzero(scores > threshold + _SURE)
    for row in sure:
        away = np.abs(got.boxes - boxes[row]).max(axis=1)
        nearest = int(away.argmin()) if len(away) else -1
        if nearest < 0 or away[nearest] > _BOX_PX:
            raise SelfTestError(f"the device's way misses a drawn face at {boxes[row].round().tolist()}")
        if vectors is not None and np.isfinite(vectors[row]).all():
            cosine = float(got.embeddings[nearest] @ vectors[row])
            if not cosine >= _COSINE:
                raise SelfTestError(f"the device's way embeds a drawn face otherwise: cosine {cosine:.4f}")
    extra = int((got.scores > threshold + _SURE).sum()) - len(boxes)
    if extra > 0:
        raise SelfTestError(f"the device's way finds {extra} faces more than there are")
