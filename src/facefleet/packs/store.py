"""The store: which packs there are, which files are here, and that they are the right ones.

Owns the folder layout: ``files/<digest>/<name>`` for downloads, ``packs/<name>/`` for packs of one's own,
``accepted.json`` for licences. Runs in the caller's thread; safe with several processes.
"""

from __future__ import annotations

import datetime
import difflib
import importlib.metadata
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

from facefleet.errors import DigestError, LicenseRequiredError, ManifestError, PackError, PackNotFoundError
from facefleet.packs.fetch import Progress, digest, install, locked, publish
from facefleet.packs.manifest import DetectorSpec, EmbedderSpec, LocatedManifest, Manifest, ModelFile, dump, parse


@dataclass(frozen=True, slots=True)
class FileStatus:
    """One file of a pack.

    Attributes:
        role: ``detector`` or ``embedder``.
        name: File name.
        path: Where it is, or would be.
        state: ``ok``, ``missing`` or ``wrong digest``.
    """

    role: str
    name: str
    path: Path
    state: str


@dataclass(frozen=True, slots=True)
class PackStatus:
    """A pack and whether it can be used now.

    Attributes:
        manifest: The pack.
        installed: Whether every file is here.
        accepted: Whether its licence needs no acceptance or has been accepted.
    """

    manifest: Manifest
    installed: bool
    accepted: bool


