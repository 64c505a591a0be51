"""Moving a gallery to another model: every stored face is embedded again, from its chip or from its source.

Owns the order: new vectors are gathered in a table of their own, commit by commit, so that it can be stopped and gone
on with; searches use the old ones until all are there; then vectors, header and fingerprint change in one
transaction. A chip is used where there is one: it is aligned already. Else the source is read again, and must be the
same bytes.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from facefleet.errors import FacefleetError, GalleryError, InvalidEmbeddingError, SourceError
from facefleet.gallery import reads
from facefleet.gallery.checksums import row_checksum
from facefleet.gallery.chips import decode_chip
from facefleet.gallery.enrol import FaceAnalyzer, choose_face
from facefleet.gallery.erase import finish_erase, mark_erased
from facefleet.gallery.gallery import Gallery
from facefleet.gallery.records import PipelineIdentity, Sample, pipeline_text
from facefleet.gallery.vectors import checked_vectors
from facefleet.types import DeferredImage, Embeddings, Faces, FaceStatus, ImageSource, U8Array

_TARGET = "reembed_target"
_BATCH = 64
_SAME_BOX = 0.4


class ChipEmbedder(Protocol):
    """An embedder, as this module sees it."""

    def embed(self, chips: U8Array) -> Embeddings:
        """Embeddings of (n, 112, 112, 3) uint8 RGB chips."""


@dataclass(frozen=True, slots=True)
class ReembedReport:
    """How far it is.

    Attributes:
        samples: In the gallery.
        done: Embedded again, in this run or before.
        failed: Sample and why it could not be.
        finished: Whether the gallery is the new model's now.
        dropped: Samples that were removed, since they could not be embedded again and that was asked for.
    """

    samples: int
    done: int
    failed: tuple[tuple[int, str], ...]
    finished: bool
    dropped: int = 0


def reembed(
    gallery: Gallery,
    target: PipelineIdentity,
    chips: ChipEmbedder | None,
    engine: FaceAnalyzer | None,
    *,
    drop_failed: bool = False,
    progress: Callable[[int, int], None] | None = None,
    stop: threading.Event | None = None,
) -> ReembedReport:
    """Embed all faces again and make the gallery the new pipeline's.

    Args:
        gallery: Is closed for searching with the old pipeline afterwards; open it again.
        target: The new pipeline.
        chips: Embeds stored chips; None: only sources are used.
        engine: The new pipeline on whole pictures, for samples without chips; None: these fail.
        drop_failed: Whether what cannot be embedded again is removed; else the gallery stays as it was, and a later
            run goes on.
        progress: Called with samples done and in all.
        stop: When set, what is done is kept, and the next run goes on from there.

    Raises:
        GalleryError: The gallery is of this pipeline already, or the engine is not of `target`.
    """
    if target.fingerprint == gallery.header.pipeline.fingerprint:
        raise GalleryError(f"{gallery.folder}: is of this model already", hint="choose another pack")
    if engine is not None and engine.fingerprint != target.fingerprint:
        raise GalleryError("the engine is not the pipeline that the gallery is to be moved to")
    stop = stop or threading.Event()
    work = _Work(gallery, target, chips, engine, stop)
    work.begin()
    while True:
        failed = work.embed_missing(progress)
        done, samples = work.counts()
        if stop.is_set() or (failed and not drop_failed):
            return ReembedReport(samples, done, tuple(sorted(failed.items())), finished=False)
        if (dropped := work.finish(list(failed))) is not None:
            return ReembedReport(samples, done, tuple(sorted(failed.items())), finished=True, dropped=dropped)


class _Work:
    def __init__(
        self,
        gallery: Gallery,
        target: PipelineIdentity,
        chips: ChipEmbedder | None,
        engine: FaceAnalyzer | None,
        stop: threading.Event,
    ) -> None:
        self._gallery = gallery
        self._target = target
        self._chips = chips
        self._engine = engine
        self._stop = stop

    def begin(self) -> None:
        """Forget what an unfinished move to another pipeline has done."""
        text = pipeline_text(self._target)
        with self._gallery.database.writing() as db:
            if reads.meta(db, _TARGET) != text:
                db.execute("DELETE FROM reembedded")
                db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (_TARGET, text))

    def counts(self) -> tuple[int, int]:
        """Samples done, and in all."""
        with self._gallery.database.reading() as db:
            done = db.execute("SELECT COUNT(*) FROM reembedded").fetchone()[0]
            return done, reads.counts(db)[1]

    def embed_missing(self, progress: Callable[[int, int], None] | None) -> dict[int, str]:
        """Embed what is not done yet; returns what failed and why."""
        with self._gallery.database.reading() as db:
            query = "SELECT id FROM samples WHERE id NOT IN (SELECT sample FROM reembedded) ORDER BY id"
            missing = [row[0] for row in db.execute(query)]
            samples = reads.counts(db)[1]
        failed: dict[int, str] = {}
        done = samples - len(missing)
        for start in range(0, len(missing), _BATCH):
            if self._stop.is_set():
                break
            batch = missing[start : start + _BATCH]
            with self._gallery.database.reading() as db:
                found = list(reads.some_samples(db, batch).values())
            vectors = dict(self._from_chips([each for each in found if each.chip_png is not None and self._chips]))
            rest = [each for each in found if each.id not in vectors]
            for number, vector in self._from_sources(rest):
                if isinstance(vector, str):
                    failed[number] = vector
                else:
                    vectors[number] = vector
            self._keep(vectors)
            done += len(vectors)
            if progress is not None:
                progress(done, samples)
        return failed

    def _keep(self, vectors: dict[int, Any]) -> None:
        rows = []
        for number, vector in vectors.items():
            data = checked_vectors(vector, self._target.dimension)[0].astype("<f4").tobytes()
            rows.append((number, data, row_checksum(number, data)))
        with self._gallery.database.writing() as db:
            db.executemany("INSERT OR REPLACE INTO reembedded VALUES (?, ?, ?)", rows)

    def _from_chips(self, samples: Sequence[Sample]) -> Iterator[tuple[int, Any]]:
        if not samples:
            return
        assert self._chips is not None
        pixels = np.stack([decode_chip(sample.chip_png) for sample in samples if sample.chip_png is not None])
        for sample, vector in zip(samples, self._chips.embed(pixels).vectors, strict=True):
            yield sample.id, vector

    def _from_sources(self, samples: Sequence[Sample]) -> Iterator[tuple[int, Any]]:
        """A vector, or why there is none, for each sample."""
        usable = []
        for sample in samples:
            if sample.source is None or self._engine is None:
                yield sample.id, "no chip is stored and no source is known"
            else:
                usable.append(sample)
        if not usable or self._engine is None:
            return
        pictures: list[ImageSource] = [DeferredImage(str(sample.source), _reader(sample)) for sample in usable]
        for index, outcome in self._engine.as_ready(pictures):
            sample = usable[index]
            try:
                yield sample.id, _same_face(outcome.unwrap(), sample)
            except FacefleetError as error:
                yield sample.id, error.message

    def finish(self, failed: Sequence[int]) -> int | None:
        """Make the gallery the new pipeline's, unless something was enrolled meanwhile: then None."""
        gallery = self._gallery
        with gallery.writing() as change:
            db = change.db
            present = [n for n in failed if db.execute("SELECT 1 FROM samples WHERE id = ?", (n,)).fetchone()]
            change.remove_samples(present)
            left = "SELECT COUNT(*) FROM samples WHERE id NOT IN (SELECT sample FROM reembedded)"
            complete = not db.execute(left).fetchone()[0]
            if complete:
                rows = db.execute("SELECT sample, embedding, checksum FROM reembedded").fetchall()
                for number, data, checksum in rows:
                    if checksum != row_checksum(number, data):
                        raise reads.damaged(f"the new vector of sample {number}")
                    owner = db.execute("SELECT person FROM samples WHERE id = ?", (number,)).fetchone()[0]
                    db.execute(
                        "UPDATE samples SET embedding = ?, checksum = ?, revision = ? WHERE id = ?",
                        (data, row_checksum(number, owner, data), change.revision, number),
                    )
                db.execute("DELETE FROM reembedded")
                change.remember("pipeline", pipeline_text(self._target))
                change.remember("calibration", None)
                change.remember(_TARGET, None)
                change.note("reembed", None, len(rows), {"dropped": len(present)})
                mark_erased(change)
        if not complete:
            return None
        gallery.view.forget()
        finish_erase(gallery.database, gallery.view)
        return len(present)


