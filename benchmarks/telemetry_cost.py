"""What recording costs a call: facefleet's bound metrics beside prometheus-client asked for its labels each time.

    python benchmarks/telemetry_cost.py

The peer records the same with the same library, as its documentation shows it: ``HISTOGRAM.labels(stage).observe(x)``.
Spans are measured without a provider, which is how most processes run. One thread, best of five rounds.
"""

from __future__ import annotations

import timeit
from collections.abc import Callable

from prometheus_client import Counter, Gauge, Histogram

from facefleet.telemetry import InferenceLog, span
from facefleet.telemetry.metrics import BATCHES, SECONDS
from facefleet.telemetry.record import ANSWERS, BATCHERS, METRICS, STAGES

_SIZE = Histogram("peer_batch_size", "-", ["stage"], registry=None, buckets=BATCHES)
_PADDING = Counter("peer_padding", "-", ["stage"], registry=None)
_SECONDS = Histogram("peer_seconds", "-", ["stage"], registry=None, buckets=SECONDS)
_DEPTH = Gauge("peer_depth", "-", ["stage"], registry=None)
_AGE = Gauge("peer_age", "-", ["stage"], registry=None)


def _peer_batch() -> None:
    _SIZE.labels("detect").observe(8)
    _SECONDS.labels("detect").observe(0.045)
    _PADDING.labels("detect").inc(8)


def _peer_queue() -> None:
    _DEPTH.labels("detect").set(3)
    _AGE.labels("detect").set(0.1)


def _span() -> None:
    with span("detect", batch=8):
        pass


def _us(call: Callable[[], object], number: int = 50_000) -> float:
    return min(timeit.repeat(call, number=number, repeat=5)) / number * 1e6


def main() -> None:
    """Measure and print."""
    stage, quiet = STAGES["detect"], InferenceLog()
    pairs: list[tuple[str, Callable[[], object], Callable[[], object] | None]] = [
        ("STAGES[...].batch", lambda: STAGES["detect"].batch(8, 16, 0.045), _peer_batch),
        ("stage.took", lambda: stage.took(0.01), lambda: _SECONDS.labels("detect").observe(0.01)),
        ("stage.queue", lambda: stage.queue(3, 0.1), _peer_queue),
        ("ANSWERS.answered", lambda: ANSWERS.answered(None, faces=3, seconds=0.06), None),
        ("batcher.tick", BATCHERS["fleet"].tick, None),
        ("InferenceLog.batch, not shown", lambda: quiet.batch(8, 0.045), None),
        ("span, OpenTelemetry not there", _span, None),
    ]
    for name, own, peer in pairs:
        cost = _us(own)
        ratio = "" if peer is None else f", {_us(peer) / cost:.2f} times less than with labels looked up"
        print(f"{name}: {cost:.2f} us{ratio}")
    try:
        import opentelemetry.trace  # noqa: F401
    except ImportError:
        pass
    else:
        print(f"span, OpenTelemetry imported but not set up: {_us(_span):.2f} us")
    print(f"snapshot: {_us(METRICS.snapshot, 100):.0f} us, render: {_us(METRICS.render, 100):.0f} us")


if __name__ == "__main__":
    main()
