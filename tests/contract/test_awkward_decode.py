"""The decoder on hundreds of awkward real files: each ends in a picture or in a typed error, quietly."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fuzz_decode
from facefleet.decode import Decoder, probe, supported_formats
from facefleet.types import EncodedImage

RUN = """
import json, sys
from pathlib import Path
from facefleet.config import DecodeSettings
from facefleet.decode import Decoder
from facefleet.errors import FacefleetError
folder = Path(sys.argv[1])
decoder = Decoder(DecodeSettings(truncated=sys.argv[2]))
outcomes = {}
for path in sorted(p for p in folder.rglob("*") if p.is_file()):
    key = str(path.relative_to(folder))
    try:
        image = decoder.decode(path)
        assert image.pixels.dtype == "uint8" and image.pixels.flags.c_contiguous and image.scale == 1
        assert image.pixels.shape == (image.height, image.width, 3)
        outcomes[key] = [image.format, image.width, image.height]
    except FacefleetError as error:
        assert error.hint and error.message.startswith(str(path)), error
        outcomes[key] = error.code
status = open("/proc/self/status").read()  # getrusage would start from what the parent held
peak_mib = int(status.split("VmHWM:")[1].split()[0]) / 1024
print(json.dumps({"outcomes": outcomes, "peak_mib": peak_mib}))
"""


@pytest.fixture(scope="module")
def awkward(data_dir: Path) -> Path:
    return data_dir / "awkward"


@pytest.fixture(scope="module", params=["refuse", "read"])
def ran(awkward: Path, request: pytest.FixtureRequest) -> tuple[str, subprocess.CompletedProcess[str]]:
    command = [sys.executable, "-c", RUN, str(awkward), request.param]
    return request.param, subprocess.run(command, capture_output=True, text=True, check=False)


def test_every_file_ends_well_and_quietly(ran: tuple[str, subprocess.CompletedProcess[str]], awkward: Path) -> None:
    """Faults 2, 3, 4 and 5: a picture or a typed error for each, nothing on stderr, memory within its bound."""
    mode, done = ran
    assert done.stderr == ""
    assert done.returncode == 0
    answer = json.loads(done.stdout)
    outcomes = answer["outcomes"]
    assert len(outcomes) == sum(path.is_file() for path in awkward.rglob("*"))
    assert answer["peak_mib"] < 1536
    assert sum(isinstance(outcome, list) for outcome in outcomes.values()) >= 300
    for name in ("derived/face_trunc_50.jpg", "pillow/truncated_image.png"):
        assert isinstance(outcomes[name], list) == (mode == "read")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("derived/empty.jpg", "empty_input"),
        ("derived/text.jpg", "unsupported_format"),
        ("derived/soi_only.jpg", "corrupt_image"),
        ("derived/bomb_20000x20000_1bit.png", "image_too_large"),
        ("derived/bomb_65535x65536_1bit.png", "image_too_large"),
        ("derived/jpeg_header_lies_65500x65500.jpg", "image_too_large"),
        ("pillow/decompression_bomb.ico", "image_too_large"),
        ("pillow/decompression_bomb.gif", "image_too_large"),
        ("pillow/bmp/b/reallybig.bmp", "image_too_large"),
        ("pillow/hopper.fits", "unsupported_format"),
        ("derived/face_trunc_99.jpg", "truncated_image"),
        ("derived/face_png_named.jpg", ["png", 384, 480]),
        ("derived/face_garbage_tail.jpg", ["jpeg", 384, 480]),
        ("derived/face_float32.tiff", ["tiff", 384, 480]),
        ("derived/face_exif_6.jpg", ["jpeg", 384, 480]),
        ("derived/big_8000x6000_one_face.jpg", ["jpeg", 8000, 6000]),
        ("pillow/sugarshack.mpo", ["jpeg", 640, 480]),
        ("pillow/hopper_bigtiff.tif", ["tiff", 128, 128]),
        ("pillow/bmp/g/rgb32bf.bmp", ["bmp", 127, 64]),
        ("pillow/tga/common/1x1_l_tl_rle.tga", ["tga", 1, 1]),
    ],
)
def test_named_files(
    ran: tuple[str, subprocess.CompletedProcess[str]], name: str, expected: str | list[object]
) -> None:
    mode, done = ran
    if mode == "read" and expected == "truncated_image":
        expected = ["jpeg", 384, 480]
    assert json.loads(done.stdout)["outcomes"][name] == expected


def mean_difference(a: np.ndarray, b: np.ndarray) -> float:
    assert a.shape == b.shape
    return float(np.abs(a.astype(int) - b).mean())


@pytest.mark.parametrize(
    ("pattern", "reference", "most"),
    [
        # Different photos of one scene would differ by 40 and more, a turned one by as much; each file was compressed
        # on its own, which costs a few levels.
        ("derived/face_exif_[1-8].jpg", "derived/face_exif_1.jpg", 2),
        ("exif_orientation/Landscape_[0-8].jpg", "exif_orientation/Landscape_1.jpg", 5),
        ("exif_orientation/Portrait_[0-8].jpg", "exif_orientation/Portrait_1.jpg", 5),
        ("pillow/hopper_orientation_*.jpg", "pillow/hopper.jpg", 8),
        ("pillow/hopper_orientation_*.webp", "pillow/hopper.jpg", 8),
        ("pillow/g4_orientation_*.tif", "pillow/g4_orientation_1.tif", 2),
        ("pillow/avif/rot?mir?.avif", "pillow/avif/rot0mir0.avif", 12),
    ],
)
def test_stored_in_every_orientation(awkward: Path, pattern: str, reference: str, most: float) -> None:
    """Fault 1: eight ways to store one picture give the same upright pixels, from a path and from bytes."""
    if pattern.endswith(".avif") and not supported_formats()["avif"]:
        pytest.skip("this Pillow has no AVIF")
    decoder = Decoder()
    expected = decoder.decode(awkward / reference).pixels
    paths = sorted(awkward.glob(pattern))
    assert len(paths) >= 7
    for path in paths:
        image = decoder.decode(path)
        assert mean_difference(image.pixels, expected) < most, path.name
        data = path.read_bytes()
        assert np.array_equal(decoder.decode(EncodedImage(data)).pixels, image.pixels)
        header = probe(data)
        assert (header.width, header.height) == (image.width, image.height)


@pytest.mark.parametrize(
    ("name", "same_as", "most"),
    [
        # The same face in other depths, modes and codecs; what each loses is its tolerance.
        ("derived/face_rgb16.png", "derived/face.bmp", 1),
        ("derived/face_rgba16.png", "derived/face.bmp", 1),
        ("derived/face_rgba.png", "derived/face_png_named.jpg", 0),
        ("derived/face_lossless.webp", "derived/face.bmp", 0),
        ("derived/face_float32.tiff", "derived/face.bmp", 1),
        ("derived/face.tiff", "derived/face.bmp", 0),
        ("derived/face_la.png", "derived/face_gray16.png", 2),
        ("derived/face_cmyk.jpg", "derived/face.bmp", 12),
        ("derived/face_palette.png", "derived/face.bmp", 12),
        ("derived/face.avif", "derived/face.bmp", 6),
        ("derived/face.webp", "derived/face.bmp", 8),
        ("derived/face_anim.gif", "derived/face.bmp", 12),
        ("derived/face_progressive.jpg", "derived/face.bmp", 6),
        ("pillow/tiff_16bit_RGB.tiff", "pillow/tiff_16bit_RGB_target.png", 0),
        ("pillow/16bit.MM.deflate.tif", "pillow/16bit.deflate.tif", 0),
        ("pillow/hopper_be.pfm", "pillow/hopper.pfm", 1),
        ("pillow/hopper.qoi", "pillow/hopper.png", 0),
    ],
)
def test_one_picture_in_many_kinds(awkward: Path, name: str, same_as: str, most: float) -> None:
    """Fault 4: depth, mode and codec do not change the picture."""
    decoder = Decoder()
    assert mean_difference(decoder.decode(awkward / name).pixels, decoder.decode(awkward / same_as).pixels) <= most


@pytest.mark.parametrize("need_px", [640, 1000, 1500, 3000])
def test_reduced_is_the_same_picture(awkward: Path, need_px: int) -> None:
    """Fault 6: the 48 megapixels are not all decoded where fewer do; what is left is the picture, shrunk."""
    import cv2

    path = awkward / "derived/big_8000x6000_one_face.jpg"
    full, small = Decoder().decode(path), Decoder().decode(path, need_px=need_px)
    assert (small.width, small.height) == (8000, 6000)
    assert small.reduced == (4 * need_px <= 8000)
    if not small.reduced:
        assert np.array_equal(small.pixels, full.pixels)
        return
    assert need_px <= max(small.pixels.shape) < 2 * need_px or small.scale == 0.125
    height, width = small.pixels.shape[:2]
    shrunk = cv2.resize(full.pixels, (width, height), interpolation=cv2.INTER_AREA)
    assert mean_difference(small.pixels, shrunk) < 1


@pytest.mark.parametrize("variants", [1000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_fuzz_finds_nothing(awkward: Path, tmp_path: Path, variants: int) -> None:
    """Faults 3 and 5: damaged variants of real files: no crash, no hang, no other exception, nothing on stderr."""
    findings = fuzz_decode.fuzz(awkward, list(range(variants)), seed=variants, kept=tmp_path)
    assert findings.bad == []
    assert findings.outcomes.total() == variants
    assert {"ok", "corrupt_image", "truncated_image", "unsupported_format"} <= set(findings.outcomes)


SABOTAGE = """
import os, sys, time
sys.path.insert(0, {folder!r})
import fuzz_decode

