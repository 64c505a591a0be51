"""JPEGs decoded by the units that NVIDIA's data center cards have for them, through nvJPEG.

Owns the binding of its C interface (https://docs.nvidia.com/cuda/nvjpeg/). With interpolated chroma these units give
the pixels of libjpeg-turbo, but for a grey level here and there. They take baseline files; others are not taken. Cards
without such units, or older libraries, raise. Optional (``facefleet[card-decode]``); loaded when the first one is made.
"""

from __future__ import annotations

import ctypes
import importlib.util
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_NAMES = ("cu13/lib/libnvjpeg.so.13", "nvjpeg/lib/libnvjpeg.so.12")
"""Where wheels of NVIDIA keep it, below their package."""
_HARDWARE, _INTERPOLATE, _INTERLEAVED_RGB = 3, 32, 5
_CHANNELS = 4


class NvJpegError(Exception):
    """The library refused; its number says why."""


class _Picture(ctypes.Structure):
    _fields_ = (("channel", ctypes.c_void_p * _CHANNELS), ("pitch", ctypes.c_size_t * _CHANNELS))


class _Own(threading.local):
    """What a thread has of its own: the header it looks at, and, if it decodes, a decoder."""

    header: ctypes.c_void_p | None = None
    decoder: ctypes.c_void_p | None = None
    done: Any = None
    batch = 0


class NvJpeg:
    """A `CardDecoder` on one card.

    Args:
        index: Number of the card; threads that decode make it theirs.

    Raises:
        OSError: The library is not there.
        NvJpegError: The card has no such units.
    """

    def __init__(self, index: int) -> None:
        import torch

        path = library()
        self._index, self._own = index, _Own()
        self._made: list[tuple[Any, ctypes.c_void_p]] = []
        self._long = ctypes.CDLL(path)  # lets go of the interpreter; what takes microseconds does not
        self._short = ctypes.PyDLL(path)
        with torch.cuda.device(index):
            torch.cuda.current_stream().synchronize()  # there is a context now
            self._handle = self._new("Destroy", self._long.nvjpegCreateEx, _HARDWARE, None, None, _INTERPOLATE)
        self._params = self._new("DecodeParamsDestroy", self._short.nvjpegDecodeParamsCreate, self._handle)
        _call(self._short.nvjpegDecodeParamsSetOutputFormat, self._params, _INTERLEAVED_RGB)

    def takes(self, file: bytes) -> bool:
        """See `CardDecoder.takes`."""
        own, missing = self._own, ctypes.c_int(1)
        if own.header is None:
            own.header = self._new("JpegStreamDestroy", self._short.nvjpegJpegStreamCreate, self._handle)
        if self._short.nvjpegJpegStreamParseHeader(self._handle, file, ctypes.c_size_t(len(file)), own.header):
            return False
        ask = self._short.nvjpegDecodeBatchedSupportedEx
        return not ask(self._handle, own.header, self._params, ctypes.byref(missing)) and not missing.value

    def decode(self, files: Sequence[bytes], into: Sequence[Any], stream: int) -> tuple[list[int], object]:
        """See `CardDecoder.decode`."""
        import torch

        own = self._own
        if own.decoder is None:
            torch.cuda.set_device(self._index)
            own.decoder = self._new("JpegStateDestroy", self._long.nvjpegJpegStateCreate, self._handle)
            own.done = torch.cuda.Event(blocking=True)
        wrong = [number for number, pair in enumerate(zip(files, into, strict=True)) if not self._fits(*pair)]
        rest = [number for number in range(len(files)) if number not in wrong]
        if rest and self._decoded([files[k] for k in rest], [into[k] for k in rest], stream):
            wrong += [k for k in rest if self._decoded([files[k]], [into[k]], stream)]
        return sorted(wrong), files

    def _decoded(self, files: list[bytes], into: list[Any], stream: int) -> int:
        """Start a batch; the library's answer, of which 0 is good."""
        count, own = len(files), self._own
        # Its own streams do not wait for the caller's: what is to be overwritten may still be read, and the decoder's
        # memory may still be in use for the last batch.
        own.done.record()
        own.done.synchronize()
        if count != own.batch:
            own.batch = 0
            _call(self._long.nvjpegDecodeBatchedInitialize, self._handle, own.decoder, count, 1, _INTERLEAVED_RGB)
            own.batch = count
        pictures = (_Picture * count)()
        for picture, target in zip(pictures, into, strict=True):
            picture.channel[0], picture.pitch[0] = target.data_ptr(), 3 * target.shape[1]
        data, sizes = (ctypes.c_char_p * count)(*files), (ctypes.c_size_t * count)(*map(len, files))
        start = self._long.nvjpegDecodeBatched
        return int(start(self._handle, own.decoder, data, sizes, pictures, ctypes.c_void_p(stream)))

    def _fits(self, file: bytes, target: Any) -> bool:  # noqa: ANN401  # a tensor
        """Whether a file has the size of its target: the library writes as much as the file says."""
        parts, subsampling = ctypes.c_int(), ctypes.c_int()
        widths, heights = (ctypes.c_int * _CHANNELS)(), (ctypes.c_int * _CHANNELS)()
        failed = self._short.nvjpegGetImageInfo(
            self._handle, file, ctypes.c_size_t(len(file)), ctypes.byref(parts), ctypes.byref(subsampling), widths,
            heights,
        )  # fmt: skip
        return not failed and (heights[0], widths[0], 3) == tuple(target.shape)

    def close(self) -> None:
        """See `CardDecoder.close`."""
        while self._made:
            destroy, made = self._made.pop()
            destroy(made)

    def _new(self, destroy: str, function: Any, *arguments: object) -> ctypes.c_void_p:  # noqa: ANN401  # of the library
        """What a function makes, which it writes to its last argument; `close` destroys it."""
        made = ctypes.c_void_p()
        _call(function, *arguments, ctypes.byref(made))
        self._made.append((getattr(self._long, f"nvjpeg{destroy}"), made))
        return made


def _call(function: Any, *arguments: object) -> None:  # noqa: ANN401  # of the library
    status = function(*arguments)
    if status:
        raise NvJpegError(f"{function.__name__} answered {status}")


def library() -> str:
    """Path of the library that a wheel of NVIDIA brought, or its name for the system's loader."""
    found = importlib.util.find_spec("nvidia")
    for folder in () if found is None else found.submodule_search_locations or ():
        for name in _NAMES:
            if (path := Path(folder) / name).is_file():
                return str(path)
    return "libnvjpeg.so.13"
