"""The galleries that a server holds: found and made under one folder, searched by many callers at once.

Owns the folder and what is open in it. Ids are opaque and are the only part of a request that gets near a path; they
have no dot and no slash, and what they name is checked again after resolving. Names of people and of galleries, and
names of files, are data. Blocking: coroutines here hand the work to a few threads of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import re
import secrets
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from facefleet.errors import (
    ConfigError,
    FacefleetError,
    GalleryBusyError,
    GalleryNotFoundError,
    GalleryWriteError,
    NotFoundError,
    RequestError,
)
from facefleet.gallery import Decision, Gallery, Match, Person, PipelineIdentity, Sample, SearchQueue
from facefleet.gallery.database import FILE
from facefleet.gallery.enrol import Choice, EnrolItem, EnrolResult, enrol_pictures
from facefleet.server.computed import Computed
from facefleet.types import F32Array, Faces, Outcome

T = TypeVar("T")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_NAMES = ".names"
_MAX_NAME = 200
_THREADS = 4
_LEAVE_S = 10.0


@dataclass(slots=True)
class _Opened:
    gallery: Gallery
    searches: SearchQueue
    users: int = 0
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class GalleryFacts:
    """What a gallery is: `id` opaque, `name` data, how many people and samples, and what made its embeddings."""

    id: str
    name: str
    people: int
    samples: int
    dimension: int
    fingerprint: str
    index: str
    keep_chips: bool


class Galleries:
    """See this module.

    Args:
        root: The folder; None: this server has no galleries.
    """

    def __init__(self, root: Path | None) -> None:
        self._root = None if root is None else root.resolve()
        self._opened: dict[str, _Opened] = {}
        self._changed = threading.Condition()
        self._threads = ThreadPoolExecutor(_THREADS, "facefleet-gallery")

    def close(self) -> None:
        """Close what is open; nothing may be asked any more."""
        self._threads.shutdown()
        for opened in self._opened.values():
            opened.searches.close()
            opened.gallery.close()
        self._opened.clear()

    async def run(self, work: Callable[..., T], *arguments: object, **options: object) -> T:
        """Call a method of this object in one of its threads."""
        call = functools.partial(work, *arguments, **options)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def ids(self) -> list[str]:
        """Which galleries there are."""
        root = self._folder()
        return sorted(path.name for path in root.iterdir() if _ID.fullmatch(path.name) and (path / FILE).is_file())

    def facts(self, gallery: str) -> GalleryFacts:
        """What a gallery is.

        Raises:
            GalleryNotFoundError: There is none.
        """
        with self._using(gallery) as opened:
            header, (people, samples) = opened.gallery.header, opened.gallery.counts()
            return GalleryFacts(
                gallery,
                self._name(gallery),
                people,
                samples,
                header.pipeline.dimension,
                header.pipeline.fingerprint,
                str(header.index.get("kind", "flat")),
                header.keep_chips,
            )

    def all(self) -> list[GalleryFacts]:
        """All of them; those that were deleted meanwhile are left out."""
        found = []
        for each in self.ids():
            with contextlib.suppress(GalleryNotFoundError):
                found.append(self.facts(each))
        return found

    def create(self, name: str, pipeline: PipelineIdentity, *, index: str, keep_chips: bool) -> GalleryFacts:
        """Make an empty one.

        Raises:
            RequestError: The name or the index cannot be used.
        """
        if not name.strip() or len(name) > _MAX_NAME:
            raise RequestError("a gallery needs a name", hint=f"1 to {_MAX_NAME} characters")
        root = self._folder()
        gallery = secrets.token_hex(8)
        try:
            Gallery.create(root / gallery, pipeline, index=index, keep_chips=keep_chips).close()
        except ConfigError as error:
            raise RequestError(error.message, hint=error.hint) from error
        try:
            (root / _NAMES).mkdir(exist_ok=True)
            (root / _NAMES / gallery).write_text(json.dumps(name))
        except OSError as error:
            raise GalleryWriteError(f"the name cannot be written: {error.strerror}", hint="check the disk") from error
        return self.facts(gallery)

    def delete(self, gallery: str) -> None:
        """Remove one with everybody in it.

        Raises:
            GalleryNotFoundError: There is none.
            GalleryBusyError: It is in use.
        """
        folder = self._path(gallery)
        with self._changed:
            opened = self._opened.get(gallery)
            if opened is not None:
                opened.leaving = True
                if not self._changed.wait_for(lambda: opened.users == 0, _LEAVE_S):
                    opened.leaving = False
                    raise GalleryBusyError("the gallery is in use", hint="try again in a moment")
                del self._opened[gallery]
        if opened is not None:
            opened.searches.close()
            opened.gallery.close()
        gone = folder.with_name(f".deleted-{gallery}-{secrets.token_hex(4)}")
        try:
            folder.rename(gone)
            shutil.rmtree(gone)
            (self._folder() / _NAMES / gallery).unlink(missing_ok=True)
        except OSError as error:
            raise GalleryWriteError(f"cannot be removed: {error.strerror}", hint="check permissions") from error

    def people(
        self, gallery: str, where: Mapping[str, Any] | None, offset: int, limit: int
    ) -> tuple[int, list[Person]]:
        """How many there are, and some of them.

        Raises:
            RequestError: `where` makes no sense.
        """
        with self._using(gallery) as opened:
            found = opened.gallery.people(where)
            return len(found), found[offset : offset + limit]

    def person(self, gallery: str, who: int) -> tuple[Person, list[Sample]]:
        """Somebody and their faces."""
        with self._using(gallery) as opened:
            return opened.gallery.person(who), opened.gallery.samples(who)

    def add(self, gallery: str, name: str, metadata: Mapping[str, Any] | None, fingerprint: str) -> Person:
        """Somebody new, without a face yet."""
        with self._using(gallery) as opened:
            number, _ = opened.gallery.enrol(name, [], fingerprint=fingerprint, metadata=metadata, new=True)
            return opened.gallery.person(number)

    def update(self, gallery: str, who: int, name: str | None, metadata: Mapping[str, Any] | None) -> Person:
        """Another name, other metadata."""
        with self._using(gallery) as opened:
            if name is not None:
                opened.gallery.rename(who, name)
            if metadata is not None:
                opened.gallery.update(who, metadata)
            return opened.gallery.person(who)

    def erase(self, gallery: str, who: int) -> dict[str, int]:
        """Remove somebody everywhere; says what was removed and how many files were searched for traces."""
        with self._using(gallery) as opened:
            erased = opened.gallery.erase(who)
            return {"person": who, "samples": erased.samples, "files_scanned": erased.files_scanned}

    def remove_sample(self, gallery: str, who: int, sample: int) -> None:
        """Remove one face of somebody."""
        with self._using(gallery) as opened:
            opened.gallery.remove_samples(who, [sample])

    def enrol(
        self,
        gallery: str,
        who: int | str,
        pictures: Sequence[tuple[str, bytes]],
        outcomes: Sequence[Outcome[Faces]],
        *,
        fingerprint: str,
        metadata: Mapping[str, Any] | None,
        face: Choice,
    ) -> list[EnrolResult]:
        """Store a face of each picture; `outcomes` are their faces, with chips where the gallery keeps them."""
        from facefleet.types import EncodedImage

        with self._using(gallery) as opened:
            # A name is never a path here: a later `reembed` must not read files that callers named.
            items = [EnrolItem(who, f"upload:{name}", EncodedImage(data, name), metadata) for name, data in pictures]
            engine = Computed(outcomes, fingerprint, opened.gallery.header.pipeline.dimension)
            return list(enrol_pictures(opened.gallery, engine, items, face=face))

    def verify(self, gallery: str, who: int, vector: F32Array, fingerprint: str, threshold: float | None) -> Decision:
        """Whether this is that person."""
        with self._using(gallery) as opened:
            return opened.gallery.verify(vector, who, fingerprint=fingerprint, threshold=threshold)

    async def search(
        self,
        gallery: str,
        vectors: Sequence[F32Array],
        *,
        fingerprint: str,
        k: int,
        threshold: float | None,
        where: Mapping[str, Any] | None,
    ) -> list[list[Match]]:
        """Who these are; searches of all callers share batches."""
        using = self._using(gallery)
        opened = await self.run(using.__enter__)
        try:
            futures = [
                opened.searches.submit(vector, fingerprint=fingerprint, k=k, threshold=threshold, where=where)
                for vector in vectors
            ]
            return list(await asyncio.gather(*(asyncio.wrap_future(future) for future in futures)))
        except ConfigError as error:
            raise RequestError(error.message, hint=error.hint) from error
        finally:
            using.__exit__(None, None, None)

    @contextlib.contextmanager
    def _using(self, gallery: str) -> Iterator[_Opened]:
        """The gallery, open, and not closed or deleted inside the block."""
        folder = self._path(gallery)
        with self._changed:
            opened = self._opened.get(gallery)
            if opened is None:
                found = Gallery.open(folder, actor="server")
                opened = self._opened[gallery] = _Opened(found, SearchQueue(found))
            if opened.leaving:
                raise GalleryNotFoundError("the gallery is being deleted")
            opened.users += 1
        try:
            yield opened
        except ConfigError as error:
            raise RequestError(error.message, hint=error.hint) from error
        finally:
            with self._changed:
                opened.users -= 1
                self._changed.notify_all()

    def _folder(self) -> Path:
        if self._root is None:
            raise NotFoundError("this server has no galleries", hint="facefleet serve --galleries FOLDER")
        return self._root

    def _path(self, gallery: str) -> Path:
        """The folder of a gallery.

        Raises:
            GalleryNotFoundError: There is none.
        """
        root = self._folder()
        unknown = GalleryNotFoundError("no such gallery", hint="GET /v1/galleries lists them")
        if not _ID.fullmatch(gallery):
            raise unknown
        folder = root / gallery
        if folder.resolve() != folder or not (folder / FILE).is_file():  # a link out of the folder is none of ours
            raise unknown
        return folder

    def _name(self, gallery: str) -> str:
        try:
            return str(json.loads((self._folder() / _NAMES / gallery).read_text()))
        except (OSError, ValueError, FacefleetError):
            return gallery  # made on the command line
