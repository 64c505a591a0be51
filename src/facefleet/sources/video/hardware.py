"""Which decoder reads a video: FFmpeg's on the CPU, or NVDEC on a GPU, through PyAV's hardware contexts.

Owns the name of a decoder and opening a container with it. NVDEC's frames are copied to main memory (NV12 or P010) and
then go the same way as others, so that timestamps, sampling, rotation and damage are treated alike. It is never left
silently: where NVDEC cannot be used, or does not know a codec, that is an error.
"""

from __future__ import annotations

import re
from typing import Any

from facefleet.decode.ffmpeg import AvObject, explain, load
from facefleet.errors import BackendUnavailableError, ConfigError

_NAME = re.compile(r"cpu|cuda(?::(\d+))?")
_PRIMARY_CONTEXT = 1  # AV_CUDA_USE_PRIMARY_CONTEXT: else every stream has a context of its own, and they take turns
_HINT = "it needs an NVIDIA driver and a codec that this GPU decodes; or use the decoder cpu"


def check_decoder(name: str) -> None:
    """Refuse what names no decoder.

    Raises:
        ConfigError: It is not ``cpu``, ``cuda`` or ``cuda:N``.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"decoder {name!r}", hint="use cpu, cuda or cuda:N")


def open_container(
    address: str,
    decoder: str,
    *,
    name: str,
    live: bool = False,
    **options: Any,  # noqa: ANN401
) -> AvObject:
    """Open a video.

    Args:
        address: Path or address.
        decoder: ``cpu``, ``cuda`` or ``cuda:N``.
        name: What errors call it: an address may have a password in it.
        live: Whether it is a stream.
        options: For ``av.open``.

    Raises:
        InputError: It cannot be opened.
        BackendUnavailableError: NVDEC cannot be used here, or not for this video.
    """
    av = load()
    errors = (av.error.FFmpegError, OSError, ValueError)
    if decoder == "cpu":
        try:
            return av.open(address, **options)
        except errors as error:
            raise explain(error, name, live=live) from error
    from av.codec.hwaccel import HWAccel

    device = int(decoder.partition(":")[2] or 0)
    accelerator = HWAccel("cuda", device=device, allow_software_fallback=False, flags=_PRIMARY_CONTEXT)
    try:
        return av.open(address, hwaccel=accelerator, **options)
    except (*errors, RuntimeError, NotImplementedError) as error:
        open_container(address, "cpu", name=name, live=live, **options).close()  # is it the video that is at fault?
        raise BackendUnavailableError(f"{name}: NVDEC cannot decode it here: {error}", hint=_HINT) from error
