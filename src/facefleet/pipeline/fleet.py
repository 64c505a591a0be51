"""An engine's parts in worker processes: the same answers as `LocalEngine`, from any number of devices.

Owns the way of a photo between the stages, the fan-in of faces of many photos into one embedding batch, and the
threads that read what cannot be sent as it is. Works go to whichever worker is free; nothing is lost when one ends.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from facefleet.batching import BatchPolicy, LinearTime
from facefleet.config import BatchSettings, Settings, on_device
from facefleet.decode import Decoder
from facefleet.errors import CancelledError, ClosedError, FacefleetError, InternalError
from facefleet.pipeline.door import Door
from facefleet.pipeline.handlers import EmbedHandler, PhotoHandler, for_device
from facefleet.pipeline.photo import Photo
from facefleet.pipeline.stages import faces_in
from facefleet.pipeline.wire import faces_of, faces_payload, photo_payload, travels
from facefleet.telemetry.record import ANSWERS
from facefleet.types import FaceChips, Faces, Outcome
from facefleet.workers import Fleet, HandlerSpec, Payload, Work, WorkerSpec, WorkerStatus
from facefleet.workers.placement import Placement, Rebalance, StageCosts
from facefleet.workers.shipping import Lent

PHOTO, DETECT, EMBED = "photo", "detect", "embed"
_READERS = 4
_DELAY_SHARE = 0.2  # of the delay in one process: what waits here waits in a worker again
_COST_BYTES = 100_000  # of an encoded photo, for one unit of cost
_OUTSTANDING = 8  # photos that a worker holds: enough to fill its stages and its next batch
_CHIP_ROOM = 640 << 10  # results of detection: about sixteen faces
_FACES_ROOM = 64 << 10
_VECTOR_ROOM = 4096
_BALANCE_S = 5.0
_LEAST_IMAGES = 50
StageSeconds = dict[str, tuple[int, float]]
_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Halfway:
    """A photo whose faces are detected and on their way to be embedded."""

    photo: Photo
    faces: Faces
    awaiting: int
    lent: Lent | None
    error: FacefleetError | InternalError | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class FleetEngine:
    """Workers for photos.

    Args:
        settings: All options.
        pack: Name of the pack, or path of a manifest.
        devices: Names, one worker each.
        placement: Which of them do what.
    """

    def __init__(self, settings: Settings, pack: str, devices: Sequence[str], placement: Placement) -> None:
        self._settings = settings
        self._pack = pack
        self._devices = tuple(devices)
        self.placement = placement
        batch = settings.batch
        self.door = Door(max_images=batch.max_images * len(devices), max_bytes=batch.max_bytes, answers=ANSWERS)
        self._decoder = Decoder(settings.decode)
        self._readers: ThreadPoolExecutor | None = None
        whole = BatchPolicy(1, 0.0)
        faces = BatchPolicy(batch.embed, _DELAY_SHARE * batch.max_delay_ms / 1000, max_cost=float(batch.embed))
        policies = {DETECT: whole, EMBED: faces} if placement.embed else {PHOTO: whole}
        self.fleet = Fleet(self._specs(placement), policies, upstream={EMBED: DETECT} if placement.embed else None)
        self._balance = Rebalance(placement) if placement.embed and not placement.fixed else None
        self._balancer: threading.Thread | None = None
        self._stopping = threading.Event()
        self._reloading = threading.Lock()
        self._first = DETECT if placement.embed else PHOTO
        self._works: weakref.WeakKeyDictionary[Photo, Work] = weakref.WeakKeyDictionary()

    @property
    def max_images(self) -> int:
        """Photos inside at a time."""
        return self._batch().max_images * len(self._devices)

    def _batch(self) -> BatchSettings:
        """As the workers have it."""
        runtime = self._settings.runtime
        resident = runtime.resident and self._devices[0].startswith("cuda")
        return on_device(self._settings.batch) if resident else self._settings.batch

    def open(self) -> None:
        """Start the workers and wait until they are ready.

        Raises:
            FacefleetError: The first worker that cannot work says why.
        """
        self.fleet.open()
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="facefleet-read")
        if self._balance is not None:
            self._balancer = threading.Thread(target=self._watch_balance, name="facefleet-balance", daemon=True)
            self._balancer.start()

    def close(self) -> None:
        """Stop at once: photos that are not finished get a `ClosedError`."""
        self._stop(ClosedError("the engine is closed"), 0.0)

    def drain(self, deadline_s: float) -> None:
        """Stop: no more photos, those inside are finished until the deadline."""
        self._stop(ClosedError("the engine is closing"), deadline_s)

    def _stop(self, why: ClosedError, deadline_s: float) -> None:
        self.door.shut(why)
        self._stopping.set()
        if self._readers is not None:
            self._readers.shutdown()
        if deadline_s:
            self.door.wait_empty(deadline_s)
        self.fleet.close(deadline_s=0.0)
        if self._balancer is not None:
            self._balancer.join()

    def reload(self, settings: Settings, pack: str) -> None:
        """Replace pack and options in every worker, one after the other, while photos go on.

        Raises:
            FacefleetError: A new worker cannot work; those that were not replaced yet stay as they are.
        """
        with self._reloading:
            self._settings, self._pack = settings, pack
            self.fleet.reload(self._specs(self.placement))

    def submit(self, photo: Photo, *, wait: bool = True) -> Future[Outcome[Faces]]:
        """As `Scheduler.submit`."""
        self.door.enter(photo, wait=wait)
        photo.future.add_done_callback(functools.partial(_taken_back, weakref.ref(self), weakref.ref(photo)))
        if travels(photo.source):
            self._send(photo)
        else:
            assert self._readers is not None
            try:
                self._readers.submit(self._read, photo)
            except RuntimeError:
                self._answer(photo, Outcome(error=ClosedError("the engine is closed")))
        return photo.future

    def facts(self) -> Mapping[str, Any]:
        """As `LocalEngine.facts`."""
        facts = self.fleet.facts(self._first)
        devices = ", ".join(self._devices)
        return {**facts, "description": {**facts.get("description", {}), "device": devices}}

    def stage_seconds(self) -> dict[str, tuple[int, float]]:
        """Items and busy seconds by stage, of all workers together."""
        total: dict[str, tuple[int, float]] = {}
        for status in self.fleet.status():
            stages = dict(status.facts.get("stage_seconds", {}))
            if status.stage == EMBED:
                stages[EMBED] = (status.items, status.busy_s)
            for stage, (items, seconds) in stages.items():
                before = total.get(stage, (0, 0.0))
                total[stage] = (before[0] + items, before[1] + seconds)
        return total

    def queues(self) -> dict[str, int]:
        """Works that wait, by stage."""
        return self.fleet.queues()

    def status(self) -> list[WorkerStatus]:
        """What is known about every worker."""
        return self.fleet.status()

    def _watch_balance(self) -> None:
        """Move devices between the stages as the number of faces a photo moves."""
        assert self._balance is not None
        before = self.stage_seconds(), self._embed_times()
        while not self._stopping.wait(_BALANCE_S):
            now = self.stage_seconds(), self._embed_times()
            costs = stage_costs(before[0], now[0], now[1] - before[1], self._settings.batch.embed)
            if costs is None:
                continue
            before = now
            placement = self._balance.look(costs)
            if placement is None:
                continue
            _log.info("placement %d+%d: %.2f faces a photo", placement.detect, placement.embed, costs.faces)
            with self._reloading, contextlib.suppress(ClosedError):
                old = self._specs(self.placement)
                new = self._specs(placement)
                self.placement = placement
                self.fleet.reload([spec for spec, was in zip(new, old, strict=True) if spec.stage != was.stage])

    def _embed_times(self) -> LinearTime:
        """Of all embedding workers together."""
        sums = (s.facts["times"] for s in self.fleet.status() if s.stage == EMBED and "times" in s.facts)
        return functools.reduce(LinearTime.__add__, (LinearTime(*each) for each in sums), LinearTime())

    def take_back(self, photo: Photo) -> None:
        """The caller does not want it any more."""
        work = self._works.get(photo)
        if work is not None:
            self.fleet.cancel(work)

    def _specs(self, placement: Placement) -> list[WorkerSpec]:
        batch = self._batch()
        outstanding = min(batch.max_images, _OUTSTANDING + 4 * batch.detect)
        specs = []
        for number, device in enumerate(self._devices):
            options = {"settings": for_device(self._settings, device), "pack": self._pack}
            stage = placement.stage_of(number) if placement.embed else PHOTO
            if stage == EMBED:
                handler = HandlerSpec(EmbedHandler, options)
                instances, depth, room = 1, 2, _VECTOR_ROOM * 2
            else:
                handler = HandlerSpec(PhotoHandler, {**options, "embed": stage == PHOTO})
                instances = depth = outstanding
                room = _FACES_ROOM if stage == PHOTO else _CHIP_ROOM
            cores = (int(device.partition(":")[2]),) if device.startswith("cpu:") else ()
            environment = {"OMP_NUM_THREADS": "1"} if cores else {}
            specs.append(
                WorkerSpec(
                    device,
                    stage,
                    handler,
                    instances,
                    depth,
                    cores,
                    niceness=self._settings.runtime.niceness,
                    environment=environment,
                    result_bytes=room,
                )
            )
        return specs

    def _read(self, photo: Photo) -> None:
        """Read a source that does not travel; in a reading thread."""
        if photo.future.done():  # taken back
            self._answer(photo, Outcome(error=CancelledError("taken back")))
            return
        try:
            assert not isinstance(photo.source, FaceChips)
            photo.source = self._decoder.read(photo.source)
        except (FacefleetError, InternalError) as error:
            self._answer(photo, Outcome(error=error))
            return
        self._send(photo)

    def _send(self, photo: Photo) -> None:
        if isinstance(photo.source, FaceChips) and self._first == DETECT:
            self._send_chips(photo, photo.source)
            return
        payload = photo_payload(photo.source)
        work = Work(
            self._first,
            replace(payload, meta=(photo.keep_chips, photo.embed, payload.meta)),
            functools.partial(self._found, photo),
            cost=1.0 + payload.nbytes / _COST_BYTES,
            priority=photo.priority,
            deadline=photo.deadline,
        )
        self._works[photo] = work
        try:
            self.fleet.submit(work)
        except (FacefleetError, InternalError) as error:
            self._answer(photo, Outcome(error=error))

    def _send_chips(self, photo: Photo, chips: FaceChips) -> None:
        """Faces that are aligned already need no worker that detects."""
        try:
            faces = faces_in(chips, self.facts()["manifest"].embedder.dimension)
            if len(faces):
                self._embed(photo, faces, faces_payload(faces))
            else:
                self._answer(photo, Outcome(faces))
        except (FacefleetError, InternalError) as error:
            self._answer(photo, Outcome(error=error))

    def _found(self, photo: Photo, outcome: Outcome[Payload]) -> None:
        """A worker has done all, or all but embedding."""
        if outcome.error is not None:
            self._answer(photo, Outcome(error=outcome.error))
            return
        payload = outcome.unwrap()
        try:
            embedding = self._first == DETECT and photo.embed and payload.meta[4] > 0
            faces = faces_of(payload, chips=photo.keep_chips)
            if not embedding:
                self._answer(photo, Outcome(faces))
                return
            self._embed(photo, faces, payload)
        except Exception as error:
            self._answer(photo, Outcome(error=InternalError(f"{type(error).__name__}: {error}")))

    def _embed(self, photo: Photo, faces: Faces, payload: Payload) -> None:
        """Send the faces of a photo on, in parts that fit a batch."""
        count, chip = len(faces), payload.meta[6]
        sent = self._works.get(photo)
        kept = None if sent is None else self.fleet.keep(sent, payload)
        chips: Any = kept[-1] if kept is not None else memoryview(bytes(payload.buffers[-1]))
        each = int(np.prod(chip))
        size = self._settings.batch.embed
        starts = range(0, count, size)
        halfway = _Halfway(photo, faces, len(starts), kept[-1] if kept is not None else None)
        for start in starts:
            stop = min(start + size, count)
            part = chips.part(start * each, stop * each) if kept is not None else chips[start * each : stop * each]
            work = Work(
                EMBED,
                Payload((stop - start, *chip), (part,)),
                functools.partial(self._embedded, halfway, start),
                cost=float(stop - start),
                priority=photo.priority,
                deadline=photo.deadline,
            )
            try:
                self.fleet.submit(work)
            except (FacefleetError, InternalError) as error:
                self._embedded(halfway, start, Outcome(error=error))

    def _embedded(self, halfway: _Halfway, start: int, outcome: Outcome[Payload]) -> None:
        """Some faces of a photo have their vectors; with the last ones, it has its answer."""
        faces = halfway.faces
        if outcome.error is not None:
            halfway.error = outcome.error
        else:
            payload = outcome.unwrap()
            rows = slice(start, start + payload.meta)
            usable = faces.status[rows] == 0
            vectors, norms = (np.frombuffer(buffer, np.float32) for buffer in payload.buffers)
            faces.embeddings[rows][usable] = vectors.reshape(payload.meta, -1)[usable]
            faces.norms[rows][usable] = norms[usable]
        with halfway.lock:
            halfway.awaiting -= 1
            last = not halfway.awaiting
        if last:
            if halfway.lent is not None:
                self.fleet.release(halfway.lent)
            self._answer(halfway.photo, Outcome(faces) if halfway.error is None else Outcome(error=halfway.error))

    def _answer(self, photo: Photo, outcome: Outcome[Faces]) -> None:
        """Give a photo its one answer."""
        self._works.pop(photo, None)
        self.door.leave(photo, outcome)
        with contextlib.suppress(Exception):  # taken back at the same moment
            if photo.future.set_running_or_notify_cancel():
                photo.future.set_result(outcome)


def stage_costs(before: StageSeconds, now: StageSeconds, embedding: LinearTime, embed_batch: int) -> StageCosts | None:
    """What the stages cost between two looks at `stage_seconds`; None where too little was done to tell.

    Seconds are those that the stages were busy, so they hold for devices that work on one thing at a time; for others
    their ratio does.

    Args:
        before: Items and seconds by stage.
        now: The same, later.
        embedding: Batches of faces in between.
        embed_batch: Faces a batch when there are enough: idle embedders run smaller ones, which cost more a face.
    """

    def passed(stage: str) -> tuple[int, float]:
        first, last = before.get(stage, (0, 0.0)), now.get(stage, (0, 0.0))
        return last[0] - first[0], last[1] - first[1]

    images = passed("align")[0]
    if images < _LEAST_IMAGES or embedding.items < 1 or embedding.batches < 0:
        return None
    detect_s = sum(passed(stage)[1] for stage in ("load", "decode", "detect", "align"))
    return StageCosts(detect_s / images, embedding.item_s(embed_batch), embedding.items / images)


def _taken_back(engine: weakref.ref[FleetEngine], photo: weakref.ref[Photo], future: Future[Any]) -> None:
    """When a future is cancelled, its photo need not be worked on any more."""
    if future.cancelled() and (here := engine()) is not None and (gone := photo()) is not None:
        here.take_back(gone)
