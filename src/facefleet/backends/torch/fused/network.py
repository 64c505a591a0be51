"""A recognized network on a CUDA device: what the runner captures, tuned where nothing is remembered.

Owns the weights, the choices and what of them is kept in an engine: one JSON file with the choices and one archive
with the compiled kernels. Buckets are made under the runner's lock; a bucket's call only launches.
"""

from __future__ import annotations

import json
import logging
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from facefleet.backends.torch.fused import cudnn
from facefleet.backends.torch.fused.execute import Maps, Weights
from facefleet.backends.torch.fused.kernel_files import archive, restore
from facefleet.backends.torch.fused.plan import Norm, Plan, Stem
from facefleet.backends.torch.fused.triton_conv import KernelLaunch, Launch, LaunchPair, launch, launch_stem
from facefleet.backends.torch.fused.tune import BucketChoice, Tuner, norm_launch

_log = logging.getLogger(__name__)
CHOICES = "fused.json"
KERNELS = "fused-kernels.zip"


class FusedNetwork:
    """A plan on a device.

    Args:
        plan: Of the network.
        device: A CUDA device.
        engine: Folder that `save` wrote to; its choices are used if they were made by the same libraries on the same
            kind of device.
    """

    def __init__(self, plan: Plan, device: torch.device, engine: Path | None = None) -> None:
        self.plan = plan
        self._weights = Weights(plan, device)
        self._tuner = Tuner(self._weights)
        self._facts = _facts(device)
        self._choices: dict[int, BucketChoice] = {}
        self._buckets: list[FusedBucket] = []
        if engine is not None and (engine / CHOICES).is_file():
            self._load(engine)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of its pictures."""
        return self.plan.height, self.plan.width

    @property
    def choices(self) -> dict[int, BucketChoice]:
        """By batch."""
        return dict(self._choices)

    def bucket(self, batch: int) -> FusedBucket:
        """The network for one batch size, on maps of its own; tuned first if nothing is remembered."""
        if batch not in self._choices:
            self._choices[batch] = self._tuner.bucket(batch)
        try:
            made = FusedBucket(self._weights, self._tuner, batch, self._choices[batch])
        except LookupError as error:  # a remembered plan that this cuDNN does not list
            _log.warning("batch %d is tuned again: %s", batch, error)
            self._choices[batch] = self._tuner.bucket(batch)
            made = FusedBucket(self._weights, self._tuner, batch, self._choices[batch])
        self._buckets.append(made)
        return made

    def save(self, folder: Path) -> None:
        """Write choices and compiled kernels into `folder`."""
        content = {
            "facts": self._facts,
            "buckets": {str(batch): choice.to_json() for batch, choice in sorted(self._choices.items())},
        }
        (folder / CHOICES).write_text(json.dumps(content, indent=1))
        hashes = set().union(*(bucket.compiled() for bucket in self._buckets))
        (folder / KERNELS).write_bytes(archive(sorted(hashes)))

    def _load(self, engine: Path) -> None:
        try:
            content = json.loads((engine / CHOICES).read_text())
            if content["facts"] != self._facts:
                _log.warning(
                    "%s was tuned with %s, this is %s: it is tuned again", engine, content["facts"], self._facts
                )
                return
            self._choices = {int(batch): BucketChoice.from_json(each) for batch, each in content["buckets"].items()}
            if (engine / KERNELS).is_file():
                restore((engine / KERNELS).read_bytes())
        except (ValueError, KeyError, TypeError, OSError, zipfile.BadZipFile) as error:
            _log.warning("%s is damaged (%s): it is tuned again", engine / CHOICES, error)
            self._choices = {}


class FusedBucket:
    """The launches of one batch size, in order.

    Args:
        weights: Of the plan.
        tuner: Keeps cuDNN's graphs.
        batch: Pictures.
        choice: Kernels.

    Raises:
        LookupError: cuDNN does not list a chosen plan.
    """

    def __init__(self, weights: Weights, tuner: Tuner, batch: int, choice: BucketChoice) -> None:
        self._weights, self._choice = weights, choice
        self.maps = Maps(weights, batch, choice.family)
        self.launches: list[Launch] = []
        self._pictures: Tensor | None = None
        self._stem: KernelLaunch | LaunchPair | None = None
        plan = weights.plan
        for index, step in enumerate(plan.steps):
            chosen = choice.steps[plan.signature(step)]
            if isinstance(step, Stem):
                continue  # bound to the pictures at the first call
            if isinstance(step, Norm):
                self.launches.append(norm_launch(self.maps, index))
                continue
            operands = self.maps.operands(index)
            if chosen.tiles is not None:
                self.launches.append(launch(chosen.tiles, operands, self.maps.scratch))
                continue
            graph = tuner.graph(batch, choice.family, plan.signature(step), operands)
            number = graph.index_of(chosen.plan)
            if number is None or not graph.build(number):
                raise LookupError(f"cuDNN has no plan {chosen.plan} for {plan.signature(step)}")
            work = self.maps.scratch.bytes(graph.workspace_bytes(number))
            self.launches.append(graph.launch(number, operands, work))

    def __call__(self, pictures: Tensor) -> tuple[Tensor]:
        """Launch everything on the current stream.

        Args:
            pictures: (batch, h, w, 3) uint8 on the device; the same tensor at every call, if it is captured.

        Returns:
            (batch, dimension) float32, overwritten by the next call.
        """
        if self._pictures is not pictures:
            stem = self._weights.plan.steps[0]
            assert isinstance(stem, Stem)
            tiles = self._choice.steps[self._weights.plan.signature(stem)].tiles
            assert tiles is not None
            self._stem = launch_stem(tiles, stem, self._weights[0], pictures, self.maps.inside(stem.target))
            self._pictures = pictures
        assert self._stem is not None
        self._stem()
        for each in self.launches:
            each()
        return (self.maps.output.view(len(pictures), -1),)

    def compiled(self) -> set[str]:
        """Triton's hashes of its kernels; that of the first layer is known after a call."""
        ours = (each for each in (self._stem, *self.launches) if isinstance(each, KernelLaunch | LaunchPair))
        return set().union(*(each.compiled() for each in ours))


def _facts(device: torch.device) -> dict[str, Any]:
    import triton

    return {
        "device": torch.cuda.get_device_name(device),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cudnn": cudnn.version() if cudnn.available() else "",
    }
