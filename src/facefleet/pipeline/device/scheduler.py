"""Photos through one device in batches: a few threads beside those of `Scheduler`, for the lanes and the answers.

Owns the queues between lanes and the fan-in of a batch; runs of faces are `runs`'s. The inherited
threads read and decode; what cannot go this way (other formats of input, more candidates than the device looks at,
photos of reduced size whose faces need the full one) goes the inherited one, its networks on the same device.

A feeder fills a slot with pictures and has their faces found; the spreader waits for the counts, cuts chips and has
runs embedded, full ones while more is coming; the finisher waits for results and answers. While one batch is decoded,
another is looked at, and a third is embedded.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from facefleet.backends.torch.runner import torch_errors
from facefleet.batching import Batcher, BatchPolicy, SizeLimit, run_batch
from facefleet.errors import BadOutputError, DeviceLostError
from facefleet.pipeline.device.answers import DeviceBatch, Found
from facefleet.pipeline.device.lanes import Mark
from facefleet.pipeline.device.resident import FEEDERS, CardRefusedError, Pixels, Resident
from facefleet.pipeline.device.runs import Run, Runs
from facefleet.pipeline.photo import Photo
from facefleet.pipeline.scheduler import Scheduler
from facefleet.pipeline.stages import Stages
from facefleet.telemetry import span
from facefleet.types import EncodedImage, Image, Outcome

_COMPANY_S = 0.02
"""The longest that a part-filled batch waits while photos are being decoded: a device does not idle for longer."""
_AHEAD = 1
"""Batches that are looked at or about to be, beyond which one has to be full to follow them."""
_READERS = 4
_NAME = "the device's pipeline"


@dataclass(slots=True, eq=False)
class _Waiting:
    photo: Photo
    pixels: Pixels
    queued_at: float


class DeviceScheduler(Scheduler):
    """Runs photos through a device; see `Scheduler`.

    Args:
        stages: Opened parts.
        resident: What is on the device.
        workers: Threads that read and decode.
        max_images: As for `Scheduler`.
        max_bytes: Likewise.
        max_delay_s: Likewise, but never more than 20 ms.
        options: Further arguments of `Scheduler`.
    """

    def __init__(
        self,
        stages: Stages,
        resident: Resident,
        *,
        workers: int,
        max_images: int,
        max_bytes: int,
        max_delay_s: float,
        **options: Any,  # noqa: ANN401
    ) -> None:
        self._resident = resident
        policy = BatchPolicy(resident.batch, min(max_delay_s, _COMPANY_S), max_cost=resident.pool_bytes)
        self._ready: Batcher[_Waiting] = Batcher(policy)
        self._fits = SizeLimit(resident.batch)
        self._preparing = self._coming = self._looking = 0
        self._ending = False
        self._feeding = FEEDERS
        self._finding = threading.Lock()
        self._free: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for slot in resident.slots:
            self._free.put(slot)
        self._runs = Runs(resident, self._guarded)
        self._found: queue.SimpleQueue[DeviceBatch | bool] = queue.SimpleQueue()
        self._copiers = ThreadPoolExecutor(min(8, max(1, workers)), "facefleet-copy")
        self._need_px = max(size for size in stages.sizes if isinstance(size, int))
        # Where the card decodes, many threads with next to nothing to do would only wake each other.
        self._decoders = None if resident.card is None else ThreadPoolExecutor(workers, "facefleet-decode")
        super().__init__(
            stages,
            workers=workers if self._decoders is None else min(workers, _READERS),
            detect_batch=1,
            embed_batch=resident.chips,
            max_images=max_images,
            max_bytes=max_bytes,
            max_delay_s=max_delay_s,
            **options,
        )
        self._fed = threading.Condition(self._lock)
        self._lanes = [
            threading.Thread(target=work, name=f"facefleet-{name}", daemon=True)
            for name, work in (
                *[("feed", self._feed)] * FEEDERS,
                ("spread", self._spread),
                ("finish", self._finish_runs),
            )
        ]
        for thread in self._lanes:
            thread.start()

    def close(self) -> None:
        """See `Scheduler.close`; batches on the device are finished first."""
        with self._fed:
            self._ending = True
            self._fed.notify_all()
        for thread in self._lanes:
            if thread is not threading.current_thread():
                thread.join()
        super().close()
        if self._decoders is not None:
            self._decoders.shutdown()
        self._copiers.shutdown()
        self._resident.close()

    def queues(self) -> dict[str, int]:
        """See `Scheduler.queues`; what is ready for the device waits to be detected."""
        waiting = super().queues()
        waiting["detect"] += len(self._ready)
        return waiting

    # The inherited threads: read, decode, hand over.

    def _load(self, photo: Photo) -> None:
        with self._watched():
            super()._load(photo)

    def _decode(self, photo: Photo) -> None:
        if photo.by_host:
            super()._decode(photo)
            return
        with self._watched():
            try:
                pixels = self._for_card(photo)
            except Exception as error:
                self._fail(photo, error)
                return
            if pixels is not None:
                self._hand_over(photo, pixels, time.perf_counter())
            elif self._decoders is None:
                self._decode_here(photo)
            else:
                with self._lock:
                    self._preparing += 1
                self._decoders.submit(self._decode_aside, photo)

    def _decode_aside(self, photo: Photo) -> None:
        try:
            self._decode_here(photo)
        finally:
            self._prepared()

    def _decode_here(self, photo: Photo) -> None:
        started = time.perf_counter()
        try:
            with span("facefleet.decode", photo.trace):
                assert photo.loaded is not None
                pixels = self._of_image(self._stages.decoder.decode(photo.loaded, need_px=self._need_px))
        except Exception as error:
            self._fail(photo, error)
            return
        self._hand_over(photo, pixels, started)

    def _hand_over(self, photo: Photo, pixels: Pixels, started: float) -> None:
        """To the feeders, or to the host's way what is larger than a pool."""
        if pixels.bytes > self._resident.pool_bytes:
            photo.by_host = True
            super()._decode(photo)
            return
        with self._changed:
            if photo in self._inside:
                now = time.monotonic()
                self._ready.add(_Waiting(photo, pixels, now), now=now, priority=photo.priority, cost=pixels.bytes)
            self._count("decode", started)

    def _watched(self) -> _Preparing:
        return _Preparing(self)

    def _for_card(self, photo: Photo) -> Pixels | None:
        """A photo left to the card; None where it has to be decoded here."""
        loaded = photo.loaded
        if self._resident.card is None or not isinstance(loaded, EncodedImage):
            return None
        header = self._stages.decoder.plain_jpeg(loaded, need_px=self._need_px)
        if header is None or not self._resident.card.takes(loaded.data):
            return None
        frame = (header.width, header.height)
        return Pixels(self._resident.detector.plan(*frame), frame, file=loaded.data, orientation=header.orientation)

    def _of_image(self, image: Image) -> Pixels:
        frame = (image.width, image.height)
        return Pixels(self._resident.detector.plan(*frame), frame, image.pixels, image.scale)

    # The feeders.

    def _feed(self) -> None:
        while True:
            with self._fed:
                batch: Sequence[_Waiting] = ()
                while not self._ending and not batch:
                    busy = self._looking > _AHEAD  # then a part-filled batch would only run sooner to wait
                    batch = self._ready.take(time.monotonic(), expecting=self._more_coming(), only_full=busy)
                    if not batch:
                        self._fed.wait(_COMPANY_S if len(self._ready) else None)
                if not batch:
                    break
                self._coming += 1
            try:
                run_batch(self._launch, batch, self._fits, lambda item, error: self._fail(item.photo, error))
            except DeviceLostError as error:
                self._give_up(error)
            self._found.put(True)
        with self._fed:
            self._feeding -= 1
            last = not self._feeding
        if last:
            self._found.put(False)

    def _more_coming(self) -> bool:
        """Whether photos are on their way to the feeder; called with the lock held."""
        return bool(self._preparing or self._loaded or len(self._new))

    def _prepared(self) -> None:
        """A photo has come to the feeder, or will not; it is woken where that may change what it does."""
        with self._fed:
            self._preparing -= 1
            ready = len(self._ready)
            if ready == 1 or ready >= self._resident.batch or not self._more_coming():
                self._fed.notify()

    def _launch(self, items: Sequence[_Waiting]) -> None:
        """Have a batch decoded and its faces found."""
        wanted = [item for item in items if item.photo in self._inside]
        # Photos that are only looked at come last, so that the faces to embed lie together.
        wanted.sort(key=lambda item: not item.photo.embed)
        if not wanted:
            return
        started = time.perf_counter()
        slot = self._free.get()
        try:
            with torch_errors(_NAME), span("facefleet.detect", batch=len(wanted)):
                filled, held = self._filled(slot, wanted)
                if not wanted:
                    self._free.put(slot)
                    return
                with self._finding:
                    done = self._resident.find(slot, len(wanted), filled)
        except BaseException:
            slot.free = self._resident.finding.mark()
            self._free.put(slot)
            raise
        with self._changed:
            for item in wanted:
                item.photo.image = None
                self._held_bytes -= item.photo.counted_bytes
                item.photo.counted_bytes = 0
            self._coming += 1
            self._looking += 1
            self._changed.notify_all()
        photos = [Found(item.photo, item.pixels.frame) for item in wanted]
        self._found.put(DeviceBatch(slot, photos, done, held, started, [item.queued_at for item in wanted]))

    def _filled(self, slot: Any, items: list[_Waiting]) -> tuple[Mark, list[object]]:  # noqa: ANN401  # a Slot
        """Fill a slot; what the card refuses is decoded here, and what that refuses has its error and is taken out."""
        while items:
            try:
                return self._resident.fill(slot, [item.pixels for item in items], self._copiers.map)
            except CardRefusedError as refused:
                for item in [items[number] for number in refused.numbers]:
                    try:
                        assert item.photo.loaded is not None
                        item.pixels = self._of_image(self._stages.decoder.decode(item.photo.loaded))
                    except Exception as error:
                        items.remove(item)
                        self._fail(item.photo, error)
        return Mark(), []

    # The spreader.

    def _spread(self) -> None:
        while (batch := self._found.get()) is not False:
            looked = isinstance(batch, DeviceBatch)
            if isinstance(batch, DeviceBatch):
                self._guarded([batch], lambda batch=batch: self._spread_batch(batch))  # type: ignore[misc]
            with self._fed:
                self._coming -= 1
                self._looking -= looked
                if looked and len(self._ready):
                    self._fed.notify()
                more = self._coming > 0
            if not more:
                self._runs.flush()
        self._runs.flush()
        self._runs.end()

    def _spread_batch(self, batch: DeviceBatch) -> None:
        batch.done.wait()
        batch.held.clear()
        slot, resident = batch.slot, self._resident
        assert slot is not None
        count = len(batch.photos)
        redo, broken = batch.take(*resident.read(slot, count), resident.dimension)
        with self._changed:
            self._count("detect", batch.started, count, batch.queued_at)
        for photo in broken:
            self._fail(photo, BadOutputError(f"{photo.name}: the detector's answer is not finite"))
        for photo in redo:
            self._again(photo)
        if not batch.left:
            self._release(batch)
            self._answer_batch(batch)
            return
        for start, stop, embed in batch.segments(embeds=resident.embedder is not None):
            self._runs.cut(batch, start, stop, embed=embed)
        self._release(batch)

    def _release(self, batch: DeviceBatch) -> None:
        """Give the slot back; the lane that fills it next waits until the last chip is cut."""
        slot, batch.slot = batch.slot, None
        if slot is not None:
            slot.free = self._resident.embedding.mark()
            self._free.put(slot)

    def _again(self, photo: Photo) -> None:
        """Let the host do a photo."""
        with self._changed:
            if photo in self._inside:
                photo.by_host = True
                self._loaded.append(photo)
                self._changed.notify()

    # The finisher.

    def _finish_runs(self) -> None:
        self._runs.finish(self._finished)

    def _finished(self, run: Run) -> None:
        if run.embed:
            with self._changed:
                self._count("embed", run.started, run.count)
        for batch in run.batches():
            if not batch.left:
                self._answer_batch(batch)

    def _answer_batch(self, batch: DeviceBatch) -> None:
        for photo, answer in batch.answers():
            if isinstance(answer, BadOutputError):
                self._fail(photo, answer)
            else:
                self._answer(photo, Outcome(answer))

    def _guarded(self, batches: Sequence[DeviceBatch], work: Callable[[], None]) -> None:
        """Do some work; if it fails, the photos of these batches fail with it."""
        try:
            with torch_errors(_NAME):
                work()
        except DeviceLostError as error:
            self._give_up(error)
        except Exception as error:
            for batch in batches:
                self._release(batch)
                for found in batch.photos:
                    self._fail(found.photo, error)


class _Preparing:
    """Counts a photo as on its way to the device."""

    def __init__(self, scheduler: DeviceScheduler) -> None:
        self._scheduler = scheduler

    def __enter__(self) -> None:
        with self._scheduler._lock:
            self._scheduler._preparing += 1

    def __exit__(self, *_: object) -> None:
        self._scheduler._prepared()
