"""An engine's parts in this process: models, stages, threads.

Owns the order in which they are opened and given back.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np

from facefleet.batching import LatencyCurve
from facefleet.config import BatchSettings, Settings, on_device
from facefleet.errors import DeviceLostError
from facefleet.models.drawn import drawn_chips
from facefleet.models.load import ROLES, Loaded, Role, load_models
from facefleet.pipeline.adapting import measured_curve
from facefleet.pipeline.door import Door
from facefleet.pipeline.fingerprint import fingerprint
from facefleet.pipeline.observed import observed
from facefleet.pipeline.photo import Photo
from facefleet.pipeline.scheduler import Scheduler
from facefleet.pipeline.stages import Stages, stages_of
from facefleet.telemetry.record import ANSWERS
from facefleet.types import Faces, Outcome

_log = logging.getLogger(__name__)


class _HostWayError(Exception):
    """The device cannot hold the pictures; the message says why."""


class LocalEngine:
    """Models of a pack and the threads that run them.

    Args:
        settings: All options.
        pack: Name of the pack, or path of a manifest.
        roles: Which networks are opened.
        worker: Whether this is inside a worker process, whose parent counts the answers.
    """

    def __init__(self, settings: Settings, pack: str, *, roles: tuple[Role, ...] = ROLES, worker: bool = False) -> None:
        self._settings = settings
        self._pack = pack
        self._roles = roles
        self._worker = worker
        self._answers = None if worker else ANSWERS
        self._resources = contextlib.ExitStack()
        self._facts: dict[str, Any] = {}
        self._scheduler: Scheduler | None = None
        self._batch = settings.batch

    def open(self) -> None:
        """Load the models, check that they answer rightly, and start the threads.

        Raises:
            PackError: The pack is not there, not verified, or not understood.
            BackendError: The runtime cannot run it, or runs it wrongly.
        """
        try:
            self._open()
        except _HostWayError as why:
            _log.warning("pictures stay on the host: %s", why)
            runtime = replace(self._settings.runtime, resident=False)
            self._settings = replace(self._settings, runtime=runtime)
            self._open()

    def _open(self) -> None:
        with contextlib.ExitStack() as stack:
            models = load_models(self._pack, self._settings, stack, roles=self._roles)
            self._facts = {
                "manifest": models.manifest,
                "fingerprint": fingerprint(models, self._settings),
                "description": models.description,
            }
            batch = self._batch = self._settings.batch if models.host_way else on_device(self._settings.batch)
            stages = stages_of(models)
            target_s = batch.target_p99_ms / 1000 if batch.target_p99_ms else None
            options: dict[str, Any] = {
                "workers": models.workers,
                # A worker's parent does not know which way photos go there: it must never find a full house.
                "max_images": on_device(batch).max_images if self._worker else batch.max_images,
                "max_bytes": batch.max_bytes,
                "max_delay_s": batch.max_delay_ms / 1000,
                "answers": self._answers,
            }
            if models.host_way:
                if self._settings.runtime.devices.startswith("cuda"):
                    _log.info("pictures stay on the host: %s", models.host_way)
                self._scheduler = Scheduler(
                    observed(stages),
                    detect_batch=batch.detect,
                    embed_batch=batch.embed,
                    target_s=target_s,
                    curves=stage_curves(models, batch) if target_s else None,
                    **options,
                )
            else:
                self._scheduler = device_scheduler(observed(stages), models, batch, options)
            stack.callback(self._scheduler.close)
            self._resources = stack.pop_all()

    def close(self) -> None:
        """Give everything back; photos still inside get a `ClosedError`."""
        self._resources.close()

    def drain(self, deadline_s: float) -> None:
        """Stop: no more photos, those inside are finished until the deadline."""
        if self._scheduler is not None:
            self._scheduler.drain(deadline_s)
        self.close()

    @property
    def max_images(self) -> int:
        """Photos inside at a time."""
        return self._batch.max_images

    @property
    def scheduler(self) -> Scheduler:
        """The threads; open only."""
        assert self._scheduler is not None
        return self._scheduler

    def facts(self) -> Mapping[str, Any]:
        """The manifest, the fingerprint, and a description for people."""
        return self._facts

    def submit(self, photo: Photo, *, wait: bool = True) -> Future[Outcome[Faces]]:
        """As `Scheduler.submit`."""
        return self.scheduler.submit(photo, wait=wait)

    def stage_seconds(self) -> dict[str, tuple[int, float]]:
        """As `Scheduler.stage_seconds`."""
        return self.scheduler.stage_seconds()

    def batches(self) -> int:
        """Batches that the detector ran."""
        return self.scheduler.batches

    @property
    def door(self) -> Door:
        """Who is inside."""
        return self.scheduler.door

    def queues(self) -> dict[str, int]:
        """As `Scheduler.queues`."""
        return self.scheduler.queues()


def device_scheduler(stages: Stages, models: Loaded, batch: BatchSettings, options: dict[str, Any]) -> Scheduler:
    """The threads of a device that holds the pictures, which has been tried.

    Raises:
        _HostWayError: The device has no room for it, or it answers otherwise than the host.
        DeviceLostError: The device is gone.
    """
    from facefleet.decode.card import card_decoder
    from facefleet.pipeline.device.check import check_card, check_resident
    from facefleet.pipeline.device.resident import open_resident
    from facefleet.pipeline.device.scheduler import DeviceScheduler

    index = int(str(models.description["device"]).partition(":")[2] or 0)
    resident = None
    try:
        resident = open_resident(models, batch, card_decoder(index))
        check_card(resident)
        check_resident(resident, models)
    except DeviceLostError:
        raise
    except Exception as error:  # of whatever library: the host's way does without it
        if resident is not None:
            resident.close()
        raise _HostWayError(f"{type(error).__name__}: {error}") from error
    return DeviceScheduler(stages, resident, **options)


def stage_curves(models: Loaded, batch: BatchSettings) -> dict[str, LatencyCurve]:
    """Service times of the networks that are here, on blank pictures, up to the bounds of `batch`."""
    curves = {}
    detector, embedder = models.detector, models.embedder
    if detector is not None:
        shape = (*detector.warm_size, 3)
        run = detector.infer
        curves["detect"] = measured_curve(lambda n: run(np.zeros((n, *shape), np.uint8), 0.99), batch.detect)
    if embedder is not None:
        chips = drawn_chips(1)
        raw = embedder.embed
        curves["embed"] = measured_curve(lambda n: raw(np.repeat(chips, n, axis=0)), batch.embed)
    return curves
