"""The best chips of tracks that have ended become one embedding a track, in a thread beside decoding and detection."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from types import TracebackType
from typing import Self, TypeAlias

import numpy as np

from facefleet.config import Settings
from facefleet.jobs.video.book import Track, bests
from facefleet.models.load import load_models
from facefleet.ops import l2_normalize
from facefleet.types import Embeddings, F32Array, U8Array

ChipEmbedder: TypeAlias = Callable[[U8Array], Embeddings]
"""(n, 112, 112, 3) uint8 RGB chips, n >= 1 -> n embeddings."""

_BATCH = 16


@contextlib.contextmanager
def open_embedder(settings: Settings) -> Iterator[ChipEmbedder]:
    """The embedder of a pack alone.

    Raises:
        PackError: The pack is not there, not verified, or not understood.
        BackendError: The runtime cannot run it, or runs it wrongly.
    """
    device = settings.runtime.devices.split(",", maxsplit=1)[0]
    device = "cpu" if device.startswith("cpu") else device
    alone = replace(settings, runtime=replace(settings.runtime, devices=device))
    with contextlib.ExitStack() as stack:
        embedder = load_models(alone.pack, alone, stack, roles=("embedder",)).embedder
        assert embedder is not None
        yield embedder.embed


class TrackEmbedder:
    """Embeds tracks in a thread of its own; answers come back in order.

    Args:
        embed: Turns chips into embeddings.
    """

    def __init__(self, embed: ChipEmbedder) -> None:
        self._embed = embed
        self._thread = ThreadPoolExecutor(1, "track-embedder")
        self._waiting: list[tuple[Sequence[Track], Future[list[F32Array | None]]]] = []
        self.embedded = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(cancel_futures=True)

    def submit(self, tracks: list[Track]) -> None:
        """Embed the best faces of tracks."""
        if tracks:
            self.embedded += len(bests(tracks))
            self._waiting.append((tracks, self._thread.submit(self._tracks, tracks)))

    def collect(self, *, wait: bool = True) -> Iterator[tuple[Track, F32Array | None]]:
        """Tracks with their embeddings, in the order they were given; None without a face to embed.

        Args:
            wait: Whether for all of them; else only those that are ready.

        Raises:
            BackendError: The network failed.
        """
        while self._waiting and (wait or self._waiting[0][1].done()):
            tracks, future = self._waiting.pop(0)
            yield from zip(tracks, future.result(), strict=True)

    def _tracks(self, tracks: list[Track]) -> list[F32Array | None]:
        chips = [best.chip for best in bests(tracks)]
        parts = [self._embed(np.stack(chips[start : start + _BATCH])).vectors for start in range(0, len(chips), _BATCH)]
        vectors = np.concatenate(parts) if parts else np.empty((0, 0), np.float32)
        out: list[F32Array | None] = []
        start = 0
        for track in tracks:
            faces = track.best.faces
            rows = vectors[start : start + len(faces)]
            start += len(faces)
            out.append(mean_embedding(rows, np.array([best.usefulness for best in faces])) if len(faces) else None)
        return out


def mean_embedding(vectors: F32Array, weights: F32Array) -> F32Array:
    """(d,) L2-normalised mean of (n, d) unit vectors, weighted by how useful each is."""
    total = (vectors * weights[:, None]).sum(axis=0, keepdims=True).astype(np.float32)
    return np.asarray(l2_normalize(total)[0][0])
