"""Pictures as results: aligned chips and annotated copies, one file each under a name that is safe anywhere."""

from __future__ import annotations

import contextlib
import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import cv2
import numpy as np

from facefleet.decode import Decoder
from facefleet.errors import OutputError
from facefleet.sinks.draw import draw_faces
from facefleet.types import Faces, ImageSource, RGBArray

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_STEM_LENGTH = 60
_JPEG_QUALITY = 90


class PictureSink(ABC):
    """Writes pictures for each result into a folder.

    Args:
        folder: Made if need be.

    Raises:
        OutputError: It cannot be made.
    """

    needs_chips = False
    """Whether results have to carry their chips."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with _disk(folder):
            folder.mkdir(parents=True, exist_ok=True)

    @abstractmethod
    def write(self, key: str, source: ImageSource, faces: Faces) -> None:
        """Write what belongs to one picture; writing it again replaces it.

        Raises:
            InputError: The picture cannot be read again.
            OutputError: It cannot be written.
        """

    @abstractmethod
    def remove(self, key: str, faces: int) -> None:
        """Remove what was written for a picture that had so many faces.

        Raises:
            OutputError: It cannot be removed.
        """

    def _unlink(self, name: str) -> None:
        with _disk(self.folder / name):
            (self.folder / name).unlink(missing_ok=True)

    def _save(self, name: str, pixels: RGBArray, *options: int) -> None:
        good, data = cv2.imencode(Path(name).suffix, np.ascontiguousarray(pixels[:, :, ::-1]), list(options))
        assert good
        target = self.folder / name
        part = target.with_name(f".{name}.part")
        with _disk(target):
            part.write_bytes(data.tobytes())
            part.replace(target)


class ChipsSink(PictureSink):
    """The aligned 112 x 112 faces as PNG."""

    needs_chips = True

    def write(self, key: str, source: ImageSource, faces: Faces) -> None:
        """See `PictureSink.write`; faces that could not be aligned have no chip."""
        del source
        assert faces.chips is not None
        for face in faces:
            if face.status == 0:
                self._save(f"{safe_name(key)}-{face.index}.png", faces.chips[face.index])

    def remove(self, key: str, faces: int) -> None:
        """See `PictureSink.remove`."""
        for index in range(faces):
            self._unlink(f"{safe_name(key)}-{index}.png")


class DrawSink(PictureSink):
    """Copies with the faces drawn in, as JPEG, for pictures that have any."""

    def __init__(self, folder: Path, decoder: Decoder) -> None:
        super().__init__(folder)
        self._decoder = decoder

    def write(self, key: str, source: ImageSource, faces: Faces) -> None:
        """See `PictureSink.write`; the picture is decoded again, in full."""
        if not len(faces):
            return
        pixels = draw_faces(self._decoder.decode(source).pixels, faces)
        self._save(f"{safe_name(key)}.jpg", pixels, cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY)

    def remove(self, key: str, faces: int) -> None:
        """See `PictureSink.remove`."""
        if faces:
            self._unlink(f"{safe_name(key)}.jpg")


@contextlib.contextmanager
def _disk(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror or error}", hint="check permissions and free space") from error


def safe_name(key: str) -> str:
    """A file name for any key: readable, never a path, and different for different keys."""
    stem = _UNSAFE.sub("_", PurePosixPath(key.replace("\\", "/")).name).strip("._")[:_STEM_LENGTH]
    return f"{stem or 'picture'}-{hashlib.sha256(key.encode()).hexdigest()[:20]}"
