"""Who decodes on a card, with the libraries of NVIDIA played by functions of the same names."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import types
from typing import Any

import numpy as np
import pytest

from facefleet.decode import nvjpeg
from facefleet.decode.card import card_decoder

torch = pytest.importorskip("torch", reason='needs the extra: pip install "facefleet[torch]"')

SIZES = {b"4x5": (4, 5), b"6x7": (6, 7), b"bad": (4, 5)}


class Library:
    """nvJPEG, as far as it is called: files are their sizes, and pixels become the number of the call."""

    def __init__(self, *, units: bool = True) -> None:
        self._units, self.batches = units, []  # type: ignore[var-annotated]
        self.alive = 0
        for name in ("", "JpegStream", "JpegState", "DecodeParams"):
            setattr(self, f"nvjpeg{name}Destroy", self._gone)
        for name in ("DecodeParamsSetOutputFormat", "JpegStreamCreate", "JpegStateCreate", "DecodeParamsCreate"):
            setattr(self, f"nvjpeg{name}", self._good(name))

    def _gone(self, _: object) -> int:
        self.alive -= 1
        return 0

    def _good(self, name: str) -> Any:
        def function(*_: object) -> int:
            self.alive += "Create" in name
            return 0

        function.__name__ = name
        return function

    def nvjpegCreateEx(self, *_: object) -> int:  # noqa: N802
        self.alive += self._units
        return 0 if self._units else 7

    def nvjpegJpegStreamParseHeader(self, _: object, file: bytes, *__: object) -> int:  # noqa: N802
        self._last = file
        return 0 if file in SIZES or file == b"progressive" else 3

    def nvjpegDecodeBatchedSupportedEx(self, *arguments: Any) -> int:  # noqa: N802
        arguments[-1]._obj.value = int(self._last == b"progressive")
        return 0

    def nvjpegGetImageInfo(self, _: object, file: bytes, *arguments: Any) -> int:  # noqa: N802
        arguments[-1][0], arguments[-2][0] = SIZES[file]
        return 0

    def nvjpegDecodeBatchedInitialize(self, *arguments: Any) -> int:  # noqa: N802
        self.batches.append(arguments[2])
        return 0

    def nvjpegDecodeBatched(self, *arguments: Any) -> int:  # noqa: N802
        files, sizes, pictures = arguments[2:5]
        assert [len(each) for each in files] == list(sizes)
        if b"bad" in list(files):
            return 6
        for file, picture in zip(files, pictures, strict=True):
            height, width = SIZES[file]
            assert picture.pitch[0] == 3 * width
            ctypes.memset(picture.channel[0], len(self.batches), 3 * width * height)
        return 0


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What of CUDA is asked for, where there is none."""
    done: list[str] = []
    event = types.SimpleNamespace(synchronize=lambda: done.append("wait"), record=lambda: done.append("record"))
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: event)
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: event)
    return done


def played(monkeypatch: pytest.MonkeyPatch, library: Library) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    monkeypatch.setattr(ctypes, "PyDLL", lambda _: library)


def rooms(*files: bytes) -> list[Any]:
    return [torch.zeros(*SIZES[file], 3, dtype=torch.uint8) for file in files]


def test_a_batch_goes_to_the_units_of_the_card(monkeypatch: pytest.MonkeyPatch, cuda: list[str]) -> None:
    library = Library()
    played(monkeypatch, library)
    decoder = card_decoder(0)
    assert isinstance(decoder, nvjpeg.NvJpeg)
    assert [decoder.takes(file) for file in (b"4x5", b"progressive", b"text")] == [True, False, False]
    into = rooms(b"4x5", b"6x7")
    assert decoder.decode([b"4x5", b"6x7"], into, 1)[0] == []
    assert decoder.decode([b"6x7", b"4x5"], into[::-1], 1)[0] == []
    assert library.batches == [2]  # made ready once
    assert cuda[-4:] == ["record", "wait"] * 2  # each after all that came before it on the caller's stream
    assert all(bool((each == 1).all()) for each in into)
    assert library.alive == 4
    decoder.close()
    assert library.alive == 0


@pytest.mark.usefixtures("cuda")
def test_one_bad_file_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    played(monkeypatch, library)
    decoder = nvjpeg.NvJpeg(0)
    files = [b"4x5", b"bad", b"6x7", b"4x5"]
    into = rooms(*files)
    into[3] = rooms(b"6x7")[0]  # a file of another size than was said: it would be written beyond its room
    failed, held = decoder.decode(files, into, 1)
    assert failed == [1, 3]
    assert held == files
    assert library.batches == [3, 1]
    assert [bool((each == 2).all()) for each in into] == [True, False, True, False]


@pytest.mark.usefixtures("cuda")
def test_cards_without_units_compute(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    played(monkeypatch, Library(units=False))
    asked: dict[str, Any] = {}

    class Decoder:
        def __init__(self, device_id: int) -> None:
            asked["device"] = device_id

        def decode(self, files: list[bytes], *, params: Any, cuda_stream: int) -> list[Any]:
            asked.update(files=files, params=params, stream=cuda_stream)
            return [np.full((4, 5, 3), 9, np.uint8), None, np.zeros((4, 5, 1), np.uint8)]

    module = types.ModuleType("nvidia.nvimgcodec")
    module.Decoder = Decoder  # type: ignore[attr-defined]
    module.DecodeParams = dict  # type: ignore[attr-defined]
    package = types.ModuleType("nvidia")
    package.nvimgcodec = module  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "nvidia", package)
    monkeypatch.setitem(sys.modules, "nvidia.nvimgcodec", module)
    monkeypatch.setattr(nvjpeg, "library", lambda: "libnvjpeg.so")
    with caplog.at_level("INFO"):
        decoder = card_decoder(3)
    assert "through NvImageCodec; NvJpeg does not start" in caplog.text
    assert decoder is not None
    assert decoder.takes(b"progressive")
    into = rooms(b"4x5", b"4x5", b"4x5")
    assert decoder.decode([b"a", b"b", b"c"], into, 77)[0] == [1, 2]
    assert bool((into[0] == 9).all())
    assert asked == {
        "device": 3, "files": [b"a", b"b", b"c"], "params": {"apply_exif_orientation": False}, "stream": 77,
    }  # fmt: skip


def test_decoders_that_do_not_start_are_done_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "nvidia", types.ModuleType("nvidia"))
    monkeypatch.setattr(nvjpeg, "library", lambda: "libnothing.so")
    assert card_decoder(0) is None
    assert "pip install 'facefleet[card-decode]'" in caplog.text
