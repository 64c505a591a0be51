"""Simplification by onnxslim or onnxsim, believed only as far as it can be checked.

It runs in a process of its own, which may crash. Dimensions and answers are compared before and after; on any
difference the original is kept, and the reason is given.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto

from facefleet.models.build.dynamic import session
from facefleet.models.build.graph import dims
from facefleet.types import F32Array

TOOLS = ("onnxslim", "onnxsim")
_TIMEOUT_S = 600
_TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True)
class Simplified:
    """What came of it.

    Attributes:
        model: The simplified graph, or the original.
        tool: Which tool was used; empty if the original was kept.
        note: For people: what changed, or why nothing did.
    """

    model: ModelProto
    tool: str
    note: str


def simplify(model: ModelProto, pictures: F32Array, *, tool: str | None = None) -> Simplified:
    """Simplify a graph.

    Args:
        model: One input.
        pictures: (n, 3, h, w) float32 network inputs, n >= 2, to compare answers with.
        tool: One of `TOOLS`; None: the first that is installed.
    """
    chosen = tool or next((name for name in TOOLS if importlib.util.find_spec(name)), None)
    if chosen is None:
        return Simplified(model, "", f"not simplified: neither {' nor '.join(TOOLS)} is installed")
    with tempfile.TemporaryDirectory(prefix="facefleet-") as folder:
        before, after = Path(folder) / "before.onnx", Path(folder) / "after.onnx"
        onnx.save(model, before)
        try:
            done = subprocess.run(
                [sys.executable, "-m", chosen, str(before), str(after)],
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Simplified(model, "", f"{chosen} took longer than {_TIMEOUT_S} s; the original is kept")
        if done.returncode or not after.is_file():
            text = (done.stderr or done.stdout).strip().splitlines()
            why = f"signal {-done.returncode}" if done.returncode < 0 else (text[-1][:200] if text else "no output")
            return Simplified(model, "", f"{chosen} failed ({why}); the original is kept")
        try:
            slim = onnx.load(after)
            difference = _difference(model, slim, pictures)
        except Exception as error:  # whatever the tool made of it
            difference = f"it does not run: {error}"
    if difference:
        return Simplified(model, "", f"{chosen}: {difference}; the original is kept")
    return Simplified(slim, chosen, f"{chosen}: {len(model.graph.node)} nodes became {len(slim.graph.node)}")


def _difference(before: ModelProto, after: ModelProto, pictures: F32Array) -> str:
    """What is different, in words; empty if nothing is."""
    for side in ("input", "output"):
        shapes = [[(v.name, _kinds(dims(v))) for v in getattr(each.graph, side)] for each in (before, after)]
        if shapes[0] != shapes[1]:
            return f"its {side}s became {shapes[1]}, they were {shapes[0]}"
    name = before.graph.input[0].name
    for count in (1, len(pictures)):
        if isinstance(dims(before.graph.input[0])[0], int) and count > 1:
            break
        want, got = (session(each).run(None, {name: pictures[:count]}) for each in (before, after))
        for value, a, b in zip(before.graph.output, want, got, strict=True):
            scale = max(float(np.abs(a).max(initial=0)), 1e-6)
            if a.shape != b.shape or not float(np.abs(a - b).max(initial=0)) <= _TOLERANCE * scale:
                return f"output {value.name} differs at batch {count}"
    return ""


def _kinds(shape: list[int | str]) -> list[int | str]:
    """Dimensions, all free ones alike: tools rename them."""
    return [dim if isinstance(dim, int) else "free" for dim in shape]
