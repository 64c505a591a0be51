"""JPEGs decoded by an NVIDIA card through nvImageCodec, which computes where the card has no units for it.

Its pixels may be some grey levels off those of libjpeg-turbo. Optional (``facefleet[card-decode]``); imported when the
first one is made.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any


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

    def takes(self, file: bytes) -> bool:
        """See `CardDecoder.takes`: every one."""
        del file
        return True

    def decode(self, files: Sequence[bytes], into: Sequence[Any], stream: int) -> tuple[list[int], object]:
        """See `CardDecoder.decode`."""
        import torch

        decoder = getattr(self._own, "decoder", None)
        if decoder is None:
            decoder = self._own.decoder = self._make()
        found = decoder.decode(list(files), params=self._params, cuda_stream=stream)
        failed, sources, targets = [], [], []
        for number, (image, target) in enumerate(zip(found, into, strict=True)):
            if image is None or tuple(image.shape) != tuple(target.shape):
                failed.append(number)
            else:
                sources.append(torch.as_tensor(image, device=target.device))
                targets.append(target)
        if targets:
            torch._foreach_copy_(targets, sources)
        return failed, found

    def close(self) -> None:
        """See `CardDecoder.close`: decoders go with their threads and with this one."""
        self._own = threading.local()
