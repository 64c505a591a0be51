"""Verified downloads: resumed, checked, and only then visible under their name.

Owns the network and temporary files. Refuses a byte that does not match the manifest. Safe with several processes:
a lock file serializes those that want the same file.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import shutil
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from facefleet.errors import DigestError, DownloadError
from facefleet.packs.manifest import ModelFile

Progress = Callable[[str, int, int | None], None]
"""Called with file name, bytes so far, and bytes in all where known."""

_CHUNK_BYTES = 1 << 20
_TIMEOUT_S = 30.0
_ATTEMPTS = 4
_MAX_MEMBER_BYTES = 4 << 30


def digest(path: Path) -> str:
    """sha256 of a file, hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def install(file: ModelFile, target: Path, archives: Path, *, progress: Progress | None = None) -> None:
    """Put a downloaded file in place.

    Args:
        file: Its manifest entry, with a `url`.
        target: Where it goes; its folder is made.
        archives: Folder where archives lie while their members are taken out.
        progress: Told how far it is.

    Raises:
        DownloadError: It cannot be fetched; says where to put it by hand.
        DigestError: What came is not what the manifest promises.
    """
    assert file.url is not None
    with locked(target.parent / f"{target.name}.lock"):
        if target.exists() and (file.sha256 is None or digest(target) == file.sha256):
            return
        if file.member is None:
            part = target.with_name(f"{target.name}.part")
            _download(file.url, part, target, file.sha256, file.size, progress)
            publish(part, target)
            return
        archives.mkdir(parents=True, exist_ok=True)
        archive = archives / Path(file.url).name
        if not (archive.exists() and (file.archive_sha256 is None or digest(archive) == file.archive_sha256)):
            part = archive.with_name(f"{archive.name}.part")
            _download(file.url, part, archive, file.archive_sha256, file.archive_size, progress)
            publish(part, archive)
        _extract(archive, file, target)


def publish(part: Path, target: Path) -> None:
    """Make a finished file durable and visible in one step."""
    with part.open("rb+") as stream:
        os.fsync(stream.fileno())
    part.replace(target)
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable, where the system can."""
    if hasattr(os, "O_DIRECTORY"):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file; other processes that want it wait. It is let go when the process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as stream:
        try:
            import fcntl

            fcntl.flock(stream, fcntl.LOCK_EX)
        except ImportError:  # Windows: two installs at a time are then the user's to avoid
            pass
        yield


def _download(
    url: str, part: Path, final: Path, sha256: str | None, size: int | None, progress: Progress | None
) -> None:
    by_hand = f"to install it by hand put the file at {final} (sha256 {sha256 or 'not published'})"
    for attempt in range(_ATTEMPTS):
        try:
            _fetch(url, part, final.name, size, progress)
            break
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
                part.unlink(missing_ok=True)  # what is there is longer than the file: start again
            elif error.code < http.client.INTERNAL_SERVER_ERROR or attempt == _ATTEMPTS - 1:
                raise DownloadError(f"{url}: HTTP {error.code}", hint=by_hand) from error
        except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
            reason = getattr(error, "reason", error)
            if isinstance(error, urllib.error.URLError) or attempt == _ATTEMPTS - 1:
                raise DownloadError(f"{url}: {reason}", hint=f"try again when online; {by_hand}") from error
    got = part.stat().st_size
    if size is not None and got != size:
        part.unlink()
        raise DigestError(f"{url}: {got} bytes, the manifest says {size}", hint=by_hand)
    if sha256 is not None and (found := digest(part)) != sha256:
        part.unlink()
        raise DigestError(f"{url}: sha256 {found}, the manifest says {sha256}", hint=by_hand)


def _fetch(url: str, part: Path, name: str, size: int | None, progress: Progress | None) -> None:
    """Append what is missing of `url` to `part`."""
    have = part.stat().st_size if part.exists() else 0
    if size is not None and have == size:
        return
    request = urllib.request.Request(url, headers={"User-Agent": "facefleet"})  # noqa: S310  # manifests name the URL
    if have:
        request.add_header("Range", f"bytes={have}-")
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:  # noqa: S310  # as above
        if have and response.status != http.client.PARTIAL_CONTENT:
            have = 0  # the server starts from the beginning
        length = response.headers.get("Content-Length")
        total = size or (have + int(length) if length else None)
        with part.open("ab" if have else "wb") as stream:
            while chunk := response.read(_CHUNK_BYTES):
                stream.write(chunk)
                have += len(chunk)
                if size is not None and have > size:
                    return  # the size check refuses it
                if progress is not None:
                    progress(name, have, total)
        if total is not None and have < total:
            raise http.client.IncompleteRead(b"", total - have)


def _extract(archive: Path, file: ModelFile, target: Path) -> None:
    assert file.member is not None
    part = target.with_name(f"{target.name}.part")
    try:
        with zipfile.ZipFile(archive) as members:
            # Some archives hold everything in a folder of their own name; the digest tells whether it is the file.
            ends = (file.member, f"/{file.member}")
            info = next((i for i in members.infolist() if i.filename == ends[0] or i.filename.endswith(ends[1])), None)
            if info is None:
                names = ", ".join(i.filename for i in members.infolist()[:10])
                raise DigestError(f"{archive}: has no member {file.member}", hint=f"it has {names}")
            limit = file.size or _MAX_MEMBER_BYTES
            if info.file_size > limit:
                raise DigestError(f"{archive}: {file.member} unpacks to {info.file_size} bytes, more than {limit}")
            with members.open(info) as source, part.open("wb") as stream:
                shutil.copyfileobj(source, stream, _CHUNK_BYTES)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise DigestError(
            f"{archive}: not a usable zip archive ({error})", hint="delete it and install again"
        ) from error
    if file.sha256 is not None and (found := digest(part)) != file.sha256:
        part.unlink()
        raise DigestError(f"{archive}: {file.member} has sha256 {found}, the manifest says {file.sha256}")
    publish(part, target)
