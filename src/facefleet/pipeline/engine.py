"""`Engine`: pictures in, faces out, in this process.

Owns the life of the parts: they are built at the first use or on `open`, checked, and given back on `close`. One
engine may be used from any number of threads; calls share its batches and never mix their answers.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Generator, Iterable
from concurrent.futures import Future
from types import TracebackType
from typing import Self

from facefleet.config import Settings
from facefleet.models.load import Loaded, load_models
from facefleet.packs import Manifest
from facefleet.pipeline.fingerprint import fingerprint
from facefleet.pipeline.photo import Photo
from facefleet.pipeline.scheduler import Scheduler
from facefleet.pipeline.stages import Stages
from facefleet.types import Faces, ImageSource, Outcome

_log = logging.getLogger(__name__)


class Engine:
    """Detects, aligns and embeds the faces of pictures.

    ``with Engine() as engine: faces = engine.analyze("photo.jpg")``

    Nothing is loaded before the first use, `open`, or the ``with`` block.

    Args:
        settings: All options; default: `Settings()`.
        pack: Name of a model pack or path of a manifest, instead of `settings.pack`.
    """

    def __init__(self, settings: Settings | None = None, *, pack: str | None = None) -> None:
        self.settings = settings or Settings()
        self._pack = pack or self.settings.pack
        self._lock = threading.Lock()
        self._resources: contextlib.ExitStack | None = None
        self._models: Loaded | None = None
        self._scheduler: Scheduler | None = None
        self._fingerprint = ""

    def open(self) -> None:
        """Load the models, check that they answer rightly, and start the workers; harmless when already open.

        Raises:
            PackError: The pack is not there, not verified, or not understood.
            BackendError: The runtime cannot run it, or `SelfTestError`: it runs it wrongly.
        """
        self._started()

    def close(self) -> None:
        """Stop the workers and give everything back; photos still inside get a `ClosedError`."""
        with self._lock:
            resources, self._resources, self._scheduler = self._resources, None, None
        if resources is not None:
            resources.close()

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

    def submit(self, image: ImageSource, *, chips: bool = False) -> Future[Outcome[Faces]]:
        """As `analyze`, without waiting for the answer; waits only while the pipeline is full.

        Returns:
            A future whose result is an `Outcome`; it gets no exception. It may be cancelled while it has not started.
        """
        return self._started().submit(Photo(image, chips))

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
        scheduler = self._started()
        window = self.settings.batch.max_images
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
                    futures[index] = future = scheduler.submit(Photo(image, chips))
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
        return self._loaded().manifest

    @property
    def dimension(self) -> int:
        """Length of an embedding; opens the engine."""
        return self._loaded().manifest.embedder.dimension

    @property
    def fingerprint(self) -> str:
        """sha256 of everything that decides what an embedding means and which faces are found; opens the engine."""
        self._started()
        return self._fingerprint

    def describe(self) -> dict[str, str]:
        """What is in use, for logs and file metadata; opens the engine."""
        return dict(self._loaded().description)

    def stage_seconds(self) -> dict[str, tuple[int, float]]:
        """For each stage: items done, and seconds that workers were busy with it."""
        return self._started().stage_seconds()

    def _loaded(self) -> Loaded:
        self._started()
        assert self._models is not None
        return self._models

    def _started(self) -> Scheduler:
        with self._lock:
            if self._scheduler is None:
                with contextlib.ExitStack() as stack:
                    self._models = models = load_models(self._pack, self.settings, stack)
                    self._fingerprint = fingerprint(models, self.settings)
                    batch = self.settings.batch
                    scheduler = Scheduler(
                        Stages(models.decoder, models.detector, models.embedder, models.sizes, models.select),
                        workers=models.workers,
                        detect_batch=batch.detect,
                        embed_batch=batch.embed,
                        max_images=batch.max_images,
                        max_bytes=batch.max_bytes,
                    )
                    stack.callback(scheduler.close)
                    self._resources = stack.pop_all()
                    self._scheduler = scheduler
                _log.info("engine ready: %s", ", ".join(f"{k}={v}" for k, v in models.description.items()))
            return self._scheduler
