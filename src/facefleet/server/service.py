"""The service: an engine with a life cycle, deadlines, readiness and totals. Knows no protocol.

Owns the engine and decides whether it is live and ready. Fronts hand in encoded bytes and get faces; nothing is decoded
here, but for the one option that asks for a drawn picture, which runs in a thread. Coroutines run in the fronts' event
loop; `live`, `ready` and `engine.*` may be asked from any thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from typing import Any, Literal, TypeAlias

from facefleet import __version__
from facefleet.config import Settings
from facefleet.errors import (
    BackendError,
    ClosedError,
    DeadlineError,
    FacefleetError,
    InternalError,
    NotReadyError,
    QueueFullError,
    WorkerError,
)
from facefleet.pipeline import Engine
from facefleet.server.limits import Limits, Room
from facefleet.server.values import Answer, Ask, Comparison, devices_of, largest
from facefleet.types import EncodedImage, FaceChips, Faces, ImageSource, Outcome

State: TypeAlias = Literal["starting", "ready", "draining", "stopped", "failed"]
_log = logging.getLogger(__name__)
_FAILURES = 3
_STALL_S = 20.0
_PROBE_S = 2.0
_DRAWERS = 2


class Service:
    """An engine behind any number of fronts.

    Args:
        engine: Not open yet.
        limits: What requests may hold.
        reread: Gives settings anew for a reload; default: those of the engine.
    """

    def __init__(
        self, engine: Engine, limits: Limits | None = None, *, reread: Callable[[], Settings] | None = None
    ) -> None:
        self.engine = engine
        self.limits = limits or Limits()
        self.room = Room(self.limits)
        self.state: State = "starting"
        self._reread = reread
        self._info: dict[str, Any] = {}
        self._numbers = itertools.count()
        self._inside: dict[int, float] = {}
        self._last_good = time.monotonic()
        self._expired = math.inf
        self._failures = 0
        self._reloading = asyncio.Lock()
        self._drawing = asyncio.Semaphore(_DRAWERS)
        self._prober: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Open the engine, which tests itself, and run a picture through everything; ready afterwards.

        Raises:
            FacefleetError: It cannot be used; `state` is ``failed``.
        """
        try:
            await asyncio.to_thread(self.engine.open)
            await asyncio.to_thread(self._warm)
        except BaseException:
            self.state = "failed"
            raise
        self._info = self._facts()
        self._last_good = time.monotonic()
        self.state = "ready"
        self._prober = asyncio.create_task(self._probe())

    def begin_drain(self) -> None:
        """Not ready from now on, and nothing new is taken in; what is inside goes on."""
        if self.state in ("starting", "ready"):
            self.state = "draining"
            self.room.closed = True

    async def stop(self, *, deadline_s: float = 30.0) -> None:
        """Finish what is inside until the deadline, then give the engine back; the rest gets a `ClosedError`."""
        self.begin_drain()
        if self._prober is not None:
            self._prober.cancel()
        if self.state != "stopped":
            await asyncio.to_thread(self.engine.drain, deadline_s=deadline_s)
            self.state = "stopped"

    async def reload(self) -> None:
        """Change to the settings as they are now, while requests go on; none is lost.

        Raises:
            FacefleetError: The new ones cannot be used; the old ones stay.
        """
        async with self._reloading:
            settings = None if self._reread is None else await asyncio.to_thread(self._reread)
            pack = None if settings is None else settings.pack
            await asyncio.to_thread(self.engine.reload, settings, pack=pack)
            self._info = self._facts()

    @property
    def live(self) -> bool:
        """Whether the process can do something useful some time; else it should be started again."""
        return self.state not in ("failed", "stopped")

    @property
    def ready(self) -> bool:
        """Whether requests should come here; `reason` says why not."""
        return not self.reason

    @property
    def reason(self) -> str:
        """Why it is not ready; empty when it is."""
        if self.state != "ready":
            return self.state
        if self._failures >= _FAILURES:
            return f"the last {self._failures} requests failed in the engine"
        if self._silent_s > _STALL_S:
            return f"no answer for {time.monotonic() - self._last_good:.0f} s while requests wait"
        return ""

    @property
    def _silent_s(self) -> float:
        """How long nothing was answered although something was asked; deadlines that passed end no silence."""
        now = time.monotonic()
        oldest = min(next(iter(self._inside.values()), now), self._expired)
        return min(now - oldest, now - self._last_good)

    def info(self) -> dict[str, Any]:
        """What is running: versions, pack, license, devices and their states."""
        if self.state not in ("ready", "draining"):
            return self._info
        return {**self._info, "devices": devices_of(self.engine.workers(), self._info["runtime"])}

    async def analyze(self, data: bytes, ask: Ask, *, name: str = "image") -> Faces:
        """Find and embed the faces of one picture. When the task is cancelled, the picture leaves the queue.

        Args:
            data: Its bytes.
            ask: How.
            name: What to call it in errors.

        Raises:
            FacefleetError: The picture, the deadline or the engine is at fault, or there is no room.
        """
        return (await self._finish(self._submit(EncodedImage(data, name), ask), ask)).unwrap()

    async def analyze_pixels(self, image: ImageSource, ask: Ask) -> Faces:
        """As `analyze`, of an (h, w, 3) uint8 RGB array."""
        return (await self._finish(self._submit(image, ask), ask)).unwrap()

    async def embed(self, chips: FaceChips, ask: Ask) -> Faces:
        """Embed faces that are aligned already; their vectors and norms are those of the answer.

        Raises:
            FacefleetError: As for `analyze`.
        """
        return (await self._finish(self._submit(chips, ask), ask)).unwrap()

    async def stream(self, items: AsyncIterator[tuple[str, bytes]], ask: Ask) -> AsyncIterator[Answer | FacefleetError]:
        """Analyze pictures that come one after the other; answers as soon as they are ready.

        A full engine makes it read no further rather than refuse, until the deadline. Answers wait for their reader,
        not the other way round, so a caller that first sends everything and then reads does not block.

        Yields:
            One `Answer` for each item; last, the error that ended `items` early, if one did.
        """
        answers: asyncio.Queue[Answer | FacefleetError | None] = asyncio.Queue()
        waiting: set[asyncio.Task[None]] = set()
        freed = asyncio.Event()

        async def answered(index: int, name: str, future: Future[Outcome[Faces]]) -> None:
            answers.put_nowait(Answer(index, name, await self._finish(future, ask)))
            freed.set()

        async def feed() -> None:
            index = 0
            try:
                async for name, data in items:
                    outcome = await self._enter(EncodedImage(data, name), ask, freed, bool(waiting))
                    if isinstance(outcome, Outcome):
                        answers.put_nowait(Answer(index, name, outcome))
                    else:
                        task = asyncio.create_task(answered(index, name, outcome))
                        waiting.add(task)
                        task.add_done_callback(waiting.discard)
                    index += 1
            except FacefleetError as error:
                await _all(waiting)
                answers.put_nowait(error)
            await _all(waiting)
            answers.put_nowait(None)

        feeder = asyncio.create_task(feed())
        feeder.add_done_callback(
            lambda task: None if task.cancelled() or not task.exception() else _died(task, answers)
        )
        try:
            while (answer := await answers.get()) is not None:
                yield answer
        finally:
            feeder.cancel()
            for task in list(waiting):
                task.cancel()

    async def compare(self, first: bytes, second: bytes, ask: Ask, *, threshold: float | None = None) -> Comparison:
        """Compare the largest faces of two pictures.

        Raises:
            NoFaceError: One of them shows no face that can be embedded.
            FacefleetError: As for `analyze`.
        """
        futures = [self._submit(EncodedImage(first, "first"), ask)]
        try:
            futures.append(self._submit(EncodedImage(second, "second"), ask))
        except FacefleetError:
            futures[0].cancel()
            raise
        outcomes = await asyncio.gather(*(self._finish(future, ask) for future in futures))
        left, right = (
            largest(outcome.unwrap(), name) for outcome, name in zip(outcomes, ("first", "second"), strict=True)
        )
        limit = float(self._info["threshold"]) if threshold is None else threshold
        cosine = left.similarity(right)
        return Comparison(cosine >= limit, cosine, limit, (left, right))

    async def draw(self, data: bytes, faces: Faces) -> bytes:
        """The picture with its faces drawn, as a JPEG; in a thread, few at a time."""
        async with self._drawing:
            return await asyncio.to_thread(_drawn, data, faces, self.engine.settings)

    def _submit(self, image: ImageSource | FaceChips, ask: Ask, *, counted: bool = True) -> Future[Outcome[Faces]]:
        if self.state not in ("ready", "draining"):
            raise NotReadyError(f"the server is {self.state}", hint="try again in a moment")
        left_s = ask.left_s
        if left_s <= 0:
            raise DeadlineError("the deadline passed before the picture came in")
        return self.engine.submit(
            image,
            chips=ask.chips,
            embed=ask.embed,
            priority=ask.priority,
            timeout_s=left_s,
            client=ask.client,
            wait=False,
            counted=counted,
        )

    async def _enter(
        self, image: EncodedImage, ask: Ask, freed: asyncio.Event, own: bool
    ) -> Future[Outcome[Faces]] | Outcome[Faces]:
        """Submit as soon as there is room; the outcome where there never was."""
        while True:
            freed.clear()
            try:
                return self._submit(image, ask)
            except QueueFullError as error:
                wait_s = min(max(ask.left_s, 0.0), 1.0 if own else error.retry_after_s)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(freed.wait(), wait_s)
            except FacefleetError as error:
                return Outcome(error=error)

    async def _finish(self, future: Future[Outcome[Faces]], ask: Ask) -> Outcome[Faces]:
        """Wait for an answer until the deadline and remember what it says about the engine.

        Work that has begun goes on beyond it; its answer would come too late for the caller.
        """
        number = next(self._numbers)
        since = self._inside[number] = time.monotonic()
        try:
            outcome = await asyncio.wait_for(asyncio.wrap_future(future), ask.left_s)
        except TimeoutError:
            outcome = Outcome(error=DeadlineError("the deadline passed before the answer was there"))
        finally:
            del self._inside[number]
        if isinstance(outcome.error, DeadlineError):
            self._expired = min(self._expired, since)
        self._judge(outcome)
        return outcome

    def _judge(self, outcome: Outcome[Faces]) -> None:
        if isinstance(outcome.error, (BackendError, WorkerError, InternalError)):
            self._failures += 1
        elif not isinstance(outcome.error, (DeadlineError, ClosedError)):
            self._last_good = time.monotonic()
            self._expired = math.inf
            self._failures = 0

    async def _probe(self) -> None:
        """While nothing seems to work, try from time to time: nobody asks a server that is not ready."""
        while True:
            await asyncio.sleep(_PROBE_S)
            if self.state != "ready" or (self._failures < _FAILURES and self._silent_s < _STALL_S / 2):
                continue
            try:
                ask = Ask(timeout_s=_STALL_S)
                await self._finish(self._submit(_probe_picture(), ask, counted=False), ask)
            except FacefleetError as error:
                _log.warning("not ready, and the probe failed too: %s", error)

    def _warm(self) -> None:
        pictures = [_probe_picture()] * max(1, min(16, self.engine.settings.batch.embed))
        for future in [self.engine.submit(picture, counted=False) for picture in pictures]:
            future.result().unwrap()

    def _facts(self) -> dict[str, Any]:
        manifest = self.engine.manifest
        return {
            "version": __version__,
            "pack": manifest.name,
            "license": manifest.license,
            "commercial_use": manifest.commercial_use,
            "dimension": manifest.embedder.dimension,
            "metric": "cosine",
            "threshold": manifest.embedder.threshold,
            "fingerprint": self.engine.fingerprint,
            "runtime": self.engine.describe(),
            "max_pixels": self.engine.settings.decode.max_pixels,
        }


def _probe_picture() -> ImageSource:
    from facefleet.models.drawn import drawn_face

    return drawn_face(224, seed=1)


def _drawn(data: bytes, faces: Faces, settings: Settings) -> bytes:
    import simplejpeg

    from facefleet.decode import Decoder
    from facefleet.sinks import draw_faces

    pixels = Decoder(settings.decode).decode(data).pixels
    return bytes(simplejpeg.encode_jpeg(draw_faces(pixels, faces), quality=90))


async def _all(tasks: set[asyncio.Task[None]]) -> None:
    while tasks:
        await asyncio.wait(set(tasks))


def _died(task: asyncio.Task[None], answers: asyncio.Queue[Answer | FacefleetError | None]) -> None:
    """A bug must end the stream, not hang it."""
    _log.error("a batch ended in a bug", exc_info=task.exception())
    answers.put_nowait(FacefleetError("the batch could not be read to its end"))
    answers.put_nowait(None)
