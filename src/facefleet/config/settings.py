"""Every setting of facefleet: composed frozen dataclasses with their defaults, limits and meaning.

Owns names, types, defaults and ranges; `facefleet.config.load` fills them from the command line, the environment
and a TOML file. Refuses I/O. Safe in any thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

DetSize: TypeAlias = Annotated[int, Field(ge=32, le=8192)] | Literal["native"]
"""Longer side the detector sees, in pixels, or ``native``: the picture's own size, padded to the stride."""

Backend: TypeAlias = Literal["auto", "openvino", "onnxruntime", "torch"]
Precision: TypeAlias = Literal["auto", "fp32", "bf16", "fp16", "int8"]
Placement: TypeAlias = Annotated[str, Field(pattern=r"^(auto|data|stage(:[1-9]\d*\+[1-9]\d*)?)$")]
Order: TypeAlias = Literal["area", "score", "center"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeSettings:
    """How bytes become pictures.

    Attributes:
        max_pixels: Pictures with more pixels (width x height, from the header) are refused before decoding.
        truncated: ``refuse`` files that end early, or ``read`` what is there.
        scaled: ``auto`` decodes big JPEGs at a reduced scale where the detector needs no more, and again in full
            where a face is smaller than its chip; ``off`` always decodes in full.
    """

    max_pixels: Annotated[int, Field(ge=1, le=2**31)] = 100_000_000
    truncated: Literal["refuse", "read"] = "refuse"
    scaled: Literal["auto", "off"] = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectSettings:
    """Which faces are found and kept.

    Attributes:
        sizes: Detector input sizes, all run in one pass with one suppression; rounded up to the stride.
        score: Least score kept; unset: the pack's.
        nms: Overlap (IoU) above which the weaker of two boxes is dropped; unset: the pack's.
        max_faces: Most faces kept a picture, 0 for all.
        order: Order of faces and what `max_faces` keeps first: ``area``, ``score`` or ``center`` (nearest).
        scale: ``exact`` maps each axis by its own scale; ``insightface`` both by that of the height, as insightface
            does, up to a pixel of the detector input off: for results that are compared with an existing gallery.
        min_face_px: Faces whose shorter box side is below this, in pixels of the original, are dropped.
        recheck: In bf16 on the CPU, a picture with a face that is less sure than this is detected again in fp32: where
            a detector hesitates, rounding decides. A face of more than 240 px has to be 0.12 surer (SCRFD-500m: 0.05),
            and no two anchors may tie (SCRFD-500m: they may). 0: never.
    """

    sizes: Annotated[tuple[DetSize, ...], Field(min_length=1, max_length=8)] = (640,)
    score: Annotated[float, Field(gt=0, lt=1)] | None = None
    nms: Annotated[float, Field(gt=0, le=1)] | None = None
    max_faces: Annotated[int, Field(ge=0)] = 0
    order: Order = "score"
    scale: Literal["exact", "insightface"] = "exact"
    min_face_px: Annotated[float, Field(ge=0)] = 0.0
    recheck: Annotated[float, Field(ge=0, le=1)] = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedSettings:
    """How faces become vectors.

    Attributes:
        flip: Add the embedding of the mirrored face before normalising; twice the work, slightly better.
    """

    flip: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeSettings:
    """What the networks run on.

    Attributes:
        backend: ``auto`` takes openvino where it is installed, else onnxruntime.
        devices: ``auto`` or ``cpu``: in this process, on all threads. ``cpu:0,1``: a process each, pinned to these
            processors. ``cuda``, ``cuda:0`` or ``cuda:0,1``, with the extra ``[torch]``: several run in a process each.
        isolated: Run a single device in a process of its own too, so that its crash loses nothing here.
        placement: With several devices: ``data``: each does everything; ``stage``: some detect, the others embed, as
            many as their measured times ask for; ``stage:6+2``: so many of each; ``auto``: data, which is never slower
            where both networks fit on a device.
        precision: ``auto`` takes bf16 where the CPU has it and the accuracy guard holds, else fp32.
        engines: Folder of engines that `facefleet build` made; those that fit are opened instead of compiling. ``int8``
            runs from there only. Empty: none.
        threads: Processor threads to use, 0 for min(affinity, cgroup quota).
        status: Write once a second what the engine does into a file of this user's, for `facefleet top`.
        resident: On a CUDA device, keep pictures there from decoding to embedding where the detector allows it; false:
            only the networks run on it.
        compiling: How PyTorch makes kernels of a network where no engine is opened: ``tune`` tries several for each
            layer, ``fuse`` takes the first for fused layers, ``none`` takes its own, layer by layer, and is ready at
            once; ``auto``: embedders are tuned, detectors fused. Chains of convolutions in fp16 are tuned in any case.
        niceness: How far processes of their own (`isolated`, several devices) step back for others on the same
            processors, 0 to 19, as Unix counts it.
        instances: Runs of each network that may be in progress at a time on a device, on its own streams there; 0: as
            many as threads.
    """

    backend: Backend = "auto"
    devices: Annotated[str, Field(pattern=r"^(auto|(cpu|cuda)(:\d+(,\d+)*)?)$")] = "auto"
    isolated: bool = False
    placement: Placement = "auto"
    precision: Precision = "auto"
    engines: str = ""
    threads: Annotated[int, Field(ge=0, le=1024)] = 0
    status: bool = True
    resident: bool = True
    compiling: Literal["auto", "tune", "fuse", "none"] = "auto"
    niceness: Annotated[int, Field(ge=0, le=19)] = 0
    instances: Annotated[int, Field(ge=0, le=64)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """How work is grouped.

    Where a CUDA device holds the pictures (`RuntimeSettings.resident`), what is left at its default is 32 for `detect`,
    256 for `embed` and `max_images`, and 2 GiB for `max_bytes`.

    Attributes:
        detect: Most pictures a detector batch.
        embed: Most faces an embedder batch; faces of many pictures share one.
        target_p99_ms: Move batch sizes and delays so that 99 of 100 pictures are answered in so many milliseconds, half
            of it for detection, half for embedding; `detect` and `embed` are the most then. 0: they stay as they are.
        max_delay_ms: The longest that a part-filled batch waits while more work is coming; nothing waits where none is.
            Faces between processes (`placement` ``stage``) wait a fifth of it.
        max_images: Most pictures inside the pipeline at a time.
        max_bytes: Most bytes of encoded and decoded pictures inside it at a time; one picture always fits.
    """

    detect: Annotated[int, Field(ge=1, le=256)] = 1
    embed: Annotated[int, Field(ge=1, le=256)] = 16
    target_p99_ms: Annotated[float, Field(ge=0, le=3_600_000)] = 0.0
    max_delay_ms: Annotated[float, Field(ge=0, le=60_000)] = 250.0
    max_images: Annotated[int, Field(ge=1, le=65536)] = 64
    max_bytes: Annotated[int, Field(ge=1)] = 512 * 1024 * 1024


def on_device(batch: BatchSettings) -> BatchSettings:
    """Batches for a device that holds the pictures: as given, with a device's defaults for what is not."""
    usual = BatchSettings()
    larger = {"detect": 32, "embed": 256, "max_images": 256, "max_bytes": 2 << 30}
    return replace(
        batch, **{name: value for name, value in larger.items() if getattr(batch, name) == getattr(usual, name)}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """How folder jobs run.

    Attributes:
        commit_images: Results are made durable after this many pictures.
        retries: Times a retryable failure is tried again within a run.
    """

    commit_images: Annotated[int, Field(ge=1)] = 512
    retries: Annotated[int, Field(ge=0, le=100)] = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """Results of pictures that were analyzed before.

    Attributes:
        path: File of the cache, or ``redis://...``; empty: none.
        max_bytes: Most bytes of results held; a Redis server has its own limit.
        key: What a picture is known by: the encoded ``bytes``, or the upright ``pixels``, which have to be decoded.
        near_duplicate_bits: A picture whose 256-bit perceptual hash differs in at most so many bits from one of the
            last few gets that one's result; for video. 0: off.
    """

    path: str = ""
    max_bytes: Annotated[int, Field(ge=1 << 16)] = 1 << 30
    key: Literal["bytes", "pixels"] = "bytes"
    near_duplicate_bits: Annotated[int, Field(ge=0, le=64)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings.

    Attributes:
        pack: Name of the model pack, or the path of a manifest.
        home: Folder for downloaded and converted models; empty: the user's cache folder.
    """

    pack: str = "opencv"
    home: str = ""
    decode: DecodeSettings = field(default_factory=DecodeSettings)
    detect: DetectSettings = field(default_factory=DetectSettings)
    embed: EmbedSettings = field(default_factory=EmbedSettings)
    runtime: RuntimeSettings = field(default_factory=RuntimeSettings)
    batch: BatchSettings = field(default_factory=BatchSettings)
    job: JobSettings = field(default_factory=JobSettings)
    cache: CacheSettings = field(default_factory=CacheSettings)
