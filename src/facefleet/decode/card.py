"""Who decodes JPEGs on an NVIDIA card: bytes in, pictures in the card's memory out.

Owns the interface and the choice. Which of a photo's bytes may go there at all is `Decoder.plain_jpeg`'s to say.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Protocol

_log = logging.getLogger(__name__)


class CardDecoder(Protocol):
    """What decodes JPEGs on a card, for any number of threads."""

    def takes(self, file: bytes) -> bool:
        """Whether it decodes files of this kind; a look at the header."""

    def decode(self, files: Sequence[bytes], into: Sequence[Any], stream: int) -> tuple[list[int], object]:
        """Decode files, as they are stored, not turned; may return before it is done.

        Args:
            files: JPEGs that it takes.
            into: For each a contiguous (h, w, 3) uint8 tensor of PyTorch on the card, which gets its RGB pixels.
            stream: CUDA's handle of the stream that will read them, which is the current one.

        Returns:
            The numbers of those that could not be decoded, and what has to be held until the stream has come here.
        """

    def close(self) -> None:
        """Give back what it has of the card; nothing is under way."""


def card_decoder(index: int) -> CardDecoder | None:
    """The best decoder that there is for a card, by its number; None where there is none: the log says why."""
    from facefleet.decode.nvimagecodec import NvImageCodec
    from facefleet.decode.nvjpeg import NvJpeg

    why = []
    for kind in (NvJpeg, NvImageCodec):
        try:
            made: CardDecoder = kind(index)
        except Exception as error:  # a library of it that is missing, a driver that it does not know
            why.append(f"{kind.__name__} does not start ({error})")
            continue
        _log.info("JPEGs are decoded by the card, through %s%s", kind.__name__, f"; {why[0]}" if why else "")
        return made
    _log.warning("the processors decode: %s; pip install 'facefleet[card-decode]'", ", ".join(why))
    return None