def _reader(sample: Sample) -> Callable[[], bytes]:
    def load() -> bytes:
        assert sample.source is not None
        data = Path(sample.source).read_bytes()
        if sample.source_sha256 is not None and hashlib.sha256(data).hexdigest() != sample.source_sha256:
            raise SourceError(f"{sample.source}: is not the picture that was enrolled any more")
        return data

    return load


def _same_face(faces: Faces, sample: Sample) -> Any:  # noqa: ANN401  # a float32 array
    """The vector of the face whose box is the stored one's, or of the one that counts where no box is stored."""
    if sample.box is None:
        record, reason = choose_face(faces)
        if record is None:
            raise InvalidEmbeddingError(reason)
        return record.embedding
    good = np.flatnonzero(faces.status == FaceStatus.OK)
    box = np.array(sample.box, np.float32)
    boxes = faces.boxes[good]
    low, high = np.maximum(boxes[:, :2], box[:2]), np.minimum(boxes[:, 2:], box[2:])
    shared = np.clip(high - low, 0, None).prod(axis=1)
    joint = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1) + (box[2:] - box[:2]).prod() - shared
    overlap = shared / np.maximum(joint, 1e-6)
    if not len(good) or overlap.max() < _SAME_BOX:
        raise InvalidEmbeddingError("the face is not found again where it was")
    return faces.embeddings[good[int(overlap.argmax())]]
