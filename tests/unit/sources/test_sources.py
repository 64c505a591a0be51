"""What a user names, and what becomes of it."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from facefleet.decode import Decoder
from facefleet.errors import ConfigError, SourceError
from facefleet.sources import InputOptions, Inputs, SourceItem
from facefleet.sources.choice import is_picture
from facefleet.sources.order import in_order
from facefleet.types import EncodedImage
from tests.conftest import encode, smooth_picture

JPEG = encode(smooth_picture(), "JPEG")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make(root: Path, *names: str, data: bytes = JPEG) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)


def keys(*paths: str, stdin: bytes = b"", **options: object) -> tuple[list[str], int]:
    inputs = Inputs(paths, InputOptions(**options), stdin=io.BytesIO(stdin))  # type: ignore[arg-type]
    return [item.key for item in inputs], inputs.skipped


def content(item: SourceItem) -> bytes:
    loaded = Decoder().read(item.open())
    assert isinstance(loaded, EncodedImage)
    return loaded.data


def test_folders_in_the_order_of_names_without_hidden_files(here: Path) -> None:
    make(
        here,
        "p/b/2.jpg",
        "p/b/10.JPG",
        "p/a.png",
        "p/b.webp",
        "p/.hidden.jpg",
        "p/.git/x.jpg",
        "p/notes.txt",
        "p/z/q.heic",
    )
    assert keys("p") == (["p/a.png", "p/b/10.JPG", "p/b/2.jpg", "p/b.webp", "p/z/q.heic"], 3)
    assert keys("p/", "--") == (["p/a.png", "p/b/10.JPG", "p/b/2.jpg", "p/b.webp", "p/z/q.heic", "--"], 3)
    assert keys("p", all_files=True) == (
        ["p/a.png", "p/b/10.JPG", "p/b/2.jpg", "p/b.webp", "p/notes.txt", "p/z/q.heic"],
        2,
    )


def test_a_file_without_extension_counts_if_it_begins_like_a_picture(here: Path) -> None:
    """Fault 2: bytes decide where the name says nothing."""
    make(here, "p/picture", "p/IMG.2023")
    make(here, "p/README", data=b"BM is how a bitmap begins")
    make(here, "p/empty", data=b"")
    assert keys("p") == (["p/picture"], 3)


def test_include_and_exclude(here: Path) -> None:
    make(here, "p/a.jpg", "p/b.dat", "p/thumbs/a.jpg", "p/x/thumbs/b.jpg", "p/x/y.jpg", "p/x/.h.dat")
    assert keys("p", exclude=("thumbs",)) == (["p/a.jpg", "p/x/y.jpg"], 4)
    assert keys("p", exclude=("x/*",)) == (["p/a.jpg", "p/thumbs/a.jpg"], 4)
    assert keys("p", include=("*.dat",))[0] == ["p/b.dat"]
    assert keys("p", include=("x/*.jpg",))[0] == ["p/x/thumbs/b.jpg", "p/x/y.jpg"]
    assert keys("p", include=("*.jpg",), exclude=("a.*",))[0] == ["p/x/thumbs/b.jpg", "p/x/y.jpg"]


def test_links_are_followed_once_and_never_in_circles(here: Path) -> None:
    make(here, "p/a/1.jpg", "p/b/2.jpg", "q/3.jpg")
    (here / "p/a/up").symlink_to("..")
    (here / "p/a/b").symlink_to("../b")
    (here / "p/b/a").symlink_to("../a")
    (here / "p/self").symlink_to(".")
    (here / "p/q1").symlink_to("../q")
    (here / "p/q2").symlink_to("../q")
    (here / "p/broken.jpg").symlink_to("nowhere.jpg")
    found, skipped = keys("p")
    assert found == ["p/a/1.jpg", "p/a/b/2.jpg", "p/b/2.jpg", "p/b/a/1.jpg", "p/broken.jpg", "p/q1/3.jpg"]
    assert skipped


def test_a_very_deep_folder(here: Path) -> None:
    """Deeper than Python's stack."""
    path = "p"
    for _ in range(1500):
        Path(path).mkdir()
        path += "/d"
    make(here, "p/e/last.jpg")
    try:
        assert keys("p")[0] == ["p/e/last.jpg"]
    finally:  # neither does pytest's own cleaning get so deep
        for depth in range(1499, 0, -1):
            Path("p" + "/d" * depth).rmdir()


def test_many_names_are_sorted_in_pieces(here: Path) -> None:
    names = [f"{number * 7919 % 1000:04d}\udcff\n" for number in range(1000)]
    for limit in (1, 3, 64, 999, 1000, 1001):
        assert list(in_order(iter(names), in_memory=limit)) == sorted(names)
    assert list(in_order([])) == []


def test_patterns(here: Path) -> None:
    make(here, "p/a.jpg", "p/b.txt", "p/s/c.jpg", "p/.h.jpg", "[x].jpg")
    assert keys("p/*")[0] == ["p/a.jpg", "p/b.txt", "p/s/c.jpg"]
    assert keys("p/**")[0] == ["p/a.jpg", "p/b.txt", "p/s/c.jpg"]
    assert keys("**/*.jpg")[0] == ["[x].jpg", "p/a.jpg", "p/s/c.jpg"]
    assert keys("[x].jpg")[0] == ["[x].jpg"]
    items = list(Inputs(["*.nothing", "p/a.jpg"]))
    with pytest.raises(SourceError, match="matches"):
        content(items[0])


