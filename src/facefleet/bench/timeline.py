"""Timelines for Perfetto and chrome://tracing, and what to look for in them.

Owns the format (Chrome trace events, times in microseconds) and the summary: gaps between launches, the share of
copies, points where streams waited for each other, and the overlap that was achieved.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from facefleet.backends.timing import COMPUTE, TRANSFER_IN, TRANSFER_OUT, WAIT, Part
from facefleet.bench.stats import quantile

if TYPE_CHECKING:
    from facefleet.pipeline.observed import StageRun

_COPIES = (TRANSFER_IN, TRANSFER_OUT)
_NAMES = {COMPUTE: "kernel", TRANSFER_IN: "transfer to device", TRANSFER_OUT: "transfer to host", WAIT: "wait"}
_SYNC_S = 50e-6
Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Summary:
    """What a timeline shows; shares are 0 to 1.

    Attributes:
        runs: Runs of networks.
        streams: Lanes that ran some.
        seconds: From the first beginning to the last end.
        gap_p50_ms: Half of the gaps between two runs of a lane are no longer.
        gap_p99_ms: 99 of 100 are no longer.
        gap_share: Share of the lanes' time in gaps.
        copy_share: Share of copies in the time that runs took.
        copies_hidden: Share of the copies during which another lane computed.
        waits: Times that a run waited for a free instance for more than 50 microseconds.
        wait_ms: Mean of these waits.
        overlap: Lanes that computed at a time, on average while any did; as many as streams is full overlap.
    """

    runs: int
    streams: int
    seconds: float
    gap_p50_ms: float
    gap_p99_ms: float
    gap_share: float
    copy_share: float
    copies_hidden: float
    waits: int
    wait_ms: float
    overlap: float

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {name: round(getattr(self, name), 4) for name in Summary.__slots__}


class Trace:
    """Events, added in any order."""

    def __init__(self) -> None:
        self._events: list[dict[str, Any]] = []
        self._processes: dict[str, int] = {}
        self._threads: dict[tuple[int, str], int] = {}
        self._owners: dict[int, int] = {}
        self._lanes: dict[tuple[int, str], list[Part]] = {}
        self._flows = 0

    def run(self, group: str, stream: int, number: int, parts: Sequence[Part]) -> None:
        """One run of a network, with an arrow from the host's work to the kernel.

        Args:
            group: What is measured, a process of the trace.
            stream: Which stream.
            number: Of the run.
            parts: Its parts.
        """
        if not parts:
            return
        lane = f"stream {stream}"
        host, device = self._thread(group, f"host {stream}"), self._thread(group, lane)
        start, end = parts[0].start_s, max(part.start_s + part.seconds for part in parts)
        self._slice(host, f"run {number}", start, end - start, {"run": number})
        self._parts(group, lane, device, parts)
        kernels = [part for part in parts if part.name == COMPUTE]
        if kernels:
            self._flows += 1
            self._arrow("s", host, self._flows, start)
            self._arrow("f", device, self._flows, kernels[0].start_s)

    def stages(self, runs: Iterable[StageRun]) -> None:
        """What an engine's stages did: a lane a thread, arrows that follow each photo, queues as spans of their own."""
        ordered = sorted(runs, key=lambda run: run.start_s)
        steps: dict[int, list[tuple[float, int]]] = {}
        ends: dict[int, float] = {}
        lanes: dict[str, int] = {}
        for run in ordered:
            thread = self._thread("engine", run.thread)
            details = {"batch": len(run.photos), "photos": list(run.photos[:32])}
            several = f" x{len(run.photos)}" if run.stage in ("detect", "embed") else ""
            self._slice(thread, run.stage + several, run.start_s, run.seconds, details)
            if run.parts:
                lane = f"{run.stage} {lanes.setdefault(run.thread, len(lanes))}"
                self._parts("networks", lane, self._thread("networks", lane), run.parts)
            for photo in dict.fromkeys(run.photos):
                steps.setdefault(photo, []).append((run.start_s + run.seconds / 2, thread))
                ends[photo] = max(ends.get(photo, 0.0), run.start_s + run.seconds)
            for photo, queued in zip(run.photos, run.queued_s, strict=False):
                self._async(f"queue {run.stage}", "queues", photo, queued, run.start_s)
        for photo, places in steps.items():
            self._async(f"photo {photo}", "requests", photo, places[0][0], ends[photo])
            for index, (at, thread) in enumerate(places):
                phase = "s" if index == 0 else "f" if index == len(places) - 1 else "t"
                if len(places) > 1:
                    self._arrow(phase, thread, 1_000_000 + photo, at)

    def as_json(self) -> str:
        """The whole trace; times begin at 0."""
        first = min((event["ts"] for event in self._events if "ts" in event), default=0.0)
        for event in self._events:
            if "ts" in event:
                event["ts"] = round(event["ts"] - first, 3)
        names = [
            {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
            for name, pid in self._processes.items()
        ] + [
            {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}
            for (pid, name), tid in self._threads.items()
        ]
        return json.dumps({"traceEvents": [*names, *self._events], "displayTimeUnit": "ms"})

    def summary(self) -> dict[str, Summary]:
        """Group -> what to know about its lanes."""
        found = {}
        for name, pid in self._processes.items():
            lanes = [parts for (owner, _), parts in self._lanes.items() if owner == pid]
            if lanes:
                found[name] = _summary(lanes)
        return found

    def _parts(self, group: str, lane: str, thread: int, parts: Sequence[Part]) -> None:
        for part in parts:
            if part.name != WAIT or part.seconds > _SYNC_S:
                self._slice(thread, _NAMES.get(part.name, part.name), part.start_s, part.seconds, {})
        self._lanes.setdefault((self._processes[group], lane), []).extend(parts)

    def _slice(self, thread: int, name: str, start_s: float, seconds: float, details: dict[str, Any]) -> None:
        event = {"ph": "X", "name": name, "cat": name.split(maxsplit=1)[0], **self._place(thread)}
        self._events.append(event | {"ts": 1e6 * start_s, "dur": round(1e6 * seconds, 3), "args": details})

    def _arrow(self, phase: str, thread: int, number: int, at_s: float) -> None:
        event = {"ph": phase, "name": "request", "cat": "flow", "id": number, **self._place(thread), "ts": 1e6 * at_s}
        self._events.append(event | ({"bp": "e"} if phase == "f" else {}))

    def _async(self, name: str, group: str, number: int, start_s: float, end_s: float) -> None:
        place = self._place(self._thread(group, group))
        self._flows += 1
        for phase, at in (("b", start_s), ("e", end_s)):
            event = {"ph": phase, "name": name, "cat": group, "id": self._flows, **place, "ts": 1e6 * at}
            self._events.append(event | {"args": {"photo": number}})

    def _thread(self, group: str, name: str) -> int:
        pid = self._processes.setdefault(group, len(self._processes) + 1)
        thread = self._threads.setdefault((pid, name), len(self._threads) + 1)
        self._owners[thread] = pid
        return thread

    def _place(self, thread: int) -> dict[str, int]:
        return {"pid": self._owners[thread], "tid": thread}


def _summary(lanes: Sequence[Sequence[Part]]) -> Summary:
    gaps: list[float] = []
    lane_s = 0.0
    for parts in lanes:
        busy = sorted((part.start_s, part.start_s + part.seconds) for part in parts if part.name == COMPUTE)
        gaps += [max(0.0, later[0] - earlier[1]) for earlier, later in pairwise(busy)]
        lane_s += busy[-1][1] - busy[0][0] if busy else 0.0
    everything = [part for parts in lanes for part in parts]
    kernels = [_spans(parts, (COMPUTE,)) for parts in lanes]
    copy_s = sum(part.seconds for part in everything if part.name in _COPIES)
    kernel_s = sum(end - start for spans in kernels for start, end in spans)
    hidden = sum(
        _covered(copy, [span for other, spans in enumerate(kernels) if other != lane for span in spans])
        for lane, parts in enumerate(lanes)
        for copy in _spans(parts, _COPIES)
    )
    waits = [part.seconds for part in everything if part.name == WAIT and part.seconds > _SYNC_S]
    union = sum(end - start for start, end in _union([span for spans in kernels for span in spans]))
    ordered = sorted(gaps) or [0.0]
    starts = [part.start_s for part in everything]
    return Summary(
        runs=sum(part.name == COMPUTE for part in everything),
        streams=len(lanes),
        seconds=max(part.start_s + part.seconds for part in everything) - min(starts),
        gap_p50_ms=1000 * quantile(ordered, 50),
        gap_p99_ms=1000 * quantile(ordered, 99),
        gap_share=sum(gaps) / lane_s if lane_s else 0.0,
        copy_share=copy_s / (copy_s + kernel_s) if copy_s + kernel_s else 0.0,
        copies_hidden=hidden / copy_s if copy_s else 0.0,
        waits=len(waits),
        wait_ms=1000 * statistics.fmean(waits) if waits else 0.0,
        overlap=kernel_s / union if union else 0.0,
    )


def _spans(parts: Iterable[Part], names: Sequence[str]) -> list[Span]:
    return [(part.start_s, part.start_s + part.seconds) for part in parts if part.name in names]


def _union(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _covered(span: Span, others: Iterable[Span]) -> float:
    """Seconds of a span during which any of the others lasts."""
    inside = [(max(span[0], start), min(span[1], end)) for start, end in others if start < span[1] and end > span[0]]
    return sum(end - start for start, end in _union(inside))


def summary_lines(summaries: dict[str, Summary]) -> list[str]:
    """A sentence a group."""
    return [
        f"{name}: {each.runs} runs on {each.streams} lanes; gaps between launches p50 {each.gap_p50_ms:.3f} ms, "
        f"p99 {each.gap_p99_ms:.3f} ms ({100 * each.gap_share:.0f} % of the lanes' time); copies "
        f"{100 * each.copy_share:.1f} % of it, {100 * each.copies_hidden:.0f} % of them hidden; {each.waits} waits for "
        f"an instance, {each.wait_ms:.2f} ms each; {each.overlap:.2f} lanes compute at a time"
        for name, each in summaries.items()
    ]
