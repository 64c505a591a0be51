"""The loop of a job: source -> engine -> parts -> output.

Owns the order of things: what is done already is not done again, results are durable before they count, and every
input ends in exactly one way. Runs in the caller's thread; the engine's threads do the work.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from facefleet.config import JobSettings
from facefleet.errors import ConfigError, FacefleetError, InternalError, OutputError
from facefleet.jobs.manifest import Entry, JobManifest, Status
from facefleet.jobs.output import JobOutput
from facefleet.jobs.summary import JobSummary
from facefleet.sinks import JsonLinesTable, ParquetTable, PictureSink, Span, Table
from facefleet.sources import Inputs, SourceItem
from facefleet.types import DeferredImage, Faces, ImageSource, Outcome

_COMMIT_S = 10.0
_MAX_AGAIN = 10_000  # more failures than this wait for the next run
_FORMATS: dict[str, type[Table]] = {".parquet": ParquetTable, ".jsonl": JsonLinesTable, ".ndjson": JsonLinesTable}


class Analyzer(Protocol):
    """What a job needs of an engine."""

    @property
    def fingerprint(self) -> str:
        """Digest of everything that results depend on."""

    @property
    def dimension(self) -> int:
        """Length of an embedding."""

    def describe(self) -> dict[str, str]:
        """What is in use, for the output's metadata."""

    def as_ready(
        self, images: Iterable[ImageSource], *, chips: bool = False
    ) -> Iterator[tuple[int, Outcome[Faces]]]:
        """Position and outcome of every picture, as they are ready."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job is.

    Attributes:
        done: Inputs finished in this run.
        kept: Inputs that a run before had finished.
        failed: Of `done`, those that failed.
        faces: Faces found in this run.
        seconds: Since the start.
    """

    done: int
    kept: int
    failed: int
    faces: int
    seconds: float


def run_job(
    inputs: Inputs,
    output: Path,
    engine: Analyzer,
    settings: JobSettings | None = None,
    *,
    pictures: Sequence[PictureSink] = (),
    overwrite: bool = False,
    progress: Callable[[Progress], None] | None = None,
    stop: threading.Event | None = None,
) -> JobSummary:
    """Analyze every input into one table.

    Args:
        inputs: What to analyze.
        output: ``.parquet`` or ``.jsonl``; beside it the job keeps its manifest, and a list of failed inputs.
        engine: An engine.
        settings: Options of jobs.
        pictures: Sinks that get a picture with each result.
        overwrite: Start anew instead of going on where an earlier run ended.
        progress: Called in this thread as inputs finish.
        stop: When set, inputs in progress are finished and the job returns in a state that can be gone on with.

    Returns:
        Totals. The output holds the results of exactly the inputs named, in their order, unless interrupted.

    Raises:
        ConfigError: The output's extension names no format.
        JobError: The output is in use, is another job's, or cannot be written.
    """
    if output.suffix.lower() not in _FORMATS:
        raise ConfigError(f"output {output.name!r}: unknown format", hint=f"use one of {', '.join(_FORMATS)}")
    metadata = {"schema": "1", "fingerprint": engine.fingerprint, "metric": "cosine"}
    metadata |= {key: value for key, value in engine.describe().items() if key in ("pack", "license", "detector", "embedder")}
    table = _FORMATS[output.suffix.lower()](engine.dimension, metadata)
    target = JobOutput(output, table, engine.fingerprint, overwrite=overwrite)
    with contextlib.closing(target):
        job = _Job(inputs, target, engine, settings or JobSettings(), pictures, progress, stop or threading.Event())
        return job.run()


@dataclass(slots=True)
class _Waiting:
    """An input on its way, or to be tried again."""

    item: SourceItem
    position: int
    picture: ImageSource | None = None
    repeated: bool = False


@dataclass(slots=True)
class _Buffer:
    """What is finished but not recorded yet."""

    entries: list[Entry] = field(default_factory=list)
    results: list[tuple[str, Faces]] = field(default_factory=list)
    kept: list[tuple[str, int]] = field(default_factory=list)
    since: float = field(default_factory=time.monotonic)


