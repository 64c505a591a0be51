"""Networks for the device's pipeline that need no file: bright squares are faces, and a chip's colors its embedding."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812

from facefleet.backends import InputContract, RunnerOptions
from facefleet.backends.torch.runner import TorchRunner
from facefleet.config import BatchSettings, DecodeSettings
from facefleet.decode import Decoder
from facefleet.models.detectors import Detector, Selection
from facefleet.models.embedders import Embedder
from facefleet.models.load import Loaded
from facefleet.packs import DetectorSpec, EmbedderSpec, Manifest, ModelFile
from facefleet.pipeline.device.resident import Resident
from facefleet.pipeline.device.scheduler import DeviceScheduler
from facefleet.pipeline.scheduler import Scheduler
from facefleet.pipeline.stages import Stages

SIDE = 128
DIMENSION = 8
CONTRACT = InputContract("rgb", (0.0,) * 3, (1.0,) * 3)


class BrightSquares(torch.nn.Module):
    """SCRFD's outputs: a cell is a face as surely as it is bright; its box and landmarks lean to its colors."""

    def forward(self, pictures: torch.Tensor) -> tuple[torch.Tensor, ...]:
        images = pictures.permute(0, 3, 1, 2).float()
        scores, boxes, points = [], [], []
        for stride in (8, 16, 32):
            cells = F.avg_pool2d(images, stride).permute(0, 2, 3, 1).flatten(1, 2).repeat_interleave(2, dim=1)
            anchor = torch.arange(cells.shape[1]) % 2
            tone = cells / 255
            score = torch.sigmoid((tone.mean(dim=2) - 0.75) * 20) * (1 - 0.1 * anchor)
            scores.append(score[..., None] * (0.5 if stride == 32 else 1))
            boxes.append(1 + tone.repeat(1, 1, 2)[..., :4] + 0.3 * anchor[None, :, None])
            shape = torch.tensor([-1, -1, 1, -1, 0, 0, -0.8, 1, 0.8, 1.0])
            points.append(shape * (1 + 0.2 * tone[..., :1]) + 0.1 * tone[..., 1:2])
        return (*scores, *boxes, *points)


class Colors(torch.nn.Module):
    """Colors of nine parts of a chip, mixed."""

    def forward(self, pictures: torch.Tensor) -> tuple[torch.Tensor, ...]:
        draw = torch.Generator().manual_seed(0)
        mix = torch.randn(27, DIMENSION, generator=draw)
        parts = F.adaptive_avg_pool2d(pictures.permute(0, 3, 1, 2).float(), 3).flatten(1)
        return ((parts / 255) @ mix + 0.1,)


class ModuleRunner(TorchRunner):
    """Runs a module that is given instead of a file."""

    def __init__(self, module: torch.nn.Module, names: tuple[str, ...], warm: tuple[int, int]) -> None:
        super().__init__(Path("none.onnx"), CONTRACT, RunnerOptions(warm=(warm,)))
        self._given, self._names = module, names

    def _open_impl(self) -> None:
        self._device = torch.device("cpu")
        self._module, self._compiled, self._fused = self._given, None, None
        self._graphs = {}


def loaded(*, sizes: tuple[int, ...] = (SIDE,), select: Selection | None = None, flip: bool = False) -> Loaded:
    """Open parts."""
    names = tuple(f"{kind}_{stride}" for kind in ("score", "bbox", "kps") for stride in (8, 16, 32))
    spec = DetectorSpec(
        family="scrfd",
        color="rgb",
        mean=(0.0,) * 3,
        std=(1.0,) * 3,
        source=(ModelFile(file="none.onnx"),),
        score=0.5,
        nms=0.4,
    )
    face = EmbedderSpec(
        family="arcface",
        color="rgb",
        mean=(0.0,) * 3,
        std=(1.0,) * 3,
        source=(ModelFile(file="none.onnx"),),
        dimension=DIMENSION,
        threshold=0.3,
    )
    detector = Detector(ModuleRunner(BrightSquares(), names, (SIDE, SIDE)), spec)
    embedder = Embedder(ModuleRunner(Colors(), ("vectors",), (112, 112)), face, flip=flip)
    detector.__enter__()
    embedder.__enter__()
    manifest = Manifest(
        schema=1, name="squares", license="none", commercial_use=True, description="", detector=spec, embedder=face
    )
    return Loaded(
        manifest=manifest,
        decoder=Decoder(DecodeSettings()),
        detector=detector,
        embedder=embedder,
        sizes=sizes,
        select=select or Selection(0.5, 0.4),
        workers=2,
        detector_sha256="",
        embedder_sha256="",
        description={},
    )


def stages_of(models: Loaded, dimension: int) -> Stages:
    assert models.detector is not None
    return Stages(models.decoder, models.detector, models.embedder, dimension, models.sizes, models.select)


def host_scheduler(models: Loaded, *, dimension: int = DIMENSION) -> Scheduler:
    return Scheduler(
        stages_of(models, dimension), workers=2, detect_batch=1, embed_batch=16, max_images=64, max_bytes=1 << 28
    )


def device_scheduler(
    models: Loaded, resident: Resident | None = None, *, dimension: int = DIMENSION
) -> DeviceScheduler:
    made = resident or Resident(models, BatchSettings(detect=4, embed=8))
    return DeviceScheduler(
        stages_of(models, dimension), made, workers=2, max_images=64, max_bytes=1 << 28, max_delay_s=0.1
    )
