"""`Engine`: pictures in, faces out, in this process or in one a device.

Owns the life of the parts: they are built at the first use or on `open`, checked, and given back on `close`. One
engine may be used from any number of threads; calls share its batches and never mix their answers.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Generator, Hashable, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from facefleet.batching import Priority
from facefleet.config import Settings, read_profile, with_profile
from facefleet.errors import ClosedError, FacefleetError
from facefleet.packs import Manifest
from facefleet.pipeline.choose import make_engine
from facefleet.pipeline.fleet import FleetEngine
from facefleet.pipeline.local import LocalEngine
from facefleet.pipeline.photo import Photo
from facefleet.pipeline.status import StatusReader
from facefleet.telemetry.status import StatusWriter
from facefleet.types import FaceChips, Faces, ImageSource, Outcome
from facefleet.workers import WorkerStatus

_log = logging.getLogger(__name__)


class Engine:
    """Detects, aligns and embeds the faces of pictures.

    ``with Engine() as engine: faces = engine.analyze("photo.jpg")``

    Nothing is loaded before the first use, `open`, or the ``with`` block.

    Args:
        settings: All options; default: `Settings()`.
        pack: Name of a model pack or path of a manifest, instead of `settings.pack`.
        profile: What `facefleet tune` found for this machine; settings that are not at their default stay.

    Raises:
        ConfigError: The profile is malformed, or of another machine or pack.
    """

    def __init__(
        self, settings: Settings | None = None, *, pack: str | None = None, profile: str | Path | None = None
    ) -> None:
        self.settings = settings or Settings()
        self._pack = pack or self.settings.pack
        if profile is not None:
            tuned = read_profile(Path(profile))
            tuned.require_pack(self._pack)
            self.settings = with_profile(self.settings, tuned)
        self._lock = threading.Lock()
        self._running: LocalEngine | FleetEngine | None = None
        self._facts: Mapping[str, Any] = {}
        self._status: StatusWriter | None = None

    def open(self) -> None:
        """Load the models, check that they answer rightly, and start the workers; harmless when already open.

        Raises:
            PackError: The pack is not there, not verified, or not understood.
            BackendError: The runtime cannot run it, or `SelfTestError`: it runs it wrongly.
        """
        self._started()

    def close(self) -> None:
        """Stop the workers and give everything back; photos still inside get a `ClosedError`."""
        running = self._take_down()
        if running is not None:
            running.close()

    def drain(self, *, deadline_s: float = 30.0) -> None:
        """Stop without losing anything: no more photos are accepted, those inside are finished until the deadline.

        What is not finished then gets a `ClosedError`.
        """
        running = self._take_down()
        if running is not None:
            running.drain(deadline_s)

    def reload(self, settings: Settings | None = None, *, pack: str | None = None) -> None:
        """Change to another pack or other settings while photos go on; no photo is lost.

        The new parts are ready before the old ones are given no more photos, so memory holds both for a while.

        Args:
            settings: Default: those in use. Devices and placement stay what they are.
            pack: Default: the one in use.

        Raises:
            PackError: The new pack cannot be used; the old one stays.
            BackendError: Likewise.
        """
        settings = settings or self.settings
        pack = pack or self._pack
        running = self._started()
        if isinstance(running, FleetEngine):
            running.reload(settings, pack)
        else:
            successor = make_engine(settings, pack)
            successor.open()
            with self._lock:
                old, self._running = self._running, successor
            if old is not None:
                old.drain(math.inf)
        self.settings, self._pack = settings, pack
        with self._lock:
            if self._running is not None:
                self._facts = self._running.facts()
                self._show_status(self._running)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def analyze(self, image: ImageSource, *, chips: bool = False) -> Faces:
        """Find and embed the faces of one picture.

        Args:
            image: A path, encoded bytes, an (h, w, 3) uint8 RGB array, a PIL image, or a typed picture.
            chips: Whether to return the aligned faces too.

        Returns:
            Every face; none found is a result of length 0. Boxes and landmarks are in pixels of the upright picture.

        Raises:
            InputError: The picture cannot be used.
            BackendError: The networks failed on it.
            ClosedError: The engine was closed meanwhile.
        """
        return self.submit(image, chips=chips).result().unwrap()

    def submit(
        self,
        image: ImageSource | FaceChips,
        *,
        chips: bool = False,
        embed: bool = True,
        priority: Priority = Priority.INTERACTIVE,
        timeout_s: float | None = None,
        client: Hashable = None,
        wait: bool = True,
        counted: bool = True,
    ) -> Future[Outcome[Faces]]:
        """As `analyze`, without waiting for the answer; waits only while the pipeline is full.

        Args:
            image: As for `analyze`; or `FaceChips` of 112 x 112, whose rows are embedded as they are.
            chips: Whether to return the aligned faces too.
            embed: Whether faces are embedded; else their vectors are NaN.
            priority: Who goes first.
            timeout_s: From then on nothing more is done for it; its outcome is a `DeadlineError`.
            client: Whose it is: no client can fill the pipeline alone. None: nobody's in particular.
            wait: Whether to wait for room; else a full pipeline refuses at once.
            counted: Whether its answer shows in the metrics of images; false for a probe of yours.

        Returns:
            A future whose result is an `Outcome`; it gets no exception. It may be cancelled while it has not started.

        Raises:
            QueueFullError: There is no room and `wait` is false; `retry_after_s` says when to come again.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        photo = Photo(image, chips, embed, priority, deadline, client, counted)
        while True:
            running = self._started()
            try:
                return running.submit(photo, wait=wait)
            except ClosedError:
                if running is self._running or self._running is None:
                    raise  # closed, and not only replaced in a reload

    def check_room(self, *, coming: int = 0) -> None:
        """Whether a photo would find a place at this moment, for callers that have not read it yet.

        Args:
            coming: Photos that are being read already and will be submitted before it.

        Raises:
            QueueFullError: It would not; `retry_after_s` says when to come again.
        """
        running = self._running
        if running is not None:
            running.door.check(coming=coming)

    def as_ready(
        self, images: Iterable[ImageSource], *, chips: bool = False
    ) -> Generator[tuple[int, Outcome[Faces]], None, None]:
        """Analyze a stream of pictures; answers come as they are ready.

        Args:
            images: Read only as far ahead as `settings.batch.max_images`, in the thread that iterates the result.
            chips: Whether to return the aligned faces too.

        Yields:
            Position in `images` and its outcome; each position exactly once. Closing the generator drops the rest.
        """
        yield from self._stream(images, chips, ordered=False)

    def map(self, images: Iterable[ImageSource], *, chips: bool = False) -> Generator[Outcome[Faces], None, None]:
        """As `as_ready`, in the order of `images`."""
        for _, outcome in self._stream(images, chips, ordered=True):
            yield outcome

    def _stream(
        self, images: Iterable[ImageSource], chips: bool, *, ordered: bool
    ) -> Generator[tuple[int, Outcome[Faces]], None, None]:
        window = self._started().max_images
        ready: queue.SimpleQueue[tuple[int, Outcome[Faces]]] = queue.SimpleQueue()
        waiting: dict[int, Outcome[Faces]] = {}
        futures: dict[int, Future[Outcome[Faces]]] = {}
        source = enumerate(images)
        following = 0
        more = True
        try:
            while True:
                while more and len(futures) + len(waiting) < window:
                    entry = next(source, None)
                    if entry is None:
                        more = False
                        break
                    index, image = entry
                    futures[index] = future = self.submit(image, chips=chips, priority=Priority.BULK)
                    future.add_done_callback(lambda done, index=index: ready.put((index, done.result())))  # type: ignore[misc]
                    if not ready.empty():
                        break
                if not futures and not waiting:
                    return
                index, outcome = ready.get()
                del futures[index]
                if not ordered:
                    yield index, outcome
                    continue
                waiting[index] = outcome
                while following in waiting:
                    yield following, waiting.pop(following)
                    following += 1
        finally:
            for future in futures.values():
                future.cancel()

    @property
    def manifest(self) -> Manifest:
        """The pack in use; opens the engine."""
        manifest = self._known()["manifest"]
        assert isinstance(manifest, Manifest)
        return manifest

    @property
    def dimension(self) -> int:
        """Length of an embedding; opens the engine."""
        return self.manifest.embedder.dimension

    @property
    def fingerprint(self) -> str:
        """sha256 of everything that decides what an embedding means and which faces are found; opens the engine."""
        return str(self._known()["fingerprint"])

    def describe(self) -> dict[str, str]:
        """What is in use, for logs and file metadata; opens the engine."""
        return dict(self._known()["description"])

    def stage_seconds(self) -> dict[str, tuple[int, float]]:
        """For each stage: items done, and seconds that workers were busy with it."""
        return self._started().stage_seconds()

    def queues(self) -> dict[str, int]:
        """How many items wait, by stage."""
        return self._started().queues()

    def workers(self) -> list[WorkerStatus]:
        """What is known about every worker process; none where everything runs in this process."""
        running = self._started()
        return running.status() if isinstance(running, FleetEngine) else []

    def _take_down(self) -> LocalEngine | FleetEngine | None:
        with self._lock:
            running, self._running = self._running, None
            status, self._status = self._status, None
        if status is not None:
            status.close()
        return running

    def _show_status(self, running: LocalEngine | FleetEngine) -> None:
        """Let `facefleet top` see what is running; with the lock held."""
        if self._status is not None:
            self._status.close()
            self._status = None
        if not self.settings.runtime.status:
            return
        try:
            writer = StatusWriter()
        except (FacefleetError, OSError) as error:
            _log.warning("`facefleet top` does not show this engine: %s", error)
            return
        device = self._facts["description"].get("device", "cpu")
        writer.start(StatusReader(running, self._pack, device).read)
        self._status = writer

    def _known(self) -> Mapping[str, Any]:
        self._started()
        return self._facts

    def _started(self) -> LocalEngine | FleetEngine:
        with self._lock:
            if self._running is None:
                running = make_engine(self.settings, self._pack)
                running.open()
                self._facts = running.facts()
                self._running = running
                self._show_status(running)
                _log.info("engine ready: %s", ", ".join(f"{k}={v}" for k, v in self._facts["description"].items()))
            return self._running