class _Job:
    def __init__(
        self,
        inputs: Inputs,
        output: JobOutput,
        engine: Analyzer,
        settings: JobSettings,
        pictures: Sequence[PictureSink],
        progress: Callable[[Progress], None] | None,
        stop: threading.Event,
    ) -> None:
        self._inputs = inputs
        self._output = output
        self._manifest: JobManifest = output.manifest
        self._engine = engine
        self._settings = settings
        self._pictures = pictures
        self._progress = progress
        self._stop = stop
        self._started = time.monotonic()
        self._buffer = _Buffer()
        self._flight: dict[int, _Waiting] = {}
        self._keys: set[str] = set()  # of what is in flight or in the buffer, so that it is not begun twice
        self._again: list[_Waiting] = []
        self._position = self._done = self._kept = self._failed = self._faces = self._duplicates = 0

    def run(self) -> JobSummary:
        self._pass(self._fresh())
        for _ in range(self._settings.retries):
            if not self._again or self._stop.is_set():
                break
            again, self._again = self._again, []
            self._pass(self._repeated(again))
        interrupted = self._stop.is_set()
        if not interrupted:
            self._output.merge()
        return self._summary(interrupted)

    def _pass(self, sources: Iterator[ImageSource]) -> None:
        self._flight.clear()
        chips = any(sink.needs_chips for sink in self._pictures)
        for index, outcome in self._engine.as_ready(sources, chips=chips):
            self._finish(self._flight.pop(index), outcome)
            self._commit_if_due()
            if self._progress is not None:
                seconds = time.monotonic() - self._started
                self._progress(Progress(self._done, self._kept, self._failed, self._faces, seconds))
        self._commit()

    def _fresh(self) -> Iterator[ImageSource]:
        """Inputs that have to be worked on; those done before are noted."""
        number = 0
        for item in self._inputs:
            if self._stop.is_set():
                return
            if item.key in self._keys:
                self._duplicates += 1
                continue
            known = self._manifest.state(item.key)
            if known is not None and known[0] == self._manifest.run:
                self._duplicates += 1
                continue
            position = self._position
            self._position += 1
            self._keys.add(item.key)
            if known is not None and known[1:3] == (item.size_bytes, item.mtime_ns) and known[3] is not Status.FAILED_RETRYABLE:
                self._kept += 1
                self._buffer.kept.append((item.key, position))
                self._commit_if_due()
                continue
            self._flight[number] = waiting = _Waiting(item, position)
            number += 1
            yield self._opened(waiting)

    def _repeated(self, again: list[_Waiting]) -> Iterator[ImageSource]:
        for number, waiting in enumerate(again):
            if self._stop.is_set():
                return
            self._keys.add(waiting.item.key)
            self._flight[number] = waiting
            yield self._opened(waiting)

    def _opened(self, waiting: _Waiting) -> ImageSource:
        try:
            waiting.picture = waiting.item.open()
        except (FacefleetError, OSError) as error:
            waiting.picture = DeferredImage(waiting.item.key, _raising(error))
        return waiting.picture

    def _finish(self, waiting: _Waiting, outcome: Outcome[Faces]) -> None:
        item = waiting.item
        if waiting.repeated:
            self._failed -= 1
        else:
            self._done += 1
        if outcome.ok:
            faces = outcome.unwrap()
            try:
                for sink in self._pictures:
                    assert waiting.picture is not None
                    sink.write(item.key, waiting.picture, faces)
            except OutputError:
                self._commit()
                raise
            status = Status.OK if len(faces) else Status.NO_FACE
            self._faces += len(faces)
            entry = Entry(item.key, waiting.position, item.size_bytes, item.mtime_ns, status, len(faces))
            self._buffer.results.append((item.key, faces))
        else:
            error = outcome.error
            assert error is not None
            status = Status.FAILED_RETRYABLE if error.retryable else Status.FAILED_PERMANENT
            self._failed += 1
            if error.retryable and len(self._again) < _MAX_AGAIN:
                self._again.append(_Waiting(item, waiting.position, repeated=True))
            entry = Entry(
                item.key, waiting.position, item.size_bytes, item.mtime_ns, status, code=error.code, reason=str(error)
            )
        waiting.picture = None
        self._buffer.entries.append(entry)

    def _commit_if_due(self) -> None:
        buffer = self._buffer
        size = max(len(buffer.entries), len(buffer.kept) // 16)
        if size >= self._settings.commit_images or time.monotonic() - buffer.since > _COMMIT_S:
            self._commit()

    def _commit(self) -> None:
        buffer, self._buffer = self._buffer, _Buffer()
        if not buffer.entries and not buffer.kept:
            return
        part = None
        spans: dict[str, Span] = {}
        if buffer.results:
            part, written = self._output.write_part(buffer.results)
            spans = {key: span for (key, _), span in zip(buffer.results, written, strict=True)}
        entries = [replace(entry, span=spans.get(entry.key)) for entry in buffer.entries]
        self._manifest.commit(entries, buffer.kept, part)
        self._keys -= {entry.key for entry in entries}
        self._keys -= {key for key, _ in buffer.kept}

    def _summary(self, interrupted: bool) -> JobSummary:
        counts = self._manifest.counts()
        total = sum(counts.values())
        expected = self._kept + self._done
        if total != expected:
            raise InternalError(f"totals do not add up: {total} inputs recorded, {expected} finished")
        failures = self._output.write_failures()
        return JobSummary(
            inputs=total,
            ok=counts[Status.OK],
            no_face=counts[Status.NO_FACE],
            failed_retryable=counts[Status.FAILED_RETRYABLE],
            failed_permanent=counts[Status.FAILED_PERMANENT],
            faces=self._manifest.faces(),
            processed=self._done,
            duplicates=self._duplicates,
            skipped=self._inputs.skipped,
            seconds=time.monotonic() - self._started,
            errors=self._manifest.errors(),
            interrupted=interrupted,
            output=str(self._output.path),
            failures=None if failures is None else str(failures),
        )


def _raising(error: Exception) -> Callable[[], bytes]:
    def load() -> bytes:
        raise error

    return load
