"""Fault 4, the rarer kinds: exact values of bit depths, inks, palettes and masks."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from PIL import Image as PILImage

from facefleet.decode import Decoder
from facefleet.errors import CorruptImageError
from tests.conftest import encode, smooth_picture


def tiff(
    values: np.ndarray, *, bits: int, photometric: int = 1, sample_format: int = 1, order: str = "<", raw: bytes = b""
) -> bytes:
    """A grey TIFF of one strip, written by hand."""
    height, width = values.shape
    strip = raw or values.astype(values.dtype.newbyteorder(order)).tobytes()
    entries = {256: width, 257: height, 258: bits, 259: 1, 262: photometric, 273: 8, 277: 1, 278: height}
    entries |= {279: len(strip), 339: sample_format}
    directory = struct.pack(order + "H", len(entries))
    for tag, value in sorted(entries.items()):
        directory += struct.pack(order + "HHII", tag, 4, 1, value)
    mark = b"II*\0" if order == "<" else b"MM\0*"
    return mark + struct.pack(order + "I", 8 + len(strip)) + strip + directory + b"\0\0\0\0"


def gray_of(data: bytes) -> list[int]:
    pixels = Decoder().decode(data).pixels
    assert (pixels[..., :1] == pixels).all()
    return pixels[..., 0].ravel().tolist()


@pytest.mark.parametrize("order", ["<", ">"])
def test_sixteen_bit_tiff(order: str) -> None:
    values = np.array([[0, 257, 32768, 65535]], np.uint16)
    assert gray_of(tiff(values, bits=16, order=order)) == [0, 1, 128, 255]


def test_white_is_zero() -> None:
    values = np.array([[0, 257, 32768, 65535]], np.uint16)
    assert gray_of(tiff(values, bits=16, photometric=0)) == [255, 254, 127, 0]


def test_signed_sixteen_bits() -> None:
    """Black is zero, white the largest value of the type."""
    values = np.array([[-5, 0, 16384, 32767]], np.int16)
    assert gray_of(tiff(values, bits=16, sample_format=2)) == [0, 0, 128, 255]


def test_twelve_bits() -> None:
    """Two samples in three bytes; 4095 is white."""
    packed = bytes([0x00, 0x08, 0x00, 0xFF, 0xF0, 0x00])  # 0, 0x800, 0xFFF, 0
    assert gray_of(tiff(np.zeros((1, 4), np.uint16), bits=12, raw=packed)) == [0, 128, 255, 0]


@pytest.mark.parametrize(
    ("values", "expected"),
    [([0, 32768, 65535], [0, 128, 255]), ([0, 1000, 2000], [0, 4, 8]), ([0, 1 << 30, (1 << 31) - 1], [0, 128, 255])],
)
@pytest.mark.parametrize("dtype", [np.uint32, np.int32])
def test_thirty_two_bits(values: list[int], expected: list[int], dtype: type) -> None:
    """No common white: 65,535, or the largest value where it is more."""
    array = np.array([values], dtype)
    assert gray_of(tiff(array, bits=32, sample_format=2 if dtype is np.int32 else 1)) == expected


@pytest.mark.parametrize(("values", "expected"), [([0, 0.5, 1], [0, 128, 255]), ([-1, 50, 100], [0, 128, 255])])
def test_float_tiff(values: list[float], expected: list[int]) -> None:
    assert gray_of(tiff(np.array([values], np.float32), bits=32, sample_format=3)) == expected


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite(bad: float) -> None:
    with pytest.raises(CorruptImageError, match="not finite"):
        Decoder().decode(tiff(np.array([[0, bad]], np.float32), bits=32, sample_format=3))


def test_transparent_gray_of_sixteen_bits() -> None:
    stream = io.BytesIO()
    PILImage.fromarray(np.array([[0, 300, 65535]], np.uint16)).save(stream, "PNG", transparency=300)
    assert gray_of(stream.getvalue()) == [0, 255, 255]


def test_gray_with_alpha() -> None:
    image = PILImage.fromarray(np.array([[[0, 255], [0, 0], [100, 51]]], np.uint8), "LA")
    stream = io.BytesIO()
    image.save(stream, "PNG")
    assert gray_of(stream.getvalue()) == [0, 255, 224]  # (100 * 51 + 255 * 204) / 255


def test_transparent_color() -> None:
    stream = io.BytesIO()
    PILImage.fromarray(np.array([[[1, 2, 3], [4, 5, 6]]], np.uint8)).save(stream, "PNG", transparency=(4, 5, 6))
    assert Decoder().decode(stream.getvalue()).pixels.tolist() == [[[1, 2, 3], [255, 255, 255]]]


def test_webp_with_alpha() -> None:
    rgba = np.array([[[10, 20, 30, 255], [10, 20, 30, 0]]], np.uint8)
    data = encode(rgba, "WEBP", lossless=True, exact=True)
    assert Decoder().decode(data).pixels.tolist() == [[[10, 20, 30], [255, 255, 255]]]


class TestCmyk:
    """Four inks in a JPEG: inverted where the Adobe marker stands, plain where it does not."""

    INKS = (0, 255, 255, 0)  # red

    def encoded(self, inks: tuple[int, ...]) -> bytes:
        stream = io.BytesIO()
        PILImage.new("CMYK", (16, 16), inks).save(stream, "JPEG", quality=98)
        return stream.getvalue()

    def test_with_the_marker(self) -> None:
        assert np.abs(Decoder().decode(self.encoded(self.INKS)).pixels[8, 8].astype(int) - [255, 0, 0]).max() <= 4

    def test_without_it(self) -> None:
        data = self.encoded(tuple(255 - ink for ink in self.INKS))  # Pillow inverts when it writes, too
        at = data.index(b"\xff\xee")
        length = int.from_bytes(data[at + 2 : at + 4], "big")
        data = data[:at] + data[at + 2 + length :]
        assert b"Adobe" not in data
        assert np.abs(Decoder().decode(data).pixels[8, 8].astype(int) - [255, 0, 0]).max() <= 4

    def test_in_a_tiff(self) -> None:
        stream = io.BytesIO()
        PILImage.new("CMYK", (16, 16), self.INKS).save(stream, "TIFF")
        assert Decoder().decode(stream.getvalue()).pixels[8, 8].tolist() == [255, 0, 0]


def test_palette() -> None:
    image = PILImage.new("P", (3, 1))
    image.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90])
    image.putdata([2, 0, 1])
    for format_name in ("PNG", "GIF", "BMP", "TIFF"):
        stream = io.BytesIO()
        image.save(stream, format_name)
        assert Decoder().decode(stream.getvalue()).pixels[0].tolist() == [[70, 80, 90], [10, 20, 30], [40, 50, 60]]


@pytest.mark.parametrize("format_name", ["PNG", "BMP", "TIFF", "PPM", "TGA", "WEBP"])
def test_lossless_formats_are_exact(format_name: str) -> None:
    """A picture of several bands of rows comes out as it went in."""
    pixels = np.tile(smooth_picture(50, 700), (40, 1, 1))
    options = {"lossless": True} if format_name == "WEBP" else {}
    image = Decoder().decode(encode(pixels, format_name, **options))
    assert np.array_equal(image.pixels, pixels)
    assert image.pixels.flags.c_contiguous


def test_qoi() -> None:
    """Written by hand: two literal pixels and a run."""
    data = b"qoif" + struct.pack(">IIBB", 4, 1, 3, 0) + b"\xfe\x0a\x14\x1e\xfe\x01\x02\x03\xc1" + b"\0" * 7 + b"\x01"
    assert Decoder().decode(data).pixels[0].tolist() == [[10, 20, 30], [1, 2, 3], [1, 2, 3], [1, 2, 3]]


def test_bitmap_that_pillow_does_not_know() -> None:
    """Unusual bit fields: ten bits a channel, which OpenCV reads."""
    masks = (0x3FF00000, 0x000FFC00, 0x000003FF)
    pixel = (0x3FF << 20) | (0x200 << 10)
    head = struct.pack("<IiiHHIIiiII", 56, 2, 1, 1, 32, 3, 8, 0, 0, 0, 0) + struct.pack("<IIII", *masks, 0)
    data = b"BM" + struct.pack("<IHHI", 14 + len(head) + 8, 0, 0, 14 + len(head)) + head + struct.pack("<II", pixel, 0)
    first, second = Decoder().decode(data).pixels[0].astype(int)
    assert np.abs(first - [255, 128, 0]).max() <= 1
    assert second.tolist() == [0, 0, 0]
