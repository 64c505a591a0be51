"""The loop of a job: source -> engine -> parts -> output.

Owns the order of things: what is done already is not done again, results are durable before they count, and every
input ends in exactly one way. Runs in the caller's thread; the engine's threads do the work.

The output holds the results of exactly the inputs that the last finished run named, in their order: an input that
changed is done again, one that is not named any more is dropped (and counted). Permanent failures are not tried
again, except those whose cause may lie outside the file: see `_may_differ_now`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from facefleet.config import JobSettings
from facefleet.decode.formats import supported_formats
from facefleet.errors import CancelledError, ClosedError, ConfigError, FacefleetError, InternalError, OutputError
from facefleet.jobs.analyzer import Analyzer
from facefleet.jobs.buffer import Buffer
from facefleet.jobs.manifest import Entry, JobManifest, Known, Status
from facefleet.jobs.output import JobOutput
from facefleet.jobs.summary import JobSummary, Progress
from facefleet.sinks import JsonLinesTable, ParquetTable, PictureSink, Table
from facefleet.sources import Inputs, SourceItem
from facefleet.types import DeferredImage, Faces, ImageSource, Outcome

_MAX_AGAIN = 10_000  # more failures than this wait for the next run
_NOT_OF_RESULTS = ("threads", "chosen", "device")  # what may differ from run to run while results are the same
_FORMATS: dict[str, type[Table]] = {".parquet": ParquetTable, ".jsonl": JsonLinesTable, ".ndjson": JsonLinesTable}


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
        JobError: The output is in use, is another job's, or cannot be written; run the job again to go on.
        InternalError: Totals do not add up.
    """
    from facefleet import __version__

    if output.suffix.lower() not in _FORMATS:
        raise ConfigError(f"output {output.name!r}: unknown format", hint=f"use one of {', '.join(_FORMATS)}")
    described = {key: value for key, value in engine.describe().items() if key not in _NOT_OF_RESULTS}
    metadata = {**described, "version": __version__, "fingerprint": engine.fingerprint, "metric": "cosine"}
    table = _FORMATS[output.suffix.lower()](engine.dimension, metadata)
    with contextlib.closing(JobOutput(output, table, engine.fingerprint, overwrite=overwrite)) as target:
        return _Job(inputs, target, engine, settings or JobSettings(), pictures, progress, stop).run()


@dataclass(slots=True)
class _Waiting:
    """An input on its way, or to be tried again."""

    item: SourceItem
    position: int
    known: Known | None = None
    picture: ImageSource | None = None
    repeated: bool = False