class Store:
    """Packs and their files.

    Args:
        home: The folder; default: facefleet's folder in the user's cache.
    """

    def __init__(self, home: Path | None = None) -> None:
        self.home = home or default_home()

    def names(self) -> list[str]:
        """Names of all packs, built-in ones first."""
        own = sorted(path.parent.name for path in (self.home / "packs").glob("*/manifest.toml"))
        return [*_builtin(), *own]

    def manifest(self, name: str) -> LocatedManifest:
        """The manifest of a pack.

        Args:
            name: A pack's name, or the path of a ``.toml`` manifest.

        Raises:
            PackNotFoundError: There is none.
            ManifestError: It cannot be used.
        """
        if name.endswith(".toml"):
            path = Path(name)
            if not path.is_file():
                raise PackNotFoundError(f"{path}: no such manifest", hint="give a pack's name or a .toml file")
            return LocatedManifest(parse(path.read_text(), origin=name), path.resolve().parent)
        if name in _builtin():
            text = (resources.files("facefleet.packs") / "builtin" / f"{name}.toml").read_text()
            return LocatedManifest(parse(text, origin=name), None)
        own = self.home / "packs" / name / "manifest.toml"
        if "/" not in name and name not in ("", ".", "..") and own.is_file():
            return LocatedManifest(parse(own.read_text(), origin=str(own)), own.parent)
        close = difflib.get_close_matches(name, self.names(), n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise PackNotFoundError(f"there is no pack {name!r}", hint=f"{hint}packs: {', '.join(self.names())}")

    def status(self, name: str) -> PackStatus:
        """Whether a pack can be used now; digests are trusted where they were checked before."""
        located = self.manifest(name)
        files = [self._find(located, spec.source) for spec in (located.manifest.detector, located.manifest.embedder)]
        return PackStatus(located.manifest, all(path is not None for path in files), self._accepted(located.manifest))

    def install(self, name: str, *, accept_license: bool = False, progress: Progress | None = None) -> None:
        """Fetch what is missing of a pack.

        Raises:
            LicenseRequiredError: Its licence forbids commercial use and has not been accepted.
            DownloadError: A file cannot be fetched.
            DigestError: A file is not the one promised.
        """
        located = self.manifest(name)
        manifest = located.manifest
        if not self._accepted(manifest):
            if not accept_license:
                raise LicenseRequiredError(
                    f"pack {manifest.name} is under {manifest.license!r}: no commercial use",
                    hint=f"facefleet models install {manifest.name} --accept-license",
                )
            self._accept(manifest)
        archives = self.home / "archives"
        for spec in (manifest.detector, manifest.embedder):
            if self._find(located, spec.source) is None:
                file = next((file for file in spec.source if file.url), None)
                if file is None:
                    raise self._absent(located, spec.source)
                install(file, self._path(located, file), archives, progress=progress)
        for spec in (manifest.detector, manifest.embedder):
            for file in spec.source:
                if file.member is not None and file.url is not None:
                    (archives / Path(file.url).name).unlink(missing_ok=True)

    def locate(self, located: LocatedManifest, source: Sequence[ModelFile]) -> Path:
        """The verified file of a pack, ready to read.

        Args:
            located: The pack.
            source: The entries of one of its models, in order of preference.

        Raises:
            LicenseRequiredError: The licence has not been accepted.
            PackError: No file is here; says how to get it.
            DigestError: The file is not the one promised.
        """
        if not self._accepted(located.manifest):
            raise LicenseRequiredError(
                f"pack {located.manifest.name} is under {located.manifest.license!r}: no commercial use",
                hint=f"facefleet models install {located.manifest.name} --accept-license",
            )
        path = self._find(located, source)
        if path is None:
            raise self._absent(located, source)
        return path

    def verify(self, name: str) -> list[FileStatus]:
        """Read every file of a pack and compare its digest."""
        located = self.manifest(name)
        report = []
        for role, spec in (("detector", located.manifest.detector), ("embedder", located.manifest.embedder)):
            candidates = [(file, self._path(located, file)) for file in spec.source]
            here = next(((file, path) for file, path in candidates if path.is_file()), None)
            if here is None:
                report.append(FileStatus(role, spec.source[0].file, candidates[0][1], "missing"))
                continue
            file, path = here
            good = file.sha256 is None or digest(path) == file.sha256
            report.append(FileStatus(role, file.file, path, "ok" if good else "wrong digest"))
        return report

    def add(self, path: Path) -> str:
        """Copy a pack of one's own into the store.

        Args:
            path: Its manifest; `file` entries are relative to it.

        Returns:
            The name it is used under.

        Raises:
            ManifestError: It has a built-in pack's name, or cannot be used.
            PackError: One of its files is missing.
            DigestError: One of its files is not the one promised.
        """
        located = self.manifest(str(path))
        name = located.manifest.name
        if name in _builtin():
            raise ManifestError(f"{path}: {name} is the name of a built-in pack", hint="choose another name")
        target = self.home / "packs" / name
        with locked(self.home / "packs" / f"{name}.lock"):
            target.mkdir(parents=True, exist_ok=True)
            manifest = replace(
                located.manifest,
                detector=replace(
                    located.manifest.detector, source=self._copied(located, located.manifest.detector, target)
                ),
                embedder=replace(
                    located.manifest.embedder, source=self._copied(located, located.manifest.embedder, target)
                ),
            )
            part = target / "manifest.toml.part"
            part.write_text(dump(manifest))
            publish(part, target / "manifest.toml")
        return name

    def _copied(
        self, located: LocatedManifest, spec: DetectorSpec | EmbedderSpec, target: Path
    ) -> tuple[ModelFile, ...]:
        """The source of a model, its own file copied to `target` and its digest noted."""
        if spec.source[0].url or spec.source[0].package:
            return spec.source
        source = self.locate(located, spec.source[:1])
        part = target / f"{source.name}.part"
        part.write_bytes(source.read_bytes())
        publish(part, target / source.name)
        return (ModelFile(file=source.name, sha256=digest(target / source.name), size=source.stat().st_size),)

    def _path(self, located: LocatedManifest, file: ModelFile) -> Path:
        if file.package is not None:
            return _package_file(file)
        if file.url is not None:
            return self.home / "files" / (file.sha256 or file.archive_sha256 or "unverified")[:16] / file.file
        if located.folder is None:
            return self.home / "files" / located.manifest.name / file.file
        return located.folder / file.file

    def _find(self, located: LocatedManifest, source: Sequence[ModelFile]) -> Path | None:
        for file in source:
            path = self._path(located, file)
            if path.is_file():
                if file.sha256 is not None and self.digest(path) != file.sha256:
                    raise DigestError(
                        f"{path}: is not the file that pack {located.manifest.name} promises",
                        hint=f"delete it; expected sha256 {file.sha256}",
                    )
                return path
        return None

    def digest(self, path: Path) -> str:
        """The digest of a file, remembered by its size and time of change."""
        stat = path.stat()
        known = self.home / "digests.json"
        key = f"{path.resolve()}:{stat.st_size}:{stat.st_mtime_ns}"
        table = _read_json(known)
        if key not in table:
            table = {**_read_json(known), key: digest(path)}
            _write_json(known, table)
        return str(table[key])

    def _absent(self, located: LocatedManifest, source: Sequence[ModelFile]) -> PackError:
        manifest = located.manifest
        wanted = "; or ".join(
            f"{self._path(located, file)}" + (f" (from {file.url}, sha256 {file.sha256})" if file.url else "")
            for file in source
            if file.package is None
        )
        if any(file.url for file in source):
            hint = f"facefleet models install {manifest.name}; by hand: {wanted}"
        else:
            hint = f"put the file there: {wanted}" if wanted else f"pip install {source[0].package}"
        return PackError(f"pack {manifest.name}: {source[0].file} is not installed", hint=hint)

    def _accepted(self, manifest: Manifest) -> bool:
        return manifest.commercial_use or manifest.name in _read_json(self.home / "accepted.json")

    def _accept(self, manifest: Manifest) -> None:
        file = self.home / "accepted.json"
        when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        with locked(self.home / "accepted.lock"):
            _write_json(file, {**_read_json(file), manifest.name: {"license": manifest.license, "accepted": when}})


def default_home() -> Path:
    """Facefleet's folder in the user's cache: $FACEFLEET_HOME, else the platform's."""
    if os.environ.get("FACEFLEET_HOME"):
        return Path(os.environ["FACEFLEET_HOME"])
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "facefleet"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home())) / "facefleet"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "facefleet"


def _builtin() -> list[str]:
    folder = resources.files("facefleet.packs") / "builtin"
    names = sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))
    return sorted(names, key=lambda name: name != "opencv")


def _package_file(file: ModelFile) -> Path:
    """Where an installed distribution has a file, found without importing it."""
    assert file.package is not None
    assert file.member is not None
    name, _, version = file.package.partition("==")
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return Path(f"<{file.package} is not installed>")
    if distribution.version != version:
        return Path(f"<{name} {distribution.version} is installed instead of {version}>")
    return Path(str(distribution.locate_file(file.member)))


def _read_json(path: Path) -> dict[str, object]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _write_json(path: Path, content: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text(json.dumps(content, indent=1))
    publish(part, path)
