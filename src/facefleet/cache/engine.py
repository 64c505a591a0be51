"""An engine that looks into a cache first.

Owns keys, single flight, and the order of things: digest, cache, an equal picture on its way here, an equal one on
its way in another process, and only then the engine. Digests are made in the caller's thread; results are stored in
the engine's threads; a thread of its own waits for other processes. What the cache itself fails at is logged once and
gone on without: answers come from the engine, then.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, replace
from typing import Protocol

from facefleet.cache.codec import pack_faces, unpack_faces
from facefleet.cache.perceptual import difference_hash
from facefleet.cache.store import CacheStats, FeatureCache
from facefleet.config import CacheSettings, DecodeSettings
from facefleet.decode import Decoder
from facefleet.errors import CacheError, FacefleetError
from facefleet.telemetry.record import CACHES
from facefleet.types import EncodedImage, Faces, Image, ImageSource, Outcome

_log = logging.getLogger(__name__)
_POLL_S = 0.02
_RECENT = 16


class Submitter(Protocol):
    """An engine, as the cache sees it."""

    @property
    def fingerprint(self) -> str:
        """Digest of everything that results depend on."""

    @property
    def dimension(self) -> int:
        """Length of an embedding."""

    def describe(self) -> dict[str, str]:
        """What is in use."""

    def submit(self, image: ImageSource, *, chips: bool = False) -> Future[Outcome[Faces]]:
        """Start one picture; the future has an `Outcome`."""


@dataclass(slots=True)
class _Waiter:
    """Somebody who wants a result."""

    future: Future[Outcome[Faces]]
    name: str


@dataclass(slots=True)
class _Wanted:
    """A picture that is not in the cache."""

    key: bytes
    picture: EncodedImage | Image
    chips: bool


class CachedEngine:
    """See this module; it may be used from any number of threads, wherever an engine may.

    Args:
        engine: What computes.
        cache: Where results are kept; not closed here.
        settings: What a picture is known by.
        decode: How pictures are decoded, where they are known by their pixels.
        window: Most pictures on their way in `as_ready`.
    """

    def __init__(
        self,
        engine: Submitter,
        cache: FeatureCache,
        settings: CacheSettings | None = None,
        *,
        decode: DecodeSettings | None = None,
        window: int = 64,
    ) -> None:
        self._engine = engine
        self._cache = cache
        self._settings = settings or CacheSettings()
        self._decoder = Decoder(decode)
        self._window = window
        self._lock = threading.Lock()
        self._waiting: dict[bytes, list[_Waiter]] = {}
        self._foreign: queue.SimpleQueue[_Wanted | None] = queue.SimpleQueue()
        self._poller: threading.Thread | None = None
        self._recent: deque[tuple[int, bytes]] = deque(maxlen=_RECENT)
        self._hits = self._misses = self._shared = 0
        self._broken = False
        described = engine.describe()
        # Backends and precisions agree within a guard, not to the last bit: their results are kept apart.
        parts = [engine.fingerprint, *(described.get(key, "") for key in ("backend", "precision"))]
        self._salt = "\n".join(parts).encode()

    @property
    def fingerprint(self) -> str:
        """The engine's."""
        return self._engine.fingerprint

    @property
    def dimension(self) -> int:
        """The engine's."""
        return self._engine.dimension

    def describe(self) -> dict[str, str]:
        """The engine's."""
        return self._engine.describe()

    def stats(self) -> CacheStats:
        """What the cache did so far."""
        held = (0, 0, 0)
        with contextlib.suppress(CacheError):
            held = self._cache.held()
        with self._lock:
            return CacheStats(self._hits, self._misses, self._shared, *held)

    def close(self) -> None:
        """End the thread that waits for other processes; the engine and the cache stay open."""
        poller, self._poller = self._poller, None
        if poller is not None:
            self._foreign.put(None)
            poller.join()

    def analyze(self, image: ImageSource, *, chips: bool = False) -> Faces:
        """As `Engine.analyze`."""
        return self.submit(image, chips=chips).result().unwrap()

    def submit(self, image: ImageSource, *, chips: bool = False) -> Future[Outcome[Faces]]:
        """As `Engine.submit`: from the cache, or with an equal picture on its way, or from the engine."""
        try:
            picture, key = self._keyed(image, chips)
        except FacefleetError as error:
            done: Future[Outcome[Faces]] = Future()
            done.set_result(Outcome(error=error))
            return done
        waiter = _Waiter(Future(), picture.name)
        found = self._look_up(key, waiter.name)
        if found is not None:
            waiter.future.set_result(Outcome(found))
            return waiter.future
        with self._lock:
            if key in self._waiting:
                self._waiting[key].append(waiter)
                self._shared += 1
                return waiter.future
            self._waiting[key] = [waiter]
        if self._claimed(key):
            self._begin(_Wanted(key, picture, chips))
        else:
            self._wait_for_others(_Wanted(key, picture, chips))
        return waiter.future

    def as_ready(self, images: Iterable[ImageSource], *, chips: bool = False) -> Iterator[tuple[int, Outcome[Faces]]]:
        """As `Engine.as_ready`; what is in the cache comes at once."""
        ready: queue.SimpleQueue[tuple[int, Outcome[Faces]]] = queue.SimpleQueue()
        flight: dict[int, Future[Outcome[Faces]]] = {}
        source = enumerate(images)
        more = True
        try:
            while True:
                while more and len(flight) < self._window and ready.empty():
                    entry = next(source, None)
                    if entry is None:
                        more = False
                        break
                    index, image = entry
                    future = self.submit(image, chips=chips)
                    if future.done():
                        yield index, future.result()
                        continue
                    flight[index] = future
                    future.add_done_callback(lambda done, index=index: ready.put((index, done.result())))  # type: ignore[misc]
                if not flight:
                    if more:
                        continue
                    return
                index, outcome = ready.get()
                del flight[index]
                yield index, outcome
        finally:
            for future in flight.values():
                future.cancel()

    def _keyed(self, image: ImageSource, chips: bool) -> tuple[EncodedImage | Image, bytes]:
        """The picture, its bytes read, and what it is known by."""
        picture = self._decoder.read(image)
        near = self._settings.near_duplicate_bits
        if isinstance(picture, EncodedImage) and (self._settings.key == "pixels" or near):
            picture = self._decoder.decode(picture)
        state = hashlib.sha256(self._salt)
        state.update(b"chips" if chips else b"")
        if isinstance(picture, EncodedImage):
            state.update(b"bytes")
            state.update(picture.data)
        else:
            state.update(f"pixels {picture.pixels.shape} {picture.width} {picture.height} {picture.scale}".encode())
            state.update(picture.pixels.data)
        key = state.digest()
        if near and isinstance(picture, Image):
            key = self._near(difference_hash(picture.pixels), key, near)
        return picture, key

    def _near(self, sign: int, key: bytes, bits: int) -> bytes:
        """The key of a picture of the last few that looks the same, or this one's own."""
        with self._lock:
            for other, known in self._recent:
                if (sign ^ other).bit_count() <= bits:
                    return known
            self._recent.append((sign, key))
        return key

    def _stored(self, key: bytes, name: str) -> Faces | None:
        try:
            data = None if self._broken else self._cache.get(key)
            return None if data is None else unpack_faces(data, name)
        except CacheError as error:
            self._complain(error)
            return None

    def _look_up(self, key: bytes, name: str) -> Faces | None:
        faces = self._stored(key, name)
        with self._lock:
            missed = faces is None and key not in self._waiting
            self._misses += missed
            self._hits += faces is not None
        if missed:
            CACHES["features"].miss()
        elif faces is not None:
            CACHES["features"].hit()
        return faces

    def _claimed(self, key: bytes) -> bool:
        try:
            return self._broken or self._cache.claim(key)
        except CacheError as error:
            self._complain(error)
            return True

    def _begin(self, entry: _Wanted) -> None:
        """Compute what is claimed, unless another process has finished it between looking and claiming."""
        found = self._stored(entry.key, entry.picture.name)
        if found is None:
            self._compute(entry.key, entry.picture, entry.chips)
            return
        with contextlib.suppress(CacheError):
            self._cache.release(entry.key)
        self._answer(entry.key, Outcome(found))

    def _compute(self, key: bytes, picture: EncodedImage | Image, chips: bool) -> None:
        try:
            future = self._engine.submit(picture, chips=chips)
        except FacefleetError as error:
            self._finish(key, Outcome(error=error))
            return
        future.add_done_callback(lambda done: self._finish(key, done.result()))

    def _finish(self, key: bytes, outcome: Outcome[Faces]) -> None:
        try:
            if not self._broken:
                if outcome.ok:
                    self._cache.put(key, pack_faces(outcome.unwrap()))
                else:
                    self._cache.release(key)
        except CacheError as error:
            self._complain(error)
        self._answer(key, outcome)

    def _answer(self, key: bytes, outcome: Outcome[Faces]) -> None:
        with self._lock:
            waiters = self._waiting.pop(key, [])
        for waiter in waiters:
            own = outcome
            if outcome.ok and outcome.unwrap().name != waiter.name:
                own = Outcome(replace(outcome.unwrap(), name=waiter.name))
            with contextlib.suppress(InvalidStateError):  # cancelled meanwhile
                waiter.future.set_result(own)

    def _wait_for_others(self, entry: _Wanted) -> None:
        with self._lock:
            if self._poller is None:
                self._poller = threading.Thread(target=self._poll, name="facefleet-cache", daemon=True)
                self._poller.start()
        self._foreign.put(entry)

    def _poll(self) -> None:
        """Look again and again whether others are done; take over what they have given up."""
        entries: list[_Wanted] = []
        while True:
            try:
                entry = self._foreign.get(timeout=None if not entries else _POLL_S)
                if entry is None:
                    for left in entries:
                        self._compute(left.key, left.picture, left.chips)
                    return
                entries.append(entry)
            except queue.Empty:
                pass
            entries = [each for each in entries if not self._settled(each)]
            time.sleep(_POLL_S / 4)

    def _settled(self, entry: _Wanted) -> bool:
        """Whether others are done with it, or it is ours now."""
        found = self._stored(entry.key, entry.picture.name)
        if found is not None:
            self._answer(entry.key, Outcome(found))
            return True
        if self._claimed(entry.key):
            self._begin(entry)
            return True
        return False

    def _complain(self, error: CacheError) -> None:
        if "damaged" not in error.message:
            if not self._broken:
                _log.warning("going on without the cache: %s", error)
            self._broken = True
        else:
            _log.warning("%s: it is made anew", error.message)
