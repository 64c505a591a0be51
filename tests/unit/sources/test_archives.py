"""Members of archives: streamed, never extracted, each failing on its own."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import random
import subprocess
import sys
import tarfile
import threading
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from facefleet.errors import FacefleetError, SourceError
from facefleet.sources import InputOptions, Inputs, SourceItem, tars
from tests.conftest import encode, smooth_picture
from tests.unit.sources.test_sources import content

PICTURES = {f"d/{number}.jpg": encode(smooth_picture(seed=number), "JPEG") for number in range(5)}


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return stream.getvalue()


def tarred(members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return stream.getvalue()


def zstd(data: bytes) -> bytes:
    return bytes(pa.compress(data, "zstd", asbytes=True))


KINDS: dict[str, Callable[[dict[str, bytes]], bytes]] = {
    "a.zip": zipped,
    "stored.zip": lambda members: zipped(members, zipfile.ZIP_STORED),
    "a.tar": tarred,
    "a.tar.gz": lambda members: gzip.compress(tarred(members)),
    "a.tgz": lambda members: gzip.compress(tarred(members)),
    "a.tar.bz2": lambda members: bz2.compress(tarred(members)),
    "a.tar.xz": lambda members: lzma.compress(tarred(members)),
    "a.tar.zst": lambda members: zstd(tarred(members)),
}


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def items(path: Path, **options: object) -> list[SourceItem]:
    return list(Inputs([str(path)], InputOptions(**options)))  # type: ignore[arg-type]


def write(path: Path, members: dict[str, bytes]) -> Path:
    path.write_bytes(KINDS[path.name](members))
    return path


def test_members_are_read_as_the_archive_goes_by(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / kind, {"readme.txt": b"text", **PICTURES, "d/noextension": PICTURES["d/0.jpg"]})
    inputs = Inputs([str(path)])
    got = {item.key: content(item) for item in inputs}
    wanted = {**PICTURES, "d/noextension": PICTURES["d/0.jpg"]}
    assert got == {f"{path}!{name}": data for name, data in wanted.items()}
    assert inputs.skipped == 1


def test_members_are_read_again_after_the_archive_has_gone_by(tmp_path: Path, kind: str) -> None:
    """As a retry at the end of a job does."""
    path = write(tmp_path / kind, {**PICTURES, "d/noextension": PICTURES["d/0.jpg"]})
    later = items(path)
    assert [content(item) for item in reversed(later)] == [PICTURES["d/0.jpg"], *reversed(PICTURES.values())]
    assert content(later[2]) == PICTURES["d/2.jpg"]
    assert all(item.size_bytes == len(PICTURES["d/0.jpg"]) for item in (later[0], later[-1]))
    assert {item.mtime_ns for item in later} == {path.stat().st_mtime_ns}


def test_opened_pictures_are_loaded_by_many_threads(tmp_path: Path, kind: str) -> None:
    """Fault 22 for archives: concurrent reads do not mix members."""
    members = {f"{number:03d}.jpg": bytes([number]) * (100 + 37 * number) for number in range(200)}
    path = write(tmp_path / kind, members)
    waiting = [(item.key, item.open()) for item in Inputs([str(path)])]
    wrong: list[str] = []

    def work(seed: int) -> None:
        for key, picture in random.Random(seed).sample(waiting, len(waiting)):
            if picture.load() != members[key.split("!")[1]]:  # type: ignore[union-attr]
                wrong.append(key)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_names_are_data(tmp_path: Path, kind: str) -> None:
    """Fault 48: nothing is written, whatever a member is called; hidden members do not count."""
    evil = ["../../up.jpg", "/etc/passwd.jpg", "a\nb.jpg", "na\u00efve.jpg", "./dot.jpg", "x!y.jpg"]
    hidden = [".hidden.jpg", "__MACOSX/._a.jpg", "d/.x/a.jpg"]
    path = write(tmp_path / kind, dict.fromkeys(evil + hidden, PICTURES["d/0.jpg"]))
    inputs = Inputs([str(path)])
    got = [item.key for item in inputs if content(item) == PICTURES["d/0.jpg"]]
    assert [key.removeprefix(f"{path}!") for key in got] == evil
    assert inputs.skipped == len(hidden)
    assert [entry.name for entry in tmp_path.iterdir()] == [kind]


MEASURED = """
import json, sys, tracemalloc
from facefleet.errors import SourceError
from facefleet.sources import InputOptions, Inputs
from tests.unit.sources.test_sources import content
tracemalloc.start()
results = []
for item in Inputs([sys.argv[1]], InputOptions(**json.loads(sys.argv[2]))):
    try:
        results.append(content(item).decode())
    except SourceError as error:
        results.append(error.message)
