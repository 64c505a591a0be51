"""Chips and annotated copies: what they hold, and what their names can and cannot do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image as PILImage

from facefleet.decode import Decoder
from facefleet.errors import OutputError, SourceError
from facefleet.sinks import ChipsSink, DrawSink
from facefleet.sinks.files import safe_name
from facefleet.types import DeferredImage, EncodedImage
from tests.conftest import encode, smooth_picture
from tests.unit.jobs.fake import faces_of

EVIL = [
    "..",
    ".",
    "",
    "/",
    "../../etc/passwd",
    "/etc/passwd",
    "a.zip!../../up.jpg",
    "C:\\Windows\\win.ini",
    "..\\..\\up.jpg",
    "nul\0byte.jpg",
    "line\nend.jpg",
    "-rf",
    ".hidden",
    "CON",
    "x" * 5000,
    "\u732b" * 300,
    "\u202egpj.exe",
    "a/b.jpg",
    "a_b.jpg",
    "A/B.JPG",
    "b.jpg",
    "c/b.jpg",
]


def test_names_are_safe_and_never_collide() -> None:
    """Fault 48."""
    names = [safe_name(key) for key in EVIL]
    assert len({name.lower() for name in names}) == len(EVIL)
    for name in names:
        assert name == Path(name).name
        assert name.isascii()
        assert len(name) < 100
        assert name[0] not in ".-" or name[0] == "-"
        assert not set(name) & set('/\\:*?"<>|\0\n')
    assert safe_name("d/photo 1.jpg") == safe_name("d/photo 1.jpg")
    assert safe_name("d/photo 1.jpg").startswith("photo_1.jpg-")


def test_nothing_is_written_outside_the_folder(tmp_path: Path) -> None:
    """Fault 48: chips of evil names."""
    folder = tmp_path / "out" / "chips"
    sink = ChipsSink(folder)
    faces = faces_of("", b"7", chips=True, count=1)
    good = int((faces.status == 0).sum())
    for key in EVIL:
        sink.write(key, b"", faces)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == len(EVIL) * good > 0
    assert {path.parent for path in files} == {folder}


def test_chips_are_the_aligned_faces_without_loss(tmp_path: Path) -> None:
    faces = faces_of("", b"many", chips=True, count=40)
    assert faces.chips is not None
    sink = ChipsSink(tmp_path)
    sink.write("a/b.jpg", b"", faces)
    good = np.flatnonzero(faces.status == 0)
    assert 0 < len(good) < 40
    assert {path.name for path in tmp_path.iterdir()} == {f"{safe_name('a/b.jpg')}-{index}.png" for index in good}
    for index in good:
        pixels = np.asarray(PILImage.open(tmp_path / f"{safe_name('a/b.jpg')}-{index}.png"))
        assert (pixels == faces.chips[index]).all()
    sink.remove("a/b.jpg", 40)
    assert list(tmp_path.iterdir()) == []


def test_copies_are_drawn_upright(tmp_path: Path) -> None:
    """Fault 1: boxes refer to the upright picture, and so does the copy."""
    exif = PILImage.Exif()
    exif[0x0112] = 6
    data = encode(smooth_picture(480, 640), "JPEG", exif=exif)
    sink = DrawSink(tmp_path, Decoder())
    faces = faces_of("", b"x", count=2)
    sink.write("a.jpg", EncodedImage(data, "a.jpg"), faces)
    (copy,) = tmp_path.iterdir()
    with PILImage.open(copy) as opened:
        assert (opened.format, opened.size) == ("JPEG", (480, 640))
        assert 0x0112 not in opened.getexif()
    sink.write("none.jpg", EncodedImage(data, "none.jpg"), faces_of("", b"x", count=0))
    assert list(tmp_path.iterdir()) == [copy]
    sink.remove("a.jpg", 2)
    assert list(tmp_path.iterdir()) == []


def test_a_picture_that_is_gone_is_its_own_fault(tmp_path: Path) -> None:
    def gone() -> bytes:
        raise FileNotFoundError(2, "No such file")

    sink = DrawSink(tmp_path, Decoder())
    with pytest.raises(SourceError):
        sink.write("a.jpg", DeferredImage("a.jpg", gone), faces_of("", b"x", count=1))


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="file"):
        ChipsSink(tmp_path / "file" / "chips")
    sink = ChipsSink(tmp_path / "chips")
    (tmp_path / "chips").rmdir()
    with pytest.raises(OutputError) as caught:
        sink.write("a", b"", faces_of("", b"7", chips=True, count=8))
    assert caught.value.hint
