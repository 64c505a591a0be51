"""What workers do with photos and faces: the inside of a worker process, made of the same parts as an engine here.

Owns opening and closing of those parts. `photo` does everything to a photo, `detect` all but embedding, `embed` that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np

from facefleet.config import Settings
from facefleet.errors import FacefleetError, InternalError
from facefleet.models.embedders import Embedder
from facefleet.models.load import ROLES, load_models
from facefleet.pipeline.local import LocalEngine
from facefleet.pipeline.photo import Photo
from facefleet.pipeline.wire import faces_payload, photo_source, raw
from facefleet.types import Faces, Outcome
from facefleet.workers import BatchHandler, Payload, StreamHandler
from facefleet.workers.handler import Reply


class PhotoHandler(StreamHandler):
    """Photos in, faces out.

    Args:
        settings: All options, for one device.
        pack: Name of the pack.
        embed: Whether faces are embedded here; else they leave with their chips.
    """

    def __init__(self, settings: Settings, pack: str, *, embed: bool = True) -> None:
        self._embed = embed
        self._engine = LocalEngine(settings, pack, roles=ROLES if embed else ("detector",), worker=True)

    def open(self) -> Mapping[str, Any]:
        """Load the models, as an engine does."""
        self._engine.open()
        return self._engine.facts()

    def close(self) -> None:
        """Give them back."""
        self._engine.close()

    def facts(self) -> Mapping[str, Any]:
        """Seconds by stage, and batches of the detector."""
        scheduler = self._engine.scheduler
        return {"stage_seconds": scheduler.stage_seconds(), "batches": scheduler.batches}

    def start(self, number: int, payload: Payload, reply: Reply) -> None:
        """Begin a photo; the parent decides about order and deadlines, so here all are alike."""
        keep_chips, embed, meta = payload.meta
        source, name = photo_source(replace(payload, meta=meta))
        photo = Photo(source, keep_chips or not self._embed, embed=self._embed and embed, name=name)

        def answered(future: Future[Outcome[Faces]]) -> None:
            outcome = future.result()
            if outcome.error is not None:
                reply(number, Outcome(error=outcome.error))
                return
            reply(number, Outcome(faces_payload(outcome.unwrap())))

        try:
            self._engine.scheduler.submit(photo).add_done_callback(answered)
        except (FacefleetError, InternalError) as error:
            reply(number, Outcome(error=error))


class EmbedHandler(BatchHandler):
    """Chips in, vectors out; the faces of a batch, of whichever photos, are embedded together.

    Args:
        settings: All options, for one device.
        pack: Name of the pack.
    """

    def __init__(self, settings: Settings, pack: str) -> None:
        self._settings = settings
        self._pack = pack
        self._stack = contextlib.ExitStack()
        self._embedder: Embedder | None = None

    def open(self) -> Mapping[str, Any]:
        """Load the embedder."""
        models = load_models(self._pack, self._settings, self._stack, roles=("embedder",))
        self._embedder = models.embedder
        return {}

    def close(self) -> None:
        """Give it back."""
        self._stack.close()

    def size(self, payload: Payload) -> float:
        """Faces."""
        return float(payload.meta[0])

    def run(self, batch: Sequence[Payload]) -> Sequence[Outcome[Payload]]:
        """Embed: each payload holds the chips of some faces of one photo; meta is their shape."""
        assert self._embedder is not None
        chips = [np.frombuffer(payload.buffers[0], np.uint8).reshape(payload.meta) for payload in batch]
        found = self._embedder.embed(np.concatenate(chips) if len(chips) > 1 else chips[0])
        answers = []
        start = 0
        for part in chips:
            stop = start + len(part)
            vectors, norms = found.vectors[start:stop], found.norms[start:stop]
            answers.append(Outcome(Payload(len(part), (raw(vectors), raw(norms)))))
            start = stop
        return answers


def for_device(settings: Settings, device: str) -> Settings:
    """Settings for the worker of one device: it is that process' only one."""
    runtime = replace(settings.runtime, devices="cpu" if device.startswith("cpu") else device, isolated=False)
    return replace(settings, runtime=runtime)