def test_nothing_named_or_nothing_there_is_a_usage_error(here: Path) -> None:
    make(here, "a.jpg")
    for paths in ([], ["gone.jpg"], ["gone/*"], ["@gone.txt"]):
        with pytest.raises(ConfigError) as caught:
            Inputs(paths)
        assert caught.value.hint
    with pytest.raises(ConfigError, match=r"gone\.txt"):
        Inputs(["a.jpg"], InputOptions(lists=("gone.txt",)))
    items = list(Inputs(["gone.jpg", "a.jpg"]))
    with pytest.raises(SourceError, match=r"gone\.jpg"):
        content(items[0])
    assert content(items[1]) == JPEG


def test_what_is_no_regular_file_fails_alone(here: Path) -> None:
    make(here, "a.jpg")
    os.mkfifo(here / "pipe.jpg")
    items = list(Inputs(["pipe.jpg", "/dev/zero", "a.jpg"]))
    for item in items[:2]:
        with pytest.raises(SourceError, match="not a regular file"):
            content(item)
    os.mkfifo(here / "pipe2.jpg")
    assert keys(".")[0] == ["a.jpg"]


def test_a_folder_that_may_not_be_read_fails_alone(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(here, "p/a.jpg", "p/b/c.jpg", "p/d.jpg")
    real = os.scandir

    def scandir(path: str) -> object:  # permissions do not hold for root
        if path == "p/b":
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    items = list(Inputs(["p"]))
    assert [item.key for item in items] == ["p/a.jpg", "p/b", "p/d.jpg"]
    with pytest.raises(SourceError, match="p/b: cannot be listed: Permission denied"):
        content(items[1])


def test_size_and_time_of_files(here: Path) -> None:
    make(here, "p/a.jpg")
    stat = (here / "p/a.jpg").stat()
    for path in ("p", "p/a.jpg"):
        (item,) = Inputs([path])
        assert (item.size_bytes, item.mtime_ns) == (stat.st_size, stat.st_mtime_ns)
        assert content(item) == JPEG


@pytest.mark.parametrize("separator", [b"\n", b"\r\n", b"\0"])
def test_lists(here: Path, separator: bytes) -> None:
    make(here, "a.jpg", "d/b.jpg", "d/caf\u00e9 1.jpg", "gone.jpg")
    names = ["a.jpg", "./a.jpg", "", "d", "na\udcefve.jpg", "#no comment.jpg"]
    (here / "list.txt").write_bytes(separator.join(map(os.fsencode, names)))
    wanted = ["a.jpg", "a.jpg", "d/b.jpg", "d/caf\u00e9 1.jpg", "na\\xefve.jpg", "#no comment.jpg"]
    assert keys("@list.txt")[0] == wanted
    assert keys(lists=("list.txt",))[0] == wanted
    assert keys("-", stdin=(here / "list.txt").read_bytes())[0] == wanted


def test_a_long_list_is_read_in_blocks(here: Path) -> None:
    names = [f"folder/with/a/long/name/{number:06d}.jpg" for number in range(5000)]
    for separator in ("\n", "\0"):
        (here / "list.txt").write_text(separator.join(names) + separator)
        assert keys("@list.txt")[0] == names


def test_a_name_with_nul_in_a_list_of_lines_fails_alone(here: Path) -> None:
    (here / "list.txt").write_bytes(b"x.jpg\n" * 20_000 + b"a\0b.jpg\n")
    *_, last = Inputs(["@list.txt"])
    with pytest.raises(SourceError, match="null"):
        content(last)


def test_a_file_called_at_is_a_file(here: Path) -> None:
    make(here, "@me.jpg")
    assert keys("@me.jpg")[0] == ["@me.jpg"]


def test_one_picture_on_standard_input(here: Path) -> None:
    for name in ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM"):
        data = encode(smooth_picture(), name)
        (item,) = Inputs(["-"], stdin=io.BytesIO(data))
        assert (item.key, item.size_bytes, content(item)) == ("-", len(data), data)
    (one,) = Inputs(["-"], stdin=io.BytesIO(JPEG))
    (other,) = Inputs(["-"], stdin=io.BytesIO(JPEG[:-1] + b"\0"))
    assert one.mtime_ns != other.mtime_ns
    (large,) = Inputs(["-"], InputOptions(max_member_bytes=100), stdin=io.BytesIO(JPEG))
    with pytest.raises(SourceError, match="more than 100 bytes"):
        content(large)


@pytest.mark.parametrize(
    "listed",
    [b"BMW.jpg\nb.jpg", b"P5\n1.jpg\n", b"GIF89a.jpg\nGIF87a.gif\n", b"RIFF.jpg\n", b"qoif.jpg\n", b"a.jpg", b""],
)
def test_a_list_that_begins_like_a_picture_is_a_list(listed: bytes) -> None:
    assert not is_picture(listed[:64])
    assert keys("-", stdin=listed)[0] == [name for name in listed.decode().split("\n") if name]
