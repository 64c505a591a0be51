"""Instruments of one process, folded together with what worker processes report.

Owns a registry of its own, never the global one of prometheus-client, and starts no thread. A worker process calls
`Metrics.snapshot` and sends it; its parent calls `Metrics.fold` with it, and `Metrics.retire` when that process is
gone. What a process counted stays counted after its end, so totals never fall.

Called from any thread: recording takes the lock of one instrument, folding and rendering another one.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import Metric

from facefleet.errors import InternalError
from facefleet.telemetry.metrics import DECLARATIONS, Declaration

Key: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]
Samples: TypeAlias = dict[str, dict[Key, float]]
Instrument = TypeVar("Instrument", Counter, Gauge, Histogram)

_VERSION = 1


class Metrics:
    """Every declared metric, for one process and the workers it reports for."""

    def __init__(self) -> None:
        self._instruments = {declared.name: _make(declared) for declared in DECLARATIONS}
        self._ticks: dict[str, float] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._live: dict[tuple[str, int], tuple[int, Samples]] = {}
        self._retired: set[tuple[str, int]] = set()
        self._gone: Samples = {}
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(_Folded(self))

    def instrument(self, name: str, kind: type[Instrument], *labels: str) -> Instrument:
        """The instrument of a declared metric for these label values, bound once so that recording looks nothing up.

        Raises:
            InternalError: It is not declared so.
        """
        found = self._instruments.get(name)
        if not isinstance(found, kind):
            raise InternalError(f"no {kind.__name__.lower()} {name!r} is declared in telemetry/metrics.py")
        return found.labels(*labels) if labels else found

    def remove(self, name: str, *labels: str) -> None:
        """Forget one series, as of a device that is gone; nothing where there is none."""
        instrument = self._instruments[name]
        with contextlib.suppress(KeyError):  # of older versions
            instrument.remove(*labels)

    def tick(self, batcher: str) -> None:
        """The loop called `batcher` runs; the age of this moment is shown."""
        self._ticks[batcher] = time.monotonic()

    def stop_ticking(self, batcher: str) -> None:
        """The loop called `batcher` ended on purpose; its age is not shown any more."""
        self._ticks.pop(batcher, None)
        self.remove("facefleet_batcher_tick_age_seconds", batcher)

    def snapshot(self) -> dict[str, Any]:
        """What this process has recorded, as plain data that JSON can carry; for `fold` in the parent."""
        number = next(self._numbers)
        samples = [
            [family, name, dict(labels), value]
            for family, found in self._own().items()
            for (name, labels), value in found.items()
        ]
        return {"version": _VERSION, "number": number, "samples": samples}

    def fold(self, worker: str, generation: int, snapshot: Mapping[str, Any]) -> None:
        """Take in what a worker process reports: its latest snapshot replaces the one before.

        Args:
            worker: Name of its place.
            generation: Which process in that place; several may live at a time.
            snapshot: From `snapshot` in that process. One that is older than the last, or of a process that was
                retired, is left out.

        Raises:
            InternalError: It is not a snapshot; what is known stays as it is.
        """
        try:
            version, number = snapshot["version"], int(snapshot["number"])
            samples: Samples = {}
            for family, name, labels, value in snapshot["samples"]:
                key = (str(name), tuple((str(label), str(text)) for label, text in labels.items()))
                samples.setdefault(str(family), {})[key] = float(value)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InternalError(f"{worker}: not a snapshot of metrics: {error!r}") from error
        if version != _VERSION:
            raise InternalError(f"{worker}: snapshot of version {version}, not {_VERSION}")
        place = (worker, generation)
        with self._lock:
            known = self._live.get(place)
            if place not in self._retired and (known is None or known[0] < number):
                self._live[place] = (number, samples)

    def retire(self, worker: str, generation: int) -> None:
        """A worker process is gone: what it counted is kept, its gauges are dropped."""
        place = (worker, generation)
        with self._lock:
            self._retired.add(place)
            _, samples = self._live.pop(place, (0, {}))
            counted = (declared for declared in DECLARATIONS if declared.kind != "gauge")
            _merge(self._gone, samples, counted)

    def render(self) -> bytes:
        """All of it in Prometheus' text format, UTF-8."""
        return generate_latest(self.registry)

    def merged(self) -> Samples:
        """Family -> sample -> value, this process and its workers together."""
        total = self._own()
        with self._lock:
            for samples in (self._gone, *(samples for _, samples in self._live.values())):
                _merge(total, samples, DECLARATIONS)
        return total

    def _own(self) -> Samples:
        now = time.monotonic()
        for batcher, at in list(self._ticks.items()):
            self.instrument("facefleet_batcher_tick_age_seconds", Gauge, batcher).set(now - at)
        found: Samples = {}
        for name, instrument in self._instruments.items():
            samples = found[name] = {}
            for metric in instrument.collect():
                for sample in metric.samples:
                    if not sample.name.endswith("_created"):
                        samples[sample.name, tuple(sample.labels.items())] = sample.value
        return found


class _Folded:
    """The collector of the registry: one family a declaration."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def describe(self) -> Iterator[Metric]:
        for declared in DECLARATIONS:
            yield _family(declared)

    def collect(self) -> Iterator[Metric]:
        merged = self._metrics.merged()
        for declared in DECLARATIONS:
            family = _family(declared)
            for (name, labels), value in merged[declared.name].items():
                family.add_sample(name, dict(labels), value)
            yield family


def _family(declared: Declaration) -> Metric:
    return Metric(declared.name.removesuffix("_total"), declared.help, declared.kind)


def _merge(into: Samples, samples: Samples, declarations: Iterable[Declaration]) -> None:
    for declared in declarations:
        target = into.setdefault(declared.name, {})
        for key, value in samples.get(declared.name, {}).items():
            if key not in target:
                target[key] = value
            elif declared.kind == "gauge" and declared.merge == "max":
                target[key] = max(target[key], value)
            else:
                target[key] += value


def _make(declared: Declaration) -> Counter | Gauge | Histogram:
    if declared.kind == "counter":
        return Counter(declared.name, declared.help, declared.labels, registry=None)
    if declared.kind == "gauge":
        return Gauge(declared.name, declared.help, declared.labels, registry=None)
    return Histogram(declared.name, declared.help, declared.labels, registry=None, buckets=declared.buckets)
