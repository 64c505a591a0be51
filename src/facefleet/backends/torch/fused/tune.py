"""Which kernel runs which step: tried on the device, the fastest right one kept.

Owns the trial: every candidate's answer is compared with PyTorch in float32 before its time counts, since a library
may take a tensor for something else than was said. For large batches both layouts of the maps are tried as a whole.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # its usual name
from torch import Tensor

from facefleet.backends.torch.fused import cudnn
from facefleet.backends.torch.fused.cudnn import FusedGraph, Operands
from facefleet.backends.torch.fused.execute import FAMILIES, Family, Maps, Weights
from facefleet.backends.torch.fused.plan import Norm, Stem
from facefleet.backends.torch.fused.timing import seconds_each
from facefleet.backends.torch.fused.triton_conv import (
    KernelLaunch,
    Launch,
    LaunchPair,
    Tiles,
    candidates,
    launch,
    launch_stem,
    stem_candidates,
)

_log = logging.getLogger(__name__)
_CUDNN_FROM = 32
"""Smallest batch at which cuDNN is tried: below, a plan takes longer to make than it can ever save."""
_PLANS = 8
_PLANS_S = 4.0
"""Seconds after which no further plan of cuDNN is made for one kind of step: some are compiled when they are made."""
_LAUNCHES = 8
_TOLERANCE = 3e-3  # 16-bit products summed in float32 stay below 1e-3


@dataclass(frozen=True, slots=True)
class Choice:
    """The kernel of one kind of step.

    Attributes:
        tiles: Of a kernel of ours; None: cuDNN, or PyTorch's own operator for a normalization.
        plan: cuDNN's name for its plan; empty otherwise.
        microseconds: What it took when it was chosen.
    """

    tiles: Tiles | None
    plan: str
    microseconds: float


@dataclass(frozen=True, slots=True)
class BucketChoice:
    """The kernels of one batch bucket.

    Attributes:
        family: Layout of the maps.
        steps: By the signature of a step.
        others: What the other layouts would have taken, family -> microseconds for the whole network.
    """

    family: Family
    steps: dict[str, Choice]
    others: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> BucketChoice:
        """What `to_json` made; KeyError or TypeError if it is not that."""
        steps = {
            name: Choice(None if each["tiles"] is None else Tiles(**each["tiles"]), each["plan"], each["microseconds"])
            for name, each in content["steps"].items()
        }
        return cls(content["family"], steps, dict(content["others"]))


class Tuner:
    """Tries kernels for a plan on the device of its weights.

    Args:
        weights: Of the plan.
    """

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._graphs: dict[tuple[int, str, str], FusedGraph] = {}

    def graph(self, batch: int, family: Family, signature: str, operands: Operands) -> FusedGraph:
        """The cuDNN graph of a kind of step, built once."""
        key = (batch, family, signature)
        if key not in self._graphs:
            self._graphs[key] = FusedGraph(operands)
        return self._graphs[key]

    def bucket(self, batch: int) -> BucketChoice:
        """The fastest kernels for a batch."""
        found: dict[Family, dict[str, Choice]] = {}
        for family in ("dense", "bordered") if batch >= _CUDNN_FROM and cudnn.available() else FAMILIES[:1]:
            steps = self._family(batch, family, found.get("dense"))
            if steps is not None:
                found[family] = steps
        totals = {family: self._total(steps) for family, steps in found.items()}
        best = min(totals, key=lambda family: totals[family])
        _log.info("batch %d: %s", batch, ", ".join(f"{name} {total:.0f} us" for name, total in totals.items()))
        return BucketChoice(best, found[best], {name: total for name, total in totals.items() if name != best})

    def _total(self, steps: dict[str, Choice]) -> float:
        plan = self._weights.plan
        return sum(steps[plan.signature(step)].microseconds for step in plan.steps)

    def _family(self, batch: int, family: Family, rival: dict[str, Choice] | None) -> dict[str, Choice] | None:
        """A choice for every kind of step; None if one has no kernel in this layout, or `rival` cannot be reached."""
        plan = self._weights.plan
        maps = Maps(self._weights, batch, family)
        for index in range(len(plan.maps)):
            maps.inside(index).normal_()
        shape = (batch, plan.height, plan.width, 3)
        pictures = torch.randint(0, 256, shape, dtype=torch.uint8, device=self._weights.device)
        kinds: dict[str, list[int]] = {}
        for index, step in enumerate(plan.steps):
            kinds.setdefault(plan.signature(step), []).append(index)
        order = sorted(kinds, key=lambda each: -len(kinds[each]) * plan.gflop(plan.steps[kinds[each][0]]))
        left = None if rival is None else self._total(rival)
        chosen = {}
        with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
            for signature in order:
                steps = kinds[signature]
                for job in [pool.submit(each.compiled) for each in self._launches(maps, steps[0], pictures)]:
                    job.exception()  # what does not compile fails again, and is said, when it is tried
                trials = sorted(self._trials(maps, signature, steps, pictures), key=lambda each: each.microseconds)
                if not trials:
                    _log.info("batch %d: no kernel for %s in layout %s", batch, signature, family)
                    return None
                chosen[signature] = trials[0]
                best = trials[0].tiles or trials[0].plan
                _log.info("batch %d %s: %s %.1f us of %d", batch, signature, best, trials[0].microseconds, len(trials))
                if rival is not None and left is not None:
                    left -= len(steps) * (rival[signature].microseconds - trials[0].microseconds)
                    rest = sum(len(kinds[each]) * rival[each].microseconds for each in order if each not in chosen)
                    if left - 0.15 * rest > self._total(rival):
                        _log.info("batch %d: layout %s is slower and left alone", batch, family)
                        return None
        return chosen

    def _launches(self, maps: Maps, index: int, pictures: Tensor) -> Sequence[KernelLaunch | LaunchPair]:
        """Every launch of ours that can run a step."""
        step = self._weights.plan.steps[index]
        if isinstance(step, Norm):
            return []
        if isinstance(step, Stem):
            y = maps.inside(step.target)
            return [launch_stem(tiles, step, self._weights[index], pictures, y) for tiles in stem_candidates(step)]
        operands = maps.operands(index)
        if not operands.plain():
            return []
        whole = maps.whole(index)
        return [launch(tiles, operands, maps.scratch) for tiles in candidates(operands, whole=whole)]

    def _trials(self, maps: Maps, signature: str, steps: list[int], pictures: Tensor) -> Iterator[Choice]:
        step = self._weights.plan.steps[steps[0]]
        turns = (steps * _LAUNCHES)[: max(_LAUNCHES, min(len(steps), 16))]
        if isinstance(step, Norm):
            yield Choice(None, "", 1e6 * seconds_each([norm_launch(maps, index) for index in turns]))
            return
        if isinstance(step, Stem):
            for tiles in stem_candidates(step):
                run = launch_stem(tiles, step, self._weights[steps[0]], pictures, maps.inside(step.target))
                yield from self._timed(tiles, "", [run] * _LAUNCHES, lambda: True)
            return
        operands = {index: maps.operands(index) for index in set(turns)}
        first = operands[steps[0]]
        want = _reference(first)
        if first.plain():
            for tiles in candidates(first, whole=maps.whole(steps[0])):
                runs = [launch(tiles, operands[index], maps.scratch) for index in turns]
                yield from self._timed(tiles, "", runs, lambda: _agrees(first, want))
        if maps.batch >= _CUDNN_FROM and cudnn.available() and first.packed():
            graph = self.graph(maps.batch, maps.family, signature, first)
            started = time.monotonic()
            for number in range(min(graph.count, _PLANS)):
                if time.monotonic() - started < _PLANS_S and graph.build(number):
                    work = maps.scratch.bytes(graph.workspace_bytes(number))
                    planned = [graph.launch(number, operands[index], work) for index in turns]
                    yield from self._timed(None, graph.name(number), planned, lambda: _agrees(first, want))

    def _timed(
        self, tiles: Tiles | None, plan: str, runs: Sequence[Launch], right: Callable[[], bool]
    ) -> Iterator[Choice]:
        """The choice with its time, unless it does not run or answers wrong."""
        try:
            runs[0]()
            torch.cuda.synchronize()
        except Exception as error:  # Triton's and cuDNN's exceptions share no base class
            if isinstance(error, torch.AcceleratorError):
                raise
            _log.debug("%s does not run: %s", tiles or plan, str(error).splitlines()[0] if str(error) else error)
            return
        if not right():
            _log.warning("%s answers wrong and is not used", tiles or plan)
            return
        yield Choice(tiles, plan, 1e6 * seconds_each(runs))


def norm_launch(maps: Maps, index: int) -> Launch:
    """A normalization that could not be folded, by PyTorch's own operator."""
    step, numbers = maps.weights.plan.steps[index], maps.weights[index]
    assert isinstance(step, Norm)
    source, target = maps.inside(step.source), maps.inside(step.target)

    def run() -> None:
        torch.addcmul(numbers["shift"], source, numbers["scale"], out=target)

    return run


def _reference(operands: Operands, rows: int = 2) -> Tensor:
    """(rows, h, w, outputs) float32 by PyTorch, for the first pictures."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        x = operands.x[:rows].permute(0, 3, 1, 2).float()
        z = F.conv2d(x, operands.weight.permute(0, 3, 1, 2).float(), None, operands.stride, operands.padding)
    bias = operands.bias if operands.bias_map is None else operands.bias_map[:rows].float()
    z = z.permute(0, 2, 3, 1) + bias
    if operands.residual is not None:
        z = z + operands.residual[:rows].float()
    if operands.slope is not None:
        z = torch.where(z > 0, z, z * operands.slope)
    return z


def _agrees(operands: Operands, want: Tensor) -> bool:
    got = operands.y[: len(want)].float()
    return bool((got - want).norm() <= _TOLERANCE * want.norm())