print(json.dumps([results, tracemalloc.get_traced_memory()[1]]))
"""


def measured(path: Path, **options: int) -> tuple[list[str], int]:
    """Contents or errors of all members, and the peak of memory, in a process where nothing else runs."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, str(path), json.dumps(options)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=True,
    )
    results, peak = json.loads(done.stdout)
    return results, peak


def test_a_member_over_the_limit_fails_alone(tmp_path: Path, kind: str) -> None:
    """Fault 5 for archives: a bomb is refused by what it claims, and never unpacked."""
    path = write(tmp_path / kind, {"a.jpg": b"small", "bomb.jpg": bytes(30 << 20), "z.jpg": b"small"})
    results, peak = measured(path, max_member_bytes=1 << 20)
    assert results[::2] == ["small", "small"]
    assert "bomb.jpg: unpacks to 31457280 bytes, the limit is 1048576" in str(results[1])
    assert peak < 12 << 20


def test_a_member_that_unpacks_to_more_than_it_claims(tmp_path: Path) -> None:
    data = bytearray(zipped({"a.jpg": bytes(1 << 20), "b.jpg": b"fine"}))
    claim = (1 << 20).to_bytes(4, "little")
    while (at := data.find(claim)) >= 0:
        data[at : at + 4] = (1000).to_bytes(4, "little")
    (tmp_path / "a.zip").write_bytes(data)
    bomb, fine = items(tmp_path / "a.zip")
    with pytest.raises(SourceError, match=r"a\.jpg"):
        content(bomb)
    assert content(fine) == b"fine"


def test_a_header_that_claims_gigabytes_takes_no_memory(tmp_path: Path) -> None:
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 1 << 30
    path = tmp_path / "a.tar.gz"
    with gzip.open(path, "wb", 1) as stream:
        stream.write(tarred({"a.jpg": b"fine"})[:1024] + info.tobuf(tarfile.GNU_FORMAT))
        for _ in range(64):
            stream.write(bytes(1 << 20))
    good, bad = [item.key for item in Inputs([str(path)])]
    assert good.endswith("!a.jpg")
    assert bad == str(path)
    results, peak = measured(path)
    assert results[0] == "fine"
    assert len(results) == 2
    assert peak < 12 << 20


def test_an_encrypted_member_fails_alone(tmp_path: Path) -> None:
    data = bytearray(zipped({"a.jpg": b"secret", "b.jpg": b"fine"}, zipfile.ZIP_STORED))
    data[6] |= 1  # flag of the first local header, and of the first central one
    data[data.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "a.zip").write_bytes(data)
    secret, fine = items(tmp_path / "a.zip")
    with pytest.raises(SourceError, match=r"a\.jpg.*(encrypted|password)"):
        content(secret)
    assert content(fine) == b"fine"


def test_a_damaged_member_fails_alone(tmp_path: Path) -> None:
    for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA, zipfile.ZIP_STORED):
        data = bytearray(zipped({"a.jpg": random.Random(1).randbytes(5000), "b.jpg": b"fine"}, method))
        data[100:200] = b"\xee" * 100
        (tmp_path / "a.zip").write_bytes(data)
        damaged, fine = items(tmp_path / "a.zip")
        with pytest.raises(SourceError, match=r"a\.jpg"):
            content(damaged)
        assert content(fine) == b"fine"