class _Job:
    def __init__(  # one caller
        self,
        inputs: Inputs,
        output: JobOutput,
        engine: Analyzer,
        settings: JobSettings,
        pictures: Sequence[PictureSink],
        progress: Callable[[Progress], None] | None,
        stop: threading.Event | None,
    ) -> None:
        self._inputs = inputs
        self._output = output
        self._manifest: JobManifest = output.manifest
        self._engine = engine
        self._settings = settings
        self._pictures = pictures
        self._picture_names = "".join(sorted(f"{type(sink).__name__}:{sink.folder.resolve()}\n" for sink in pictures))
        self._progress = progress
        self._stop = stop or threading.Event()
        self._started = time.monotonic()
        self._buffer = Buffer(output, settings.commit_images)
        self._flight: dict[int, _Waiting] = {}
        self._in_flight: set[str] = set()
        self._again: list[_Waiting] = []
        self._formats = repr(sorted(supported_formats().items()))
        self._new_formats = self._manifest.meta("formats") not in (None, self._formats)
        self._position = self._done = self._kept = self._failed = self._faces = self._duplicates = 0

    def run(self) -> JobSummary:
        self._pass(self._fresh())
        for _ in range(self._settings.retries):
            if not self._again or self._stop.is_set():
                break
            again, self._again = self._again, []
            self._pass(self._repeated(again))
        interrupted = self._stop.is_set()
        self._check()
        dropped = 0
        if not interrupted:
            self._manifest.remember("formats", self._formats)
            dropped = self._output.merge()
        return self._summary(interrupted=interrupted, dropped=dropped)

    def _pass(self, sources: Iterator[ImageSource]) -> None:
        self._flight.clear()
        self._in_flight.clear()
        chips = any(sink.needs_chips for sink in self._pictures)
        try:
            for index, outcome in self._engine.as_ready(sources, chips=chips):
                self._finish(self._flight.pop(index), outcome)
                self._buffer.commit_if_due()
                self._report()
        except OutputError:
            raise
        except FacefleetError:
            self._buffer.commit()  # what was finished before stays done
            raise
        self._buffer.commit()
        if self._flight:
            raise InternalError(f"the engine gave no answer to {len(self._flight)} inputs")

    def _report(self) -> None:
        if self._progress is not None:
            seconds = time.monotonic() - self._started
            self._progress(Progress(self._done, self._kept, self._failed, self._faces, seconds))

    def _fresh(self) -> Iterator[ImageSource]:
        """Inputs that have to be worked on; those done before are noted."""
        number = 0
        for item in self._inputs:
            if self._stop.is_set():
                return
            known = self._manifest.state(item.key)
            seen = item.key in self._in_flight or item.key in self._buffer
            if seen or (known is not None and known.run == self._manifest.run):
                self._duplicates += 1
                continue
            waiting = _Waiting(item, self._position, known)
            self._position += 1
            if known is not None and self._is_done(item, known):
                self._kept += 1
                self._buffer.keep(item.key, waiting.position)
                self._buffer.commit_if_due()
                continue
            self._flight[number] = waiting
            self._in_flight.add(item.key)
            number += 1
            yield self._opened(waiting)

    def _repeated(self, again: list[_Waiting]) -> Iterator[ImageSource]:
        for number, waiting in enumerate(again):
            if self._stop.is_set():
                return
            self._flight[number] = waiting
            yield self._opened(waiting)

    def _is_done(self, item: SourceItem, known: Known) -> bool:
        if (item.size_bytes, item.mtime_ns) != (known.size_bytes, known.mtime_ns) or self._may_differ_now(known):
            return False
        written = known.pictures.splitlines()
        return known.status is not Status.OK or all(name in written for name in self._picture_names.splitlines())

    def _may_differ_now(self, known: Known) -> bool:
        """Whether a failure may have had a cause that is gone: permissions, a limit, a missing extra, our bug."""
        if known.code == "unsupported_format":
            return self._new_formats
        outside = known.code in ("source_unreadable", "image_too_large", "internal")
        return outside or known.status is Status.FAILED_RETRYABLE

    def _opened(self, waiting: _Waiting) -> ImageSource:
        try:
            waiting.picture = waiting.item.open()
        except (FacefleetError, OSError) as error:
            waiting.picture = DeferredImage(waiting.item.key, _raising(error))
        return waiting.picture

    def _finish(self, waiting: _Waiting, outcome: Outcome[Faces]) -> None:
        item = waiting.item
        self._in_flight.discard(item.key)
        if waiting.repeated:
            self._failed -= 1
        else:
            self._done += 1
        outcome = self._with_pictures(waiting, outcome)
        waiting.picture = None
        entry = Entry(item.key, waiting.position, item.size_bytes, item.mtime_ns, self._picture_names, Status.NO_FACE)
        if outcome.ok:
            faces = outcome.unwrap()
            self._faces += len(faces)
            status = Status.OK if len(faces) else Status.NO_FACE
            self._buffer.add(replace(entry, status=status, faces=len(faces)), faces)
            return
        error = outcome.error
        assert error is not None
        retryable = error.retryable or isinstance(error, (ClosedError, CancelledError))
        self._failed += 1
        if retryable and len(self._again) < _MAX_AGAIN:
            self._again.append(_Waiting(item, waiting.position, repeated=True))
        status = Status.FAILED_RETRYABLE if retryable else Status.FAILED_PERMANENT
        self._buffer.add(replace(entry, status=status, code=error.code, reason=str(error)))

    def _with_pictures(self, waiting: _Waiting, outcome: Outcome[Faces]) -> Outcome[Faces]:
        """Write the pictures of a result; a picture that cannot be read again fails, alone."""
        key = waiting.item.key
        before = 0 if waiting.known is None else waiting.known.faces
        try:
            for sink in self._pictures:
                sink.remove(key, before)
                if outcome.ok:
                    assert waiting.picture is not None
                    sink.write(key, waiting.picture, outcome.unwrap())
        except OutputError:
            self._buffer.commit()
            raise
        except FacefleetError as error:
            return Outcome(error=error)
        return outcome

    def _check(self) -> None:
        recorded = sum(self._manifest.counts().values())
        finished = self._kept + self._done
        if recorded != finished:
            raise InternalError(f"totals do not add up: {recorded} inputs recorded, {finished} finished")

    def _summary(self, *, interrupted: bool, dropped: int) -> JobSummary:
        counts = self._manifest.counts()
        failures = self._output.write_failures()
        return JobSummary(
            inputs=sum(counts.values()),
            ok=counts[Status.OK],
            no_face=counts[Status.NO_FACE],
            failed_retryable=counts[Status.FAILED_RETRYABLE],
            failed_permanent=counts[Status.FAILED_PERMANENT],
            faces=self._manifest.faces(),
            processed=self._done,
            duplicates=self._duplicates,
            skipped=self._inputs.skipped,
            dropped=dropped,
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
