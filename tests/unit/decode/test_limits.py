"""Faults 3, 5 and 6: what is refused, when, and how much memory decoding takes."""

from __future__ import annotations

import contextlib
import io
import os
import struct
import subprocess
import sys
import threading
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as PILImage

from facefleet.config import DecodeSettings
from facefleet.decode import Decoder, probe, supported_formats
from facefleet.decode import decoder as decoder_module
from facefleet.decode.budget import PixelBudget
from facefleet.errors import (
    CorruptImageError,
    FacefleetError,
    ImageTooLargeError,
    InternalError,
    SourceError,
    TruncatedImageError,
    UnsupportedFormatError,
)
from facefleet.types import DeferredImage, EncodedImage, Image
from tests.conftest import encode, smooth_picture
from tests.unit.decode.test_orientation import jpeg_segment, png_chunk


def png_header(width: int, height: int) -> bytes:
    body = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", body)


def png_bomb(width: int, height: int) -> bytes:
    rows = zlib.compress(b"\0" * ((width // 8 + 1) * height), 9)
    return png_header(width, height) + png_chunk(b"IDAT", rows) + png_chunk(b"IEND", b"")


def icon(blob: bytes, side: int = 16) -> bytes:
    return struct.pack("<HHH", 0, 1, 1) + struct.pack("<BBBBHHII", side, side, 0, 0, 1, 32, len(blob), 22) + blob


class TestSize:
    """The header decides, before a pixel is decoded."""

    def test_bomb_takes_no_memory(self) -> None:
        data = png_bomb(16_000, 16_000)
        assert len(data) < 40_000
        Decoder().decode(encode(smooth_picture(), "PNG"))  # what is imported at the first call is not counted
        tracemalloc.start()
        try:
            with pytest.raises(ImageTooLargeError, match="16000x16000"):
                Decoder().decode(data)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 2_000_000

    def test_icon_that_hides_a_large_picture(self) -> None:
        """The directory says 16x16; Pillow would decode the picture when it opens the file."""
        decoder = Decoder(DecodeSettings(max_pixels=1_000_000))
        with pytest.raises(ImageTooLargeError, match="4000x4000"):
            decoder.decode(icon(png_bomb(4000, 4000)))
        bitmap = struct.pack("<IiiHHIIiiII", 40, 4000, 8000, 1, 32, 0, 0, 0, 0, 0, 0) + bytes(64)
        with pytest.raises(ImageTooLargeError, match="4000x4000"):
            decoder.decode(icon(bitmap))

    def test_icon(self) -> None:
        pixels = smooth_picture(32, 32)
        image = PILImage.fromarray(pixels)
        for options in ({}, {"bitmap_format": "bmp"}):
            stream = io.BytesIO()
            image.save(stream, "ICO", sizes=[(16, 16), (32, 32), (24, 24)], **options)
            decoded = Decoder().decode(stream.getvalue())
            assert decoded.format == "ico"
            assert np.array_equal(decoded.pixels, pixels)

    def test_lies_of_a_jpeg_do_not_pass_a_second_reading(self) -> None:
        """A second frame header in front of the scan: the last one counts for us, and no decoder gets past it."""
        data = encode(smooth_picture(64, 48), "JPEG")
        at = data.index(b"\xff\xc0")
        large = jpeg_segment(0xC0, struct.pack(">BHHB", 8, 60_000, 60_000, 3) + data[at + 10 : at + 19])
        with pytest.raises(FacefleetError):
            Decoder().decode(data[:at] + large + data[at:])
        with pytest.raises(ImageTooLargeError):
            Decoder().decode(data[: at + 19] + large + data[at + 19 :])

    def test_open_pil_image(self) -> None:
        decoder = Decoder(DecodeSettings(max_pixels=1000))
        image = PILImage.open(io.BytesIO(png_bomb(64, 64)))
        with pytest.raises(ImageTooLargeError, match="64x64"):
            decoder.decode(image)

    def test_file_far_too_large_is_not_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from facefleet.decode import reading

        monkeypatch.setattr(reading, "_ALWAYS_READ_BYTES", 1000)
        path = tmp_path / "film.jpg"
        path.write_bytes(b"\xff\xd8" + bytes(50_000))
        with pytest.raises(ImageTooLargeError, match="50002 bytes"):
            Decoder(DecodeSettings(max_pixels=1000)).decode(path)

    def test_large_file_of_no_format_is_not_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from facefleet.decode import reading

        monkeypatch.setattr(reading, "_WORTH_A_LOOK_BYTES", 10_000)
        path = tmp_path / "film.jpg"
        path.write_bytes(b"\x1a\x45\xdf\xa3" + bytes(50_000))
        with pytest.raises(UnsupportedFormatError, match="1a 45 df a3"):
            Decoder().decode(path)
        pixels = smooth_picture(200, 200)
        path.write_bytes(encode(pixels, "TGA"))
        assert np.array_equal(Decoder().decode(path).pixels, pixels)

    def test_stalling_jpegs(self) -> None:
        """Bytes that would keep a decoder busy for minutes are refused by their structure."""
        data = encode(smooth_picture(64, 48), "JPEG", progressive=True)
        end = data.rindex(b"\xff\xd9")
        scan = data[data.rindex(b"\xff\xda") : end]
        assert Decoder().decode(data[:end] + scan * 20 + data[end:]).height == 64
        with pytest.raises(CorruptImageError, match="scans"):
            Decoder().decode(data[:end] + scan * 200 + data[end:])
        with pytest.raises(CorruptImageError, match="segments"):
            Decoder().decode(b"\xff\xd8" + b"\xff\xe0\x00\x02" * 70_000)
        with pytest.raises(CorruptImageError, match="without a size"):
            Decoder().decode(b"\xff\xd8" + b"\xff\x00" * 5_000_000)


FORMATS: dict[str, tuple[str, dict[str, object]]] = {
    "jpeg": ("JPEG", {}),
    "progressive": ("JPEG", {"progressive": True}),
    "png": ("PNG", {}),
    "webp": ("WEBP", {}),
    "gif": ("GIF", {}),
    "bmp": ("BMP", {}),
    "tiff": ("TIFF", {}),
    "tiff, lzw": ("TIFF", {"compression": "tiff_lzw"}),
    "tiff, jpeg": ("TIFF", {"compression": "jpeg"}),
    "jpeg2000": ("JPEG2000", {}),
    "pnm": ("PPM", {}),
    "avif": ("AVIF", {}),
}


@pytest.mark.parametrize("kind", FORMATS)
def test_cut_anywhere(kind: str) -> None:
    """Fault 3: a file cut anywhere is refused, unless all pixels are there; cut in half it is called truncated."""
    format_name, options = FORMATS[kind]
    if not supported_formats().get(format_name.lower(), True):
        pytest.skip(f"this Pillow has no {format_name}")
    data = encode(smooth_picture(160, 120), format_name, **options)
    decoder, reader = Decoder(), Decoder(DecodeSettings(truncated="read"))
    whole = decoder.decode(data).pixels
    for cut in {*range(1, len(data), max(1, len(data) // 40)), *range(len(data) - 6, len(data))}:
        with contextlib.suppress(FacefleetError):
            assert np.array_equal(decoder.decode(data[:cut]).pixels, whole), cut
        with contextlib.suppress(FacefleetError):
            assert reader.decode(data[:cut]).pixels.shape == whole.shape
    with pytest.raises(TruncatedImageError):
        decoder.decode(data[: len(data) // 2])


@pytest.mark.parametrize("kind", ["jpeg", "progressive", "png", "gif", "bmp", "tiff", "pnm"])
def test_what_is_left_is_read_on_request(kind: str) -> None:
    format_name, options = FORMATS[kind]
    pixels = smooth_picture(160, 120)
    data = encode(pixels, format_name, **options)
    reader = Decoder(DecodeSettings(truncated="read"))
    whole = reader.decode(data).pixels
    part = reader.decode(data[: int(len(data) * 0.9)]).pixels
    assert part.shape == whole.shape
    rows = slice(0, 40) if kind != "bmp" else slice(120, 160)  # a bitmap begins at its last row
    assert np.abs(part[rows].astype(int) - whole[rows]).mean() < (40 if kind == "progressive" else 1)


class TestSources:
    """Fault 3: what cannot be read at all."""

    def test_no_permission(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(Path, "open", refuse)
        with pytest.raises(SourceError, match="no permission"):
            Decoder().decode(tmp_path / "a.jpg")

    @pytest.mark.skipif(not Path("/dev/zero").exists(), reason="there is no /dev/zero here")
    def test_device(self) -> None:
        with pytest.raises(SourceError, match="not a file"):
            Decoder().decode("/dev/zero")

    @pytest.mark.parametrize("path", ["a\0b", "x" * 5000])
    def test_paths_that_cannot_be(self, path: str) -> None:
        with pytest.raises(SourceError):
            Decoder().decode(path)

    def test_named_pipe(self, tmp_path: Path) -> None:
        pixels = smooth_picture()
        path = tmp_path / "pipe"
        os.mkfifo(path)
        writer = threading.Thread(target=path.write_bytes, args=(encode(pixels, "PNG"),))
        writer.start()
        assert np.array_equal(Decoder().decode(path).pixels, pixels)
        writer.join()

    @pytest.mark.parametrize("raised", [OSError("gone"), KeyError("member"), ValueError("bad"), MemoryError()])
    def test_deferred_that_raises_anything(self, raised: Exception) -> None:
        def load() -> bytes:
            raise raised

        with pytest.raises(SourceError, match=r"^picture 7"):
            Decoder().decode(DeferredImage("picture 7", load))

    def test_deferred_keeps_typed_errors(self) -> None:
        def load() -> bytes:
            raise TruncatedImageError("member cut")

        with pytest.raises(TruncatedImageError, match="member cut"):
            Decoder().decode(DeferredImage("x", load))

    def test_deferred_that_gives_no_bytes(self) -> None:
        with pytest.raises(SourceError, match="gave a int"):
            Decoder().decode(DeferredImage("x", lambda: 5))  # type: ignore[arg-type, return-value]

    @pytest.mark.parametrize(
        "wrap", [bytes, bytearray, memoryview, EncodedImage, lambda d: DeferredImage("x", lambda: d)]
    )
    def test_every_holder_of_bytes(self, wrap: Callable[[bytes], object]) -> None:
        pixels = smooth_picture()
        image = Decoder().decode(wrap(encode(pixels, "PNG")), name="mine")  # type: ignore[arg-type]
        assert image.name == "mine"
        assert np.array_equal(image.pixels, pixels)

    def test_names(self, tmp_path: Path) -> None:
        path = tmp_path / "p.png"
        path.write_bytes(encode(smooth_picture(), "PNG"))
        decoder = Decoder()
        assert decoder.decode(path).name == str(path)
        assert decoder.decode(path.read_bytes()).name == "<bytes>"
        assert decoder.decode(smooth_picture(), name="a").name == "a"
        assert decoder.decode(Image(smooth_picture(), 48, 64, "b")).name == "b"
        assert decoder.decode(Image(smooth_picture(), 48, 64, "b"), name="c").name == "c"
        with pytest.raises(FacefleetError, match=r"^request 9: "):
            decoder.decode(b"nothing", name="request 9")


def test_a_bug_is_an_internal_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(decoder_module, "probe", broken)
    with pytest.raises(InternalError, match="ZeroDivisionError"):
        Decoder().decode(b"x")


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (OSError("image file is truncated (3 bytes not processed)"), "truncated_image"),
        (EOFError(), "truncated_image"),
        (OSError("Unsupported BMP pixel depth (2)"), "unsupported_format"),
        (NotImplementedError("x"), "unsupported_format"),
        (MemoryError(), "image_too_large"),
        (PILImage.DecompressionBombError("x"), "image_too_large"),
        (SyntaxError("broken"), "corrupt_image"),
        (struct.error("x"), "corrupt_image"),
        (RecursionError("x"), "corrupt_image"),
        (TruncatedImageError("x"), "truncated_image"),
    ],
)
def test_the_map_of_what_pillow_raises(raised: Exception, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import PngImagePlugin

    def fail(*_: object) -> None:
        raise raised

    data = encode(smooth_picture(), "PNG")
    monkeypatch.setattr(PngImagePlugin.PngImageFile, "load", fail)
    with pytest.raises(FacefleetError) as caught:
        Decoder().decode(data)
    assert caught.value.code == code


class TestBudget:
    """Fault 5: a bound on what is being decoded at a time."""

    def test_never_more_than_the_limit(self) -> None:
        budget, held, seen, lock = PixelBudget(100), [0], [], threading.Lock()

        def work(pixels: int) -> None:
            for _ in range(20):
                with budget.hold(pixels):
                    with lock:
                        held[0] += pixels
                        seen.append((held[0], pixels))
                    with lock:
                        held[0] -= pixels

        threads = [threading.Thread(target=work, args=(size,)) for size in (10, 30, 60, 90, 100, 40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(seen) == 120
        assert max(total for total, _ in seen) <= 100

    def test_larger_than_the_limit_is_alone(self) -> None:
        budget = PixelBudget(10)
        with budget.hold(1000):
            entered = threading.Event()

            def later() -> None:
                with budget.hold(1):
                    entered.set()

            thread = threading.Thread(target=later)
            thread.start()
            assert not entered.wait(0.05)
        assert entered.wait(60)
        thread.join()

    def test_large_one_is_not_overtaken_for_ever(self) -> None:
        budget, order = PixelBudget(10), []
        holding, queued = threading.Event(), threading.Event()

        def large() -> None:
            queued.set()
            with budget.hold(10):
                order.append("large")

        def small() -> None:
            with budget.hold(1):
                order.append("small")

        with budget.hold(5):
            holding.set()
            first = threading.Thread(target=large)
            first.start()
            queued.wait(60)
            while not budget._queue:
                pass
            second = threading.Thread(target=small)
            second.start()
            while len(budget._queue) < 2:
                pass
        first.join(60)
        second.join(60)
        assert order == ["large", "small"]

    def test_errors_give_it_back(self) -> None:
        decoder = Decoder(DecodeSettings(max_pixels=64 * 48))
        data = encode(smooth_picture(), "PNG")
        for _ in range(3):
            with pytest.raises(FacefleetError):
                decoder.decode(data[:-200])
        assert decoder.decode(data).height == 64


def test_formats_without_photos_are_refused() -> None:
    """Fault 2: no decoder of theirs sees a byte; the error says what is read here."""
    for head in (
        b"%PDF-1.7\n",
        b"%!PS-Adobe-3.0 EPSF-3.0\n",
        b"SIMPLE  =",
        b"8BPS\0\1",
        b"<svg xmlns",
        b"P7\n",
        b"GIF88a",
    ):
        with pytest.raises(UnsupportedFormatError, match="this install reads jpeg, png"):
            probe(head + bytes(100))


QUIET = """
import sys, threading
from PIL import Image, ImageFile
import PIL
before = (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES, sys.getrecursionlimit(), threading.active_count())
import cv2
cv2_threads = cv2.getNumThreads()
from facefleet.decode import Decoder
from facefleet.errors import FacefleetError
known = dict(Image.OPEN)
decoder = Decoder()
for line in sys.stdin:
    try:
        decoder.decode(bytes.fromhex(line))
    except FacefleetError as error:
        pass
assert before == (
    Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES, sys.getrecursionlimit(), threading.active_count()
)
assert cv2_threads == cv2.getNumThreads()
assert "EPS" not in Image.OPEN and "HEIF" not in Image.OPEN
"""


def test_damaged_files_write_nothing_and_change_nothing() -> None:
    """Fault 3: one typed error, no remarks of libraries on stderr, no switch of theirs thrown."""
    random = np.random.default_rng(5)
    pieces = []
    for kind, (format_name, options) in FORMATS.items():
        if not supported_formats().get(kind, True):
            continue
        data = encode(smooth_picture(), format_name, **options)
        pieces += [data, data[: len(data) // 2]]
        for _ in range(10):
            broken = bytearray(data)
            for _ in range(20):
                broken[random.integers(8, len(broken))] = random.integers(256)
            pieces.append(bytes(broken))
    text = "\n".join(piece.hex() for piece in pieces)
    done = subprocess.run([sys.executable, "-c", QUIET], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


IMPORT = """
import sys, threading
import facefleet.decode
heavy = [name for name in ("cv2", "PIL.Image", "simplejpeg", "pillow_heif") if name in sys.modules]
assert not heavy, heavy
assert threading.active_count() == 1
"""


def test_importing_it_loads_no_decoder() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
