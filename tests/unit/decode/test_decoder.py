"""The decoder, on pictures the tests make themselves."""

from __future__ import annotations

import io
import threading
import warnings
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image as PILImage

from facefleet.config import DecodeSettings
from facefleet.decode import Decoder, probe, supported_formats
from facefleet.decode import decoder as decoder_module
from facefleet.decode.exif import upright
from facefleet.errors import (
    CorruptImageError,
    EmptyInputError,
    FacefleetError,
    ImageTooLargeError,
    InvalidArrayError,
    SourceError,
    TruncatedImageError,
    UnsupportedFormatError,
)
from facefleet.types import DeferredImage, EncodedImage
from tests.conftest import encode, smooth_picture

# What a viewer does to show a picture stored with each orientation upright, written as its inverse: how a camera
# would have stored it.
STORED = {
    1: lambda p: p,
    2: lambda p: p[:, ::-1],
    3: lambda p: p[::-1, ::-1],
    4: lambda p: p[::-1],
    5: lambda p: p.transpose(1, 0, 2),
    6: lambda p: np.rot90(p, 1),
    7: lambda p: p[::-1, ::-1].transpose(1, 0, 2),
    8: lambda p: np.rot90(p, -1),
}
TOLERANCE = {"JPEG": 12, "WEBP": 0, "PNG": 0, "TIFF": 0}


def oriented(pixels: np.ndarray, orientation: int, format_name: str) -> bytes:
    exif = PILImage.Exif()
    exif[0x0112] = orientation
    options = {"quality": 98, "subsampling": 0} if format_name == "JPEG" else {}
    if format_name == "WEBP":
        options = {"lossless": True, "exact": True}
    return encode(np.ascontiguousarray(STORED[orientation](pixels)), format_name, exif=exif, **options)