def faulty(number, data):
    if number == 1:
        os.abort()
    if number == 2:
        os.write(2, b"libfoo: bad")
    if number == 3:
        time.sleep(60)
    if number == 4:
        raise ZeroDivisionError("x")
    if number == 5:
        os.write(1, b"printed")
    return "ok"

fuzz_decode.decode_variant = faulty
sys.exit(fuzz_decode.main())
"""


def test_the_fuzzer_sees_what_it_looks_for(tmp_path: Path) -> None:
    """A crash, a remark on stderr or stdout, a hang and a foreign exception each become one finding with its file."""
    corpus, kept, script = tmp_path / "corpus", tmp_path / "kept", tmp_path / "script.py"
    corpus.mkdir()
    kept.mkdir()
    (corpus / "a").write_bytes(bytes(range(200)))
    script.write_text(SABOTAGE.format(folder=str(Path(fuzz_decode.__file__).parent)))
    findings = fuzz_decode.fuzz(corpus, list(range(8)), kept=kept, workers=1, limit_s=3, script=script)
    kinds = {line.split(": ")[0].split()[0]: line for line in findings.bad}
    assert sorted(kinds) == ["1", "2", "3", "4", "5"]
    for number, word in (("1", "crash"), ("2", "stray"), ("3", "hang"), ("4", "ZeroDivisionError"), ("5", "stray")):
        assert word in kinds[number]
    assert findings.outcomes["ok"] == 3
    assert len(list(kept.iterdir())) == 5
