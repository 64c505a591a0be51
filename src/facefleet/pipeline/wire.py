"""Photos and faces as descriptions and raw bytes, for the way into a worker process and back.

Owns the layout of both; arrays are never pickled.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from facefleet.errors import InternalError
from facefleet.types import EncodedImage, F32Array, FaceChips, Faces, Image, ImageSource, Quality
from facefleet.workers import Payload

_QUALITY = ("size_px", "blur", "yaw_deg", "pitch_deg", "roll_deg")


def travels(source: ImageSource | FaceChips) -> bool:
    """Whether a source can be sent as it is: a path or bytes; anything else has to be read first."""
    return isinstance(source, (str, os.PathLike, bytes, bytearray, memoryview, EncodedImage, Image, FaceChips))


def photo_payload(source: ImageSource | FaceChips, name: str | None = None) -> Payload:
    """A source that `travels`, as a payload.

    Args:
        source: The picture; a path is sent as a path, and read where it is decoded.
        name: What to call it; unset: what it would be called here.
    """
    if isinstance(source, Image):
        pixels = source.pixels
        meta = ("pixels", source.name, source.format, source.width, source.height, source.scale, pixels.shape)
        return Payload(meta, (raw(pixels),))
    if isinstance(source, FaceChips):
        about = ("chips", name or "<chips>", source.pixels.shape)
        return Payload(about, (raw(source.pixels), raw(source.aligned)))
    if isinstance(source, EncodedImage):
        return Payload(("bytes", source.name), (source.data,))
    if isinstance(source, (bytes, bytearray)):
        return Payload(("bytes", name or "<bytes>"), (source,))
    if isinstance(source, memoryview):
        return Payload(("bytes", name or "<bytes>"), (source.tobytes(),))
    if isinstance(source, (str, os.PathLike)):
        path = os.fsdecode(source)
        return Payload(("path", name or path, str(Path(path).absolute())))
    raise InternalError(f"a {type(source).__name__} does not travel")


def photo_source(payload: Payload) -> tuple[ImageSource | FaceChips, str]:
    """The source and the name in a payload; its bytes are copied."""
    kind, name, *rest = payload.meta
    if kind == "path":
        return rest[0], name
    data = bytes(payload.buffers[0])
    if kind == "bytes":
        return EncodedImage(data, name), name
    if kind == "chips":
        (shape,) = rest
        aligned = np.frombuffer(bytes(payload.buffers[1]), np.bool_)
        return FaceChips(np.frombuffer(data, np.uint8).reshape(shape), no_transforms(len(aligned)), aligned), name
    form, width, height, scale, shape = rest
    pixels = np.frombuffer(data, np.uint8).reshape(shape)
    return Image(pixels, width, height, name, form, scale), name


def no_transforms(count: int) -> F32Array:
    """(n, 2, 3) of NaN: where faces came from is not known."""
    return np.full((count, 2, 3), np.nan, np.float32)


def faces_payload(faces: Faces) -> Payload:
    """Faces as a payload; chips, if any, are its last buffer."""
    n = len(faces)
    arrays: list[Any] = [faces.boxes, faces.landmarks, faces.scores, faces.embeddings, faces.norms, faces.status]
    arrays.append(np.stack([getattr(faces.quality, name) for name in _QUALITY]))
    chips = None
    if faces.chips is not None:
        arrays.append(faces.chips)
        chips = faces.chips.shape[1:]
    dimension = faces.embeddings.shape[1]
    meta = (faces.name, faces.width, faces.height, faces.best_rejected, n, dimension, chips)
    return Payload(meta, tuple(map(raw, arrays)))


def faces_of(payload: Payload, *, chips: bool) -> Faces:
    """The faces in a payload; arrays are copied, so that they outlive its buffers.

    Args:
        payload: What `faces_payload` made.
        chips: Whether chips are taken too, where there are any.
    """
    name, width, height, best_rejected, n, dimension, chip = payload.meta
    f32 = [(n, 4), (n, 5, 2), (n,), (n, dimension), (n,)]
    boxes, landmarks, scores, embeddings, norms = (
        _array(buffer, np.float32, shape) for buffer, shape in zip(payload.buffers, f32, strict=False)
    )
    status = _array(payload.buffers[5], np.uint8, (n,))
    quality = _array(payload.buffers[6], np.float32, (len(_QUALITY), n))
    return Faces(
        name=name,
        width=width,
        height=height,
        boxes=boxes,
        landmarks=landmarks,
        scores=scores,
        embeddings=embeddings,
        norms=norms,
        status=status,
        quality=Quality(*quality),
        best_rejected=best_rejected,
        chips=_array(payload.buffers[7], np.uint8, (n, *chip)) if chips and chip is not None else None,
    )


def raw(array: NDArray[Any]) -> memoryview:
    """The bytes of an array, which is copied only if it is not contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _array(buffer: Any, dtype: type, shape: tuple[int, ...]) -> Any:  # noqa: ANN401  # any buffer, any array
    array: NDArray[Any] = np.empty(shape, dtype)
    if array.size:
        array.reshape(-1).view(np.uint8)[:] = np.frombuffer(buffer, np.uint8)
    return array
