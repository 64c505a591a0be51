"""JPEGs decoded by an NVIDIA card, through nvImageCodec: bytes in, pictures in the card's memory out.

Optional (``facefleet[card-decode]``); imported when the first one is made.
"""

from __future__ import annotations

import importlib.util
import logging
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

_log = logging.getLogger(__name__)


class CardDecoder(Protocol):
    """What decodes JPEGs on a card, for any number of threads."""

    def decode(self, files: Sequence[bytes], stream: int) -> list[Any]:
        """Decode files.

        Args:
            files: JPEGs that `Decoder.plain_jpeg` let pass.
            stream: CUDA's handle of the stream that will read the pictures.

        Returns:
            For each an (h, w, 3) uint8 RGB array on the card, as stored, not turned, which PyTorch takes; None where it
            could not be decoded.
        """


def available() -> bool:
    """Whether nvImageCodec is installed."""
    try:
        return importlib.util.find_spec("nvidia.nvimgcodec") is not None
    except ModuleNotFoundError:
        return False


class NvImageCodec:
    """A `CardDecoder` on one card; each thread has a decoder of its own, so that their calls overlap.

    Args:
        index: Number of the card.
    """

    def __init__(self, index: int) -> None:
        from nvidia import nvimgcodec

        self._make = partial(nvimgcodec.Decoder, device_id=index)
        self._own = threading.local()
        self._own.decoder = self._make()
        self._params = nvimgcodec.DecodeParams(apply_exif_orientation=False)  # 8-bit RGB; we turn pictures ourselves

    def decode(self, files: Sequence[bytes], stream: int) -> list[Any]:
        """See `CardDecoder.decode`."""
        decoder = getattr(self._own, "decoder", None)
        if decoder is None:
            decoder = self._own.decoder = self._make()
        found = decoder.decode(list(files), params=self._params, cuda_stream=stream)
        return [image if image is not None and tuple(image.shape[2:]) == (3,) else None for image in found]


def card_decoder(index: int) -> CardDecoder | None:
    """A decoder on a card; None where nvImageCodec is not installed or does not start there: the log says why."""
    if not available():
        _log.info("the processors decode: nvImageCodec is not installed; pip install 'facefleet[card-decode]'")
        return None
    try:
        return NvImageCodec(index)
    except Exception as error:  # a library of it that is missing, a driver that it does not know
        _log.warning("the processors decode: nvImageCodec does not start: %s", error)
        return None
