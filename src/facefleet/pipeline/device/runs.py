"""Faces of any batches on their way through the embedder together.

Owns the runs that are being filled and those under way, and the memory of their results. Filled and started by one
thread, finished by another.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from facefleet.pipeline.device.answers import DeviceBatch
from facefleet.pipeline.device.lanes import Mark
from facefleet.pipeline.device.resident import Resident


@dataclass(slots=True, eq=False)
class Run:
    """Faces that are embedded together, or only cut out.

    Attributes:
        embed: Which of both.
        parts: Of each batch the first and last face, and where they lie in the run.
        count: Faces.
        result: Pinned memory of what comes back.
        done: When it has.
        chips: The faces themselves on the host, if somebody wants them.
        started: By the performance counter.
    """

    embed: bool
    parts: list[tuple[DeviceBatch, int, int, int]] = field(default_factory=list)
    count: int = 0
    result: Tensor | None = None
    done: Mark = field(default_factory=Mark)
    chips: Tensor | None = None
    started: float = 0.0

    def batches(self) -> Iterable[DeviceBatch]:
        """Whose faces it has, each once."""
        return dict.fromkeys(part[0] for part in self.parts)


class Runs:
    """Runs of a device.

    Args:
        resident: What is on it.
        guarded: Does some work for batches, which fail if it does.
    """

    def __init__(
        self, resident: Resident, guarded: Callable[[Sequence[DeviceBatch], Callable[[], None]], None]
    ) -> None:
        self._resident, self._guarded = resident, guarded
        self._open = {embed: Run(embed) for embed in (False, True)}
        self._under_way: queue.SimpleQueue[Run | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[Tensor] = queue.SimpleQueue()
        for result in resident.results:
            self._results.put(result)

    def cut(self, batch: DeviceBatch, start: int, stop: int, *, embed: bool) -> None:
        """Cut faces of a batch into the run that is being filled, and start it when it is full."""
        assert batch.slot is not None
        while start < stop:
            run = self._open[embed]  # another one after each start
            end = min(stop, start + self._resident.chips - run.count)
            run.parts.append((batch, start, end, run.count))
            self._resident.cut(batch.slot, start, end, run.count, embed=embed)
            run.count += end - start
            start = end
            if run.count == self._resident.chips:
                self._start(run)

    def flush(self) -> None:
        """Start what is there: nothing more is coming."""
        for run in list(self._open.values()):
            if run.count:
                self._start(run)

    def end(self) -> None:
        """Let `finish` return after the last one."""
        self._under_way.put(None)

    def finish(self, finished: Callable[[Run], None]) -> None:
        """Wait for run after run, hand the results to their batches and tell `finished`, until the `end`."""
        while (run := self._under_way.get()) is not None:
            self._guarded(list(run.batches()), lambda run=run: self._finish(run, finished))  # type: ignore[misc]

    def _start(self, run: Run) -> None:
        self._open[run.embed] = Run(run.embed)
        self._guarded(list(run.batches()), lambda: self._start_impl(run))

    def _start_impl(self, run: Run) -> None:
        run.started = time.perf_counter()
        result = self._results.get()
        try:
            wanted = any(batch.chips is not None for batch in run.batches())
            run.done, run.chips = self._resident.finish(run.count, result, embed=run.embed, chips=wanted)
        except BaseException:
            self._results.put(result)
            raise
        run.result = result
        self._under_way.put(run)

    def _finish(self, run: Run, finished: Callable[[Run], None]) -> None:
        assert run.result is not None
        try:
            run.done.wait()
            values = run.result.numpy()
            for batch, start, stop, at in run.parts:
                batch.results[start:stop] = values[at : at + stop - start]
                if batch.chips is not None and run.chips is not None:
                    batch.chips[start:stop] = run.chips.numpy()[at : at + stop - start]
                batch.left -= stop - start
        finally:
            self._results.put(run.result)
        finished(run)
