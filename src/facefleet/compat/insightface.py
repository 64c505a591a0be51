"""The `FaceAnalysis` of insightface on facefleet's engine: switch by one import line.

``from facefleet.compat.insightface import FaceAnalysis``

Owns names and conventions (BGR pictures in, unnormalised `embedding`); everything else is `Engine`'s. Detection and
recognition only: `landmark_*`, `age` and `gender` are None, as with insightface when those models are not loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from facefleet.config import Settings
from facefleet.errors import ClosedError, ConfigError, InvalidArrayError
from facefleet.pipeline import Engine
from facefleet.types import F32Array, FaceRecord, FaceStatus

_MODULES = ("detection", "recognition")
_CPU = "CPUExecutionProvider"


class Face(dict[str, Any]):
    """One face, by attribute or by key: bbox (4,) float32 x1 y1 x2 y2, kps (5, 2) float32, det_score, embedding (d,).

    `embedding` has its original norm; `normed_embedding` has length one.
    """

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # the values are of any type, as in insightface
        if name.startswith("__"):
            raise AttributeError(name)
        return self.get(name)

    def __setattr__(self, name: str, value: Any) -> None:  # noqa: ANN401  # as above
        self[name] = value

    @property
    def embedding_norm(self) -> float | None:
        """Norm of `embedding`, or None when the face could not be aligned."""
        embedding = self.get("embedding")
        return None if embedding is None else float(np.linalg.norm(embedding))

    @property
    def normed_embedding(self) -> F32Array | None:
        """(d,) float32 of length one, or None."""
        embedding, norm = self.get("embedding"), self.embedding_norm
        return None if embedding is None or not norm else np.asarray(embedding / norm, np.float32)


class FaceAnalysis:
    """Detect and embed faces with the calls of `insightface.app.FaceAnalysis`.

    Args:
        name: A pack of facefleet (``buffalo_l``, ``opencv``, ...) or the path of a manifest.
        root: Folder for models; empty: facefleet's own store.
        allowed_modules: ``detection`` is required; without ``recognition`` faces come without embeddings.
        providers: Only ``CPUExecutionProvider`` is accepted; default: the fastest way on the CPU.
        settings: Options of facefleet beyond insightface's.

    Raises:
        ConfigError: A module or provider that facefleet does not have.
    """

    def __init__(
        self,
        name: str = "buffalo_l",
        root: str = "",
        allowed_modules: Sequence[str] | None = None,
        *,
        providers: Iterable[str] | None = None,
        settings: Settings | None = None,
    ) -> None:
        unknown = sorted(set(allowed_modules or _MODULES) - set(_MODULES))
        if unknown or "detection" not in (allowed_modules or _MODULES):
            raise ConfigError(
                f"allowed_modules={list(allowed_modules or ())}",
                hint="facefleet has detection (needed) and recognition",
            )
        if providers is not None and _CPU not in list(providers):
            raise ConfigError(f"providers={list(providers)}", hint=f"this version runs on the CPU: {_CPU}")
        self._recognize = "recognition" in (allowed_modules or _MODULES)
        base = settings or Settings()
        self._settings = replace(base, pack=name, home=root or base.home)
        self._engine: Engine | None = None

    def prepare(
        self,
        ctx_id: int = -1,
        det_thresh: float = 0.5,
        det_size: tuple[int, int] | Sequence[tuple[int, int]] | None = (640, 640),
    ) -> None:
        """Load the models.

        Args:
            ctx_id: Negative for the CPU; 0 and up name a GPU, of which this version has none, so the CPU is taken as
                insightface does without a GPU.
            det_thresh: Least score of a face.
            det_size: Width and height of the detector input; several are run in one pass. Equal sides only. None:
                128 and 640, as insightface.

        Raises:
            ConfigError: Sides that differ.
            PackError: The pack is not installed.
        """
        del ctx_id
        sizes: Sequence[Any] = [(128, 128), (640, 640)] if det_size is None else det_size
        if isinstance(sizes[0], (int, np.integer)):
            sizes = [sizes]
        if any(width != height for width, height in sizes):
            raise ConfigError(f"det_size={det_size}", hint="use equal sides, e.g. (640, 640)")
        detect = replace(
            self._settings.detect,
            score=det_thresh,
            sizes=tuple(int(width) for width, _ in sizes),
            order="score",
            scale="insightface",
        )
        self.close()
        self._engine = Engine(replace(self._settings, detect=detect))
        self._engine.open()

    def close(self) -> None:
        """Give the models back."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def get(self, img: NDArray[np.uint8], max_num: int = 0) -> list[Face]:
        """Find the faces of one picture.

        Args:
            img: (h, w, 3) uint8, BGR, as read by OpenCV.
            max_num: Most faces returned, 0 for all; the largest and most central ones, as in insightface.

        Returns:
            Faces by falling score.

        Raises:
            ClosedError: `prepare` was not called.
            InvalidArrayError: Not such an array.
        """
        if self._engine is None:
            raise ClosedError("FaceAnalysis is not prepared", hint="call prepare() first")
        if not isinstance(img, np.ndarray) or img.ndim != 3 or img.shape[2] != 3 or img.dtype != np.uint8:
            got = f"{img.dtype} {img.shape}" if isinstance(img, np.ndarray) else type(img).__name__
            raise InvalidArrayError(f"get() takes an (h, w, 3) uint8 BGR array, got {got}")
        records = list(self._engine.analyze(np.ascontiguousarray(img[:, :, ::-1])))
        if max_num and len(records) > max_num:
            middle = np.array([img.shape[1], img.shape[0]], np.float32) / 2
            best = sorted(records, key=lambda record: -_prominence(record, middle))[:max_num]
            records = sorted(best, key=lambda record: record.index)
        return [self._face(record) for record in records]

    def _face(self, record: FaceRecord) -> Face:
        face = Face(bbox=record.box.copy(), kps=record.landmarks.copy(), det_score=np.float32(record.score))
        if self._recognize and record.status is FaceStatus.OK:
            face["embedding"] = record.embedding * np.float32(record.norm)
        return face


def _prominence(record: FaceRecord, middle: NDArray[np.floating]) -> float:
    """Area less twice the squared distance from the middle, insightface's measure of which faces matter."""
    x1, y1, x2, y2 = record.box
    offset = np.array([(x1 + x2) / 2, (y1 + y2) / 2]) - middle
    return float((x2 - x1) * (y2 - y1) - 2 * (offset**2).sum())
