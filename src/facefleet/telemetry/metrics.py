"""Every metric of facefleet, declared: name, kind, labels, help, and what to change when it looks wrong.

Owns the declarations only and imports nothing; `registry` makes instruments of them, `record` is what code calls, and
the table of ``docs/metrics.md`` is `markdown_table`. Names follow Prometheus: base units, ``_total`` for counters.
Labels have few values, all known beforehand: never a file name, a request or a person.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]
Merge = Literal["sum", "max"]

SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
OUTCOMES = ("ok", "no_face", "failed_retryable", "failed_permanent", "cancelled", "expired", "rejected")
WORKER_STATES = ("starting", "warming", "ready", "draining", "failed", "stopped")


@dataclass(frozen=True, slots=True)
class Declaration:
    """One metric.

    Attributes:
        name: As Prometheus shows it.
        kind: What it is.
        help: What it counts, one sentence.
        tune: What to do about it.
        labels: Names of its labels.
        buckets: Upper bounds, of a histogram.
        merge: How values of several processes become one, of a gauge; counters and histograms are added.
    """

    name: str
    kind: Kind
    help: str
    tune: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    merge: Merge = "sum"


DECLARATIONS: tuple[Declaration, ...] = (
    Declaration(
        "facefleet_images_total",
        "counter",
        "Images answered with a result, whether faces were found or not.",
        "Its rate is the throughput. Compare it with what arrives: where it stays below, queues grow.",
    ),
    Declaration(
        "facefleet_faces_total",
        "counter",
        "Faces found in answered images.",
        "Divide by images: with more faces an image, the embedder needs more devices (placement) or larger batches.",
    ),
    Declaration(
        "facefleet_outcomes_total",
        "counter",
        "Answers by outcome and error code; the code is empty for ok and no_face, and where an outcome was never seen.",
        "rejected: more devices, or a larger queue where bursts are short. expired: shorter queue or longer deadline. "
        "failed_retryable: look at the code, then at restarts.",
        ("outcome", "code"),
    ),
    Declaration(
        "facefleet_image_duration_seconds",
        "histogram",
        "Time from accepting an image to its answer.",
        "The latency that callers see. Above target while stages are quick: look at queue wait, lower the batch delay.",
        buckets=SECONDS,
    ),
    Declaration(
        "facefleet_stage_duration_seconds",
        "histogram",
        "Time a stage works on one batch, or on one image where it takes them singly.",
        "The slowest stage sets the throughput: give it more threads or devices, a lower precision, larger batches.",
        ("stage",),
        SECONDS,
    ),
    Declaration(
        "facefleet_stage_queue_wait_seconds",
        "histogram",
        "Time an item waits before its stage takes it.",
        "Near the batch delay: normal. Far above: the stage is short of devices. Near zero with small batches: raise "
        "the batch delay if latency allows.",
        ("stage",),
        SECONDS,
    ),
    Declaration(
        "facefleet_stage_queue_depth",
        "gauge",
        "Items waiting for a stage.",
        "Always near its bound: this stage is the narrow place. Always zero: devices wait for the stages before it.",
        ("stage",),
    ),
    Declaration(
        "facefleet_stage_queue_age_seconds",
        "gauge",
        "Age of the item that has waited longest for a stage.",
        "Grows while depth stays: something waits behind others; look at priorities, deadlines and worker states.",
        ("stage",),
        merge="max",
    ),
    Declaration(
        "facefleet_stage_batch_size",
        "histogram",
        "Items in a batch, padding not counted.",
        "Mostly at the maximum: a larger maximum may help. Mostly 1 under load: raise the batch delay.",
        ("stage",),
        BATCHES,
    ),
    Declaration(
        "facefleet_stage_batch_limit",
        "gauge",
        "Most items a batch at present: as set, as a profile set it, or as the latency target moved it.",
        "Under load the mean of batch_size should be near it. Far below, with a queue: raise the batch delay.",
        ("stage",),
        merge="max",
    ),
    Declaration(
        "facefleet_stage_padding_rows_total",
        "counter",
        "Rows that were run only to fill a batch up to its bucket.",
        "Divide by itself plus batch_size_sum: above 0.2, add a bucket between those in use.",
        ("stage",),
    ),
    Declaration(
        "facefleet_requeues_total",
        "counter",
        "Items given to another worker because theirs ended or hung.",
        "More than a few: see which worker restarts, and its log.",
        ("stage",),
    ),
    Declaration(
        "facefleet_quarantined_total",
        "counter",
        "Items given up because they ended or hung workers repeatedly.",
        "Each names its input in the answer: keep it and report it; neighbors are not affected.",
        ("stage",),
    ),
    Declaration(
        "facefleet_worker_restarts_total",
        "counter",
        "Times the process of a worker was started again.",
        "One worker only: suspect its device. All of them: memory limits, driver, or inputs (see quarantined).",
        ("worker",),
    ),
    Declaration(
        "facefleet_worker_state",
        "gauge",
        "1 for the state that a worker is in, 0 for the others.",
        "Fewer ready than configured: capacity is missing. failed: the worker was given up; its log says why.",
        ("worker", "role", "state"),
        merge="max",
    ),
    Declaration(
        "facefleet_batcher_tick_age_seconds",
        "gauge",
        "Time since the loop that hands out batches ran last.",
        "Alert above a few seconds: the loop hangs or the machine has no processor time left.",
        ("batcher",),
        merge="max",
    ),
    Declaration(
        "facefleet_cache_hits_total",
        "counter",
        "Look-ups that a cache answered.",
        "Hits / (hits + misses) is the share of work saved; low with repeated inputs: a larger cache.",
        ("cache",),
    ),
    Declaration(
        "facefleet_cache_misses_total",
        "counter",
        "Look-ups that a cache could not answer.",
        "See hits.",
        ("cache",),
    ),
    Declaration(
        "facefleet_device_memory_used_bytes",
        "gauge",
        "Memory in use on a device.",
        "Near the limit: lower the largest batch before out-of-memory halving does it at run time.",
        ("device",),
        merge="max",
    ),
    Declaration(
        "facefleet_device_memory_limit_bytes",
        "gauge",
        "Memory that a device has.",
        "What memory in use is held against.",
        ("device",),
        merge="max",
    ),
    Declaration(
        "facefleet_device_utilization_ratio",
        "gauge",
        "Share of time that a device was busy, 0 to 1.",
        "Low with full queues: more instances a device, or decoding is the narrow place. Near 1: add devices.",
        ("device",),
        merge="max",
    ),
    Declaration(
        "facefleet_device_temperature_celsius",
        "gauge",
        "Temperature of a device.",
        "Near the card's limit it lowers its clock: throughput falls while utilization stays high.",
        ("device",),
        merge="max",
    ),
    Declaration(
        "facefleet_engine_rebuilds_total",
        "counter",
        "Engines compiled because none on disk fitted.",
        "Anything but zero at start: build engines ahead with facefleet build, and set runtime.engines.",
        ("backend",),
    ),
    Declaration(
        "facefleet_requests_total",
        "counter",
        "Requests of the server by protocol, route and status.",
        "503: overload; more devices, or fewer clients. 429: a key's rate. 5xx else: the log, by request id.",
        ("protocol", "route", "status"),
    ),
    Declaration(
        "facefleet_request_duration_seconds",
        "histogram",
        "Time from the headers of a request to the end of its answer, by protocol and route.",
        "Far above facefleet_image_duration_seconds: slow clients, or a front without processor time.",
        ("protocol", "route"),
        SECONDS,
    ),
)


def markdown_table(declarations: Iterable[Declaration] = DECLARATIONS) -> str:
    """The declarations as a Markdown table, as it stands in ``docs/metrics.md``."""
    lines = ["| metric | type | labels | what it is | how to tune from it |", "|---|---|---|---|---|"]
    for metric in declarations:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} | {metric.tune} |")
    return "\n".join(lines) + "\n"