def test_an_archive_that_is_cut_off_or_damaged_says_so(tmp_path: Path, kind: str) -> None:
    """Members that could be read are read; the rest is a failure of the archive, not silence."""
    members = {f"{number}.jpg": random.Random(number).randbytes(20_000) for number in range(20)}
    whole = write(tmp_path / kind, members).read_bytes()
    for name, data in {
        "cut": whole[: len(whole) // 2],
        "empty": b"",
        "garbage": b"not an archive" * 100,
        "hole": whole[: len(whole) // 2] + b"\xaa" * 2000 + whole[len(whole) // 2 + 2000 :],
    }.items():
        (tmp_path / kind).write_bytes(data)
        good, failed = 0, []
        for item in Inputs([str(tmp_path / kind)]):
            try:
                good += content(item) == members[item.key.split("!")[1]]
            except SourceError:
                failed.append(item.key)
        # A plain tar has no checksum of contents: there the decoder has to notice.
        assert failed or (name, kind) == ("hole", "a.tar"), name
        if name in ("empty", "garbage"):
            assert (good, failed) == (0, [str(tmp_path / kind)])
        elif name == "cut" and kind in ("a.tar", "a.tar.gz", "a.tgz", "a.tar.zst"):
            assert good >= 5


def test_a_tar_with_garbage_where_a_header_should_be(tmp_path: Path) -> None:
    data = bytearray(tarred({"a.jpg": b"fine", "b.jpg": b"lost"}))
    data[1024:1536] = b"\xaa" * 512
    (tmp_path / "a.tar").write_bytes(data)
    fine, rest = items(tmp_path / "a.tar")
    assert content(fine) == b"fine"
    with pytest.raises(SourceError, match="damaged at byte 1024"):
        content(rest)


def test_a_tar_without_end_blocks_is_whole(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(tarred({"a.jpg": b"fine"})[:1024])
    assert [content(item) for item in items(tmp_path / "a.tar")] == [b"fine"]


def test_links_in_a_tar_are_left_out_and_counted(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for kind_, name in ((tarfile.SYMTYPE, "link.jpg"), (tarfile.LNKTYPE, "hard.jpg"), (tarfile.DIRTYPE, "d")):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind_, "/etc/passwd"
            archive.addfile(info)
    inputs = Inputs([str(tmp_path / "a.tar")])
    assert list(inputs) == []
    assert inputs.skipped == 2


def test_fuzzed_archives_never_raise_anything_foreign(tmp_path: Path, kind: str) -> None:
    members = {f"{number}.jpg": random.Random(number).randbytes(300) for number in range(6)}
    whole = write(tmp_path / kind, members).read_bytes()
    dice = random.Random(5)
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(dice.randrange(1, 12)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        (tmp_path / kind).write_bytes(data)
        for item in Inputs([str(tmp_path / kind)]):
            item.key.encode()
            try:
                content(item)
            except FacefleetError:
                continue


def test_many_archives_do_not_stay_open(tmp_path: Path) -> None:
    import psutil

    for number in range(60):
        (tmp_path / f"{number}.zip").write_bytes(zipped(PICTURES))
    process = psutil.Process()
    before = process.num_fds()
    held = [(item, content(item)) for path in sorted(tmp_path.iterdir()) for item in items(path)]
    assert len(held) == 300
    assert process.num_fds() <= before + 2
    assert content(held[0][0]) == PICTURES["d/0.jpg"]


def test_large_members_of_compressed_tars_wait_on_disk(tmp_path: Path) -> None:
    big = random.Random(0).randbytes(6 << 20)
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(tarred({f"{number}.jpg": big for number in range(8)}), 1))
    tracemalloc.start()
    waiting = [item.open() for item in Inputs([str(path)])]
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held < 8 << 20
    assert all(picture.load() == big for picture in waiting)  # type: ignore[union-attr]


@pytest.mark.parametrize("member_bytes", [1 << 16, 1 << 20, (1 << 20) + 512, 8192, 512, 1000])
def test_a_compressed_tar_is_unpacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, member_bytes: int) -> None:
    """The steps back that tarfile makes do not start a decompressor all over."""
    starts = []
    original = tars._Zstd._start
    monkeypatch.setattr(tars._Zstd, "_start", lambda self: (starts.append(1), original(self))[1])
    data = random.Random(0).randbytes(member_bytes)
    (tmp_path / "a.tar.zst").write_bytes(zstd(tarred({f"{number}.jpg": data for number in range(7)})))
    assert all(content(item) == data for item in Inputs([str(tmp_path / "a.tar.zst")]))
    assert len(starts) == 1