@pytest.mark.parametrize("format_name", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied_once(tmp_path: Path, orientation: int, format_name: str) -> None:
    """Fault 1: eight tags, every format, as path and as bytes: the same upright picture."""
    pixels = smooth_picture(60, 40)
    data = oriented(pixels, orientation, format_name)
    path = tmp_path / "picture.bin"
    path.write_bytes(data)
    for source in (data, path, EncodedImage(data)):
        image = Decoder().decode(source)
        assert image.pixels.shape == pixels.shape
        assert (image.width, image.height) == (40, 60)
        assert image.pixels.flags.c_contiguous
        assert np.abs(image.pixels.astype(int) - pixels).max() <= TOLERANCE[format_name]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_upright_inverts_storage(orientation: int) -> None:
    pixels = smooth_picture(5, 3)
    assert np.array_equal(upright(np.ascontiguousarray(STORED[orientation](pixels)), orientation), pixels)


def test_pil_image_with_orientation() -> None:
    pixels = smooth_picture()
    image = PILImage.open(io.BytesIO(oriented(pixels, 6, "PNG")))
    assert np.array_equal(Decoder().decode(image).pixels, pixels)


def test_magic_bytes_decide(tmp_path: Path) -> None:
    """Fault 2: the name says jpg, the bytes say PNG."""
    pixels = smooth_picture()
    path = tmp_path / "wrong.jpg"
    path.write_bytes(encode(pixels, "PNG"))
    image = Decoder().decode(path)
    assert image.format == "png"
    assert np.array_equal(image.pixels, pixels)


class TestColor:
    """Fault 4: whatever the bytes hold, contiguous RGB uint8."""

    def test_sixteen_bits_are_scaled(self) -> None:
        gray = np.linspace(0, 65535, 64 * 48).astype(np.uint16).reshape(64, 48)
        good, data = cv2.imencode(".png", gray)
        assert good
        pixels = Decoder().decode(data.tobytes()).pixels
        assert np.abs(pixels[..., 0].astype(float) - gray / 257).max() <= 1
        assert np.array_equal(pixels[..., 0], pixels[..., 2])

    def test_sixteen_bit_color(self) -> None:
        color = (smooth_picture().astype(np.uint16)) * 257
        good, data = cv2.imencode(".png", color[..., ::-1])
        assert good
        assert np.abs(Decoder().decode(data.tobytes()).pixels.astype(int) - color // 257).max() <= 1

    def test_float_tiff(self) -> None:
        color = smooth_picture().astype(np.float32) / 255
        good, data = cv2.imencode(".tiff", color[..., ::-1], [cv2.IMWRITE_TIFF_COMPRESSION, 1])
        assert good
        assert np.abs(Decoder().decode(data.tobytes()).pixels / 255 - color).max() < 0.005

    def test_alpha_is_composed_on_white(self) -> None:
        rgba = np.zeros((4, 4, 4), np.uint8)
        rgba[:2, :, 3] = 255
        rgba[:, :, 0] = 200
        pixels = Decoder().decode(encode(rgba, "PNG")).pixels
        assert pixels[0, 0].tolist() == [200, 0, 0]
        assert pixels[3, 0].tolist() == [255, 255, 255]

    def test_transparent_palette(self) -> None:
        image = PILImage.new("P", (2, 1))
        image.putpalette([10, 20, 30, 40, 50, 60])
        image.putdata([0, 1])
        stream = io.BytesIO()
        image.save(stream, "PNG", transparency=1)
        assert Decoder().decode(stream.getvalue()).pixels[0].tolist() == [[10, 20, 30], [255, 255, 255]]

    def test_one_bit(self) -> None:
        bits = np.zeros((4, 8), bool)
        bits[:, 4:] = True
        assert Decoder().decode(encode(bits, "PNG")).pixels[0, :, 0].tolist() == [0] * 4 + [255] * 4

    def test_cmyk_as_adobe_writes_it(self) -> None:
        red = PILImage.new("CMYK", (16, 16), (0, 255, 255, 0))
        stream = io.BytesIO()
        red.save(stream, "JPEG", quality=98)
        assert b"Adobe" in stream.getvalue()
        pixels = Decoder().decode(stream.getvalue()).pixels
        assert pixels[8, 8, 0] > 245
        assert pixels[8, 8, 1:].max() < 10

    def test_gray_jpeg(self) -> None:
        gray = smooth_picture()[..., 1]
        pixels = Decoder().decode(encode(gray, "JPEG", quality=98)).pixels
        assert pixels.shape == (64, 48, 3)
        assert np.abs(pixels[..., 0].astype(int) - gray).max() <= 6

    def test_first_frame_of_an_animation(self) -> None:
        frames = [PILImage.new("RGB", (8, 8), color) for color in ((250, 0, 0), (0, 250, 0))]
        for format_name in ("GIF", "WEBP", "PNG"):
            stream = io.BytesIO()
            options = {"lossless": True} if format_name == "WEBP" else {}
            frames[0].save(stream, format_name, save_all=True, append_images=frames[1:], **options)
            assert Decoder().decode(stream.getvalue()).pixels[4, 4, 0] > 240


class TestRefused:
    """Fault 3: a typed error with the name and what to do."""

    def test_empty(self) -> None:
        with pytest.raises(EmptyInputError, match="no bytes"):
            Decoder().decode(b"")

    def test_text(self) -> None:
        with pytest.raises(UnsupportedFormatError, match="this install reads jpeg"):
            Decoder().decode(b"this is no picture at all")

    def test_missing_file_and_folder(self, tmp_path: Path) -> None:
        with pytest.raises(SourceError, match="no such file"):
            Decoder().decode(tmp_path / "nothing.jpg")
        with pytest.raises(SourceError, match="folder"):
            Decoder().decode(tmp_path)

    def test_deferred_that_fails(self) -> None:
        def load() -> bytes:
            raise OSError("the disk is gone")

        with pytest.raises(SourceError, match="the disk is gone"):
            Decoder().decode(DeferredImage("x", load))

    @pytest.mark.parametrize("keep", [0.3, 0.9, 0.99])
    def test_truncated_jpeg(self, keep: float) -> None:
        data = encode(smooth_picture(200, 150), "JPEG")
        cut = data[: int(len(data) * keep)]
        with pytest.raises((TruncatedImageError, CorruptImageError)):
            Decoder().decode(cut)

    def test_truncated_is_read_on_request(self) -> None:
        pixels = smooth_picture(200, 150)
        decoder = Decoder(DecodeSettings(truncated="read"))
        for format_name, options in (("JPEG", {"quality": 95}), ("PNG", {"compress_level": 0})):
            data = encode(pixels, format_name, **options)
            image = decoder.decode(data[: int(len(data) * 0.8)])
            assert image.pixels.shape == pixels.shape
            assert np.abs(image.pixels[:60].astype(int) - pixels[:60]).max() <= 12

    def test_garbage_behind_the_end_is_fine(self) -> None:
        data = encode(smooth_picture(), "JPEG")
        assert Decoder().decode(data + b"\x00" * 5000).pixels.shape == (64, 48, 3)

    def test_limit_holds_before_decoding(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Fault 5: the size in the header decides; no pixel is decoded."""

        def never(*_: object, **__: object) -> None:
            raise AssertionError("decoded")

        monkeypatch.setattr(decoder_module.pillow, "pixels_of", never)
        monkeypatch.setattr(decoder_module.jpeg, "decode", never)
        decoder = Decoder(DecodeSettings(max_pixels=64 * 48 - 1))
        for format_name in ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF"):
            with pytest.raises(ImageTooLargeError, match=r"48x64 pixels.*max_pixels"):
                decoder.decode(encode(smooth_picture(), format_name))

    def test_heic_names_the_extra(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from facefleet.decode import formats

        monkeypatch.setattr(formats, "_read_here", lambda: tuple((name, name != "heic") for name in formats._FORMATS))
        with pytest.raises(UnsupportedFormatError, match=r"facefleet\[heif\]"):
            probe(b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00mif1heic")

    def test_not_a_picture_type(self) -> None:
        with pytest.raises(UnsupportedFormatError, match="cannot be a dict"):
            Decoder().decode({})  # type: ignore[arg-type]

    def test_damaged_bytes_never_raise_anything_else(self) -> None:
        random = np.random.default_rng(1)
        decoder = Decoder()
        outcomes = set()
        for format_name in ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF"):
            data = encode(smooth_picture(), format_name)
            for _ in range(40):
                broken = bytearray(data)
                for _ in range(8):
                    broken[random.integers(len(broken))] = random.integers(256)
                try:
                    decoder.decode(bytes(broken))
                    outcomes.add("ok")
                except FacefleetError as error:
                    outcomes.add(error.code)
        assert {"ok", "corrupt_image"} <= outcomes


class TestReduced:
    """Big JPEGs are decoded smaller where less is needed."""

    @pytest.mark.parametrize(
        ("need", "scale"), [(None, 1.0), (1000, 1.0), (500, 1.0), (251, 1.0), (250, 0.25), (125, 0.125), (10, 0.125)]
    )
    def test_scale(self, need: int | None, scale: float) -> None:
        data = encode(smooth_picture(1000, 601), "JPEG")
        image = Decoder().decode(data, need_px=need)
        assert image.scale == scale
        assert (image.width, image.height) == (601, 1000)
        assert image.pixels.shape[:2] == (int(np.ceil(1000 * scale)), int(np.ceil(601 * scale)))
        assert image.reduced == (scale < 1)

    def test_off(self) -> None:
        data = encode(smooth_picture(1000, 600), "JPEG")
        assert Decoder(DecodeSettings(scaled="off")).decode(data, need_px=100).scale == 1.0

    def test_rotated(self) -> None:
        image = Decoder().decode(oriented(smooth_picture(1000, 600), 6, "JPEG"), need_px=250)
        assert (image.width, image.height, image.scale) == (600, 1000, 0.25)
        assert image.pixels.shape == (250, 150, 3)

    def test_only_jpeg(self) -> None:
        assert Decoder().decode(encode(smooth_picture(1000, 600), "PNG"), need_px=100).scale == 1.0


class TestArrays:
    """Arrays are pictures too."""

    @pytest.mark.parametrize("shape", [(5, 4), (5, 4, 1), (5, 4, 2), (5, 4, 3), (5, 4, 4)])
    @pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32, np.bool_])
    def test_shapes_and_types(self, shape: tuple[int, ...], dtype: type) -> None:
        full = {np.uint8: 255, np.uint16: 65535, np.float32: 1.0, np.bool_: True}[dtype]
        image = Decoder().decode(np.full(shape, full, dtype))
        assert image.pixels.shape == (5, 4, 3)
        assert (image.pixels == 255).all()

    def test_rgb_is_taken_as_it_is(self) -> None:
        pixels = smooth_picture()
        assert Decoder().decode(pixels).pixels is pixels

    @pytest.mark.parametrize(
        "array",
        [
            np.zeros((0, 4, 3), np.uint8),
            np.zeros(5, np.uint8),
            np.zeros((2, 2, 5), np.uint8),
            np.zeros((2, 2), complex),
        ],
    )
    def test_no_picture(self, array: np.ndarray) -> None:
        with pytest.raises(InvalidArrayError):
            Decoder().decode(array)

    def test_not_finite(self) -> None:
        with pytest.raises(InvalidArrayError, match="not finite"):
            Decoder().decode(np.full((2, 2), np.nan, np.float32))

    def test_values_beyond_one(self) -> None:
        pixels = Decoder().decode(np.array([[0.0, 100.0, 200.0]], np.float32)).pixels
        assert pixels[0, :, 0].tolist() == [0, 128, 255]


def test_many_threads_with_known_answers() -> None:
    decoder = Decoder()
    pictures = [smooth_picture(40 + i, 60, seed=i) for i in range(16)]
    data = [encode(picture, "PNG" if i % 2 else "BMP") for i, picture in enumerate(pictures)]
    wrong: list[int] = []

    def work(i: int) -> None:
        answers = [decoder.decode(data[i]).pixels for _ in range(10)]
        wrong.extend(i for answer in answers if not np.array_equal(answer, pictures[i]))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_odd_metadata_warns_nobody() -> None:
    exif = b"Exif\x00\x00" + b"garbage that is no TIFF header at all"
    data = encode(smooth_picture(), "PNG", exif=exif)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        decoder = Decoder()
        decoder.decode(data)
    assert [str(w.message) for w in caught] == []


def test_supported_formats_name_the_usual_ones() -> None:
    assert {"jpeg", "png", "webp", "heic", "avif"} <= set(supported_formats())
