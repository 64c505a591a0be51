"""Orientation, wherever a format keeps it."""

from __future__ import annotations

import io
import struct
import zlib

import cv2
import numpy as np
import pytest
from PIL import Image as PILImage
from PIL import PngImagePlugin

from facefleet.decode import Decoder, probe, supported_formats
from facefleet.decode.exif import exif_orientation, xmp_orientation
from tests.conftest import encode, smooth_picture
from tests.unit.decode.test_decoder import STORED, oriented

XMP = '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="{}"/></x:xmpmeta>'


def stored(pixels: np.ndarray, orientation: int) -> np.ndarray:
    return np.ascontiguousarray(STORED[orientation](pixels))


def jpeg_segment(marker: int, body: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body


def png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def exif_block(orientation: int, order: str = "<") -> bytes:
    mark = {"<": b"II*\x00", ">": b"MM\x00*"}[order]
    return mark + struct.pack(order + "IHHHIHHI", 8, 1, 0x0112, 3, 1, orientation, 0, 0)


def close(pixels: np.ndarray, expected: np.ndarray, most: float) -> bool:
    return pixels.shape == expected.shape and np.abs(pixels.astype(int) - expected).mean() <= most


@pytest.mark.parametrize("format_name", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_probe_gives_the_upright_size(orientation: int, format_name: str) -> None:
    header = probe(oriented(smooth_picture(60, 40), orientation, format_name))
    assert (header.width, header.height, header.orientation) == (40, 60, orientation)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_avif_turns_once(orientation: int) -> None:
    """Fault 1: Pillow writes irot and imir for the tag and gives both back."""
    if not supported_formats()["avif"]:
        pytest.skip("this Pillow has no AVIF")
    pixels = smooth_picture(64, 48)
    exif = PILImage.Exif()
    exif[0x0112] = orientation
    data = encode(stored(pixels, orientation), "AVIF", quality=95, exif=exif)
    assert close(Decoder().decode(data).pixels, pixels, 6)
    header = probe(data)
    assert (header.width, header.height) == (48, 64)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_heic_turns_once(orientation: int) -> None:
    """Fault 1: libheif turns the pixels by irot and imir itself; the tag beside them is not applied again."""
    pillow_heif = pytest.importorskip("pillow_heif", reason="the heif extra is not installed")
    pixels = smooth_picture(64, 48)
    image = PILImage.fromarray(stored(pixels, orientation))
    exif = PILImage.Exif()
    exif[0x0112] = orientation
    image.info["exif"] = exif.tobytes()
    pillow_heif.register_heif_opener()
    stream = io.BytesIO()
    image.save(stream, "HEIF", quality=95)
    assert b"irot" in stream.getvalue() or b"imir" in stream.getvalue() or orientation == 1
    decoded = Decoder().decode(stream.getvalue())
    assert decoded.format == "heic"
    assert close(decoded.pixels, pixels, 6)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_xmp_counts_where_exif_says_nothing(orientation: int) -> None:
    pixels = smooth_picture(64, 48)
    packet = XMP.format(orientation).encode()
    jpeg = encode(stored(pixels, orientation), "JPEG", quality=98, subsampling=0)
    body = b"http://ns.adobe.com/xap/1.0/\x00" + packet
    with_xmp = jpeg[:2] + jpeg_segment(0xE1, body) + jpeg[2:]
    assert close(Decoder().decode(with_xmp).pixels, pixels, 3)
    with_both = jpeg[:2] + jpeg_segment(0xE1, body) + jpeg_segment(0xE1, b"Exif\0\0" + exif_block(1)) + jpeg[2:]
    assert close(Decoder().decode(with_both).pixels, stored(pixels, orientation), 3)

    webp = encode(stored(pixels, orientation), "WEBP", lossless=True, xmp=packet)
    assert close(Decoder().decode(webp).pixels, pixels, 0)
    tiff = encode(stored(pixels, orientation), "TIFF", tiffinfo={700: packet})
    assert close(Decoder().decode(tiff).pixels, pixels, 0)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("place", ["xmp", "raw profile", "eXIf behind the pixels"])
def test_png_keeps_it_in_many_places(place: str, packed: bool) -> None:
    pixels = smooth_picture(64, 48)
    data = encode(stored(pixels, 6), "PNG")
    head, tail = data[:33], data[33:]  # the signature and IHDR; the rest
    if place == "xmp":
        text = XMP.format(6).encode()
        body = b"XML:com.adobe.xmp\0" + bytes([packed, 0]) + b"\0\0" + (zlib.compress(text) if packed else text)
        data = head + png_chunk(b"iTXt", body) + tail
    elif place == "raw profile":
        raw = (b"Exif\0\0" + exif_block(6, ">")).hex()
        text = f"\nexif\n{len(raw) // 2:8}\n{raw[:72]}\n{raw[72:]}\n".encode()
        kind, body = (b"zTXt", b"\0" + zlib.compress(text)) if packed else (b"tEXt", text)
        data = head + png_chunk(kind, b"Raw profile type exif\0" + body) + tail
    else:
        data = head + tail[:-12] + png_chunk(b"eXIf", exif_block(6, ">")) + tail[-12:]
    assert probe(data).orientation == 6
    assert np.array_equal(Decoder().decode(data).pixels, pixels)


def test_a_header_is_read_without_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 5: Pillow decodes a whole PNG when it is asked for Exif data."""

    def never(*_: object) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(PngImagePlugin.PngImageFile, "load", never)
    assert probe(encode(smooth_picture(), "PNG")).orientation == 1


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_tiff_that_only_opencv_reads(orientation: int) -> None:
    """Fault 1: OpenCV's own handling differs between versions; it is not given the tag."""
    pixels = smooth_picture(64, 48)
    good, encoded = cv2.imencode(
        ".tiff", stored(pixels, orientation)[..., ::-1].astype(np.float32) / 255, [cv2.IMWRITE_TIFF_COMPRESSION, 1]
    )
    assert good
    data = with_orientation(encoded.tobytes(), orientation)
    header = probe(data)
    assert header.opencv is not None
    assert (header.width, header.height, header.orientation) == (48, 64, orientation)
    assert close(Decoder().decode(data).pixels, pixels, 1)


def with_orientation(tiff: bytes, orientation: int) -> bytes:
    """Rewrite the first directory of a little-endian TIFF with an orientation tag, at the end of the file."""
    (first,) = struct.unpack_from("<I", tiff, 4)
    (count,) = struct.unpack_from("<H", tiff, first)
    entries = [tiff[first + 2 + 12 * i :][:12] for i in range(count)]
    entries = [e for e in entries if struct.unpack_from("<H", e)[0] != 274]
    entries.append(struct.pack("<HHIHH", 274, 3, 1, orientation, 0))
    entries.sort(key=lambda e: struct.unpack_from("<H", e)[0])
    tiff += b"\0" * (len(tiff) % 2)
    directory = struct.pack("<H", len(entries)) + b"".join(entries) + b"\0\0\0\0"
    return tiff[:4] + struct.pack("<I", len(tiff)) + tiff[8:] + directory


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (exif_block(6), 6),
        (exif_block(6, ">"), 6),
        (exif_block(0), 1),
        (exif_block(9), 1),
        (exif_block(6)[:14], None),
        (b"II*\x00" + struct.pack("<IH", 8, 60_000), None),
        (b"no TIFF header", None),
        (b"", None),
    ],
)
def test_exif_that_is_odd(data: bytes, expected: int | None) -> None:
    assert exif_orientation(data) == expected


@pytest.mark.parametrize(
    ("packet", "expected"),
    [
        (b'tiff:Orientation="8"', 8),
        (b"tiff:Orientation='8'", 8),
        (b"<tiff:Orientation>3</tiff:Orientation>", 3),
        (b'tiff:Orientation="9"', None),
        (b"", None),
    ],
)
def test_xmp_that_is_odd(packet: bytes, expected: int | None) -> None:
    assert xmp_orientation(packet) == expected
