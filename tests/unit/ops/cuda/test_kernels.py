"""The kernels on the CPU, through Triton's interpreter, in a process of its own: chosen at its start."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason='needs the extra: pip install "facefleet[torch]"')

SCRIPT = """
import sys
import numpy as np
import torch
from facefleet import ops
from facefleet.ops import cuda, plan_letterbox

draw = np.random.default_rng(0)
def picture(height, width):
    return draw.integers(0, 256, (height, width, 3)).astype(np.uint8)

pictures = [picture(*size) for size in ((44, 64), (9, 17), (32, 32), (64, 64), (1, 5))]
packed = cuda.pack(pictures, "cpu")
plans = [plan_letterbox(each.shape[1], each.shape[0], 32, 32) for each in pictures]
boxes = draw.uniform(0, 60, (2, 40, 2))
boxes = torch.from_numpy(np.concatenate([boxes, boxes + draw.uniform(5, 30, (2, 40, 2))], 2).astype(np.float32))
valid = torch.from_numpy(draw.uniform(size=(2, 40)) > 0.2)
landmarks = torch.from_numpy((ops.TEMPLATE_112 / 3 + draw.normal(size=(3, 5, 2)) * 3).astype(np.float32))
matrices, usable = cuda.alignment_matrices(landmarks)
usable[1] = False
faces = (torch.tensor([0, 2, 3]), matrices, usable, torch.tensor([1.0, 0.5, 1.0], dtype=torch.float64))

def all_of_it():
    return cuda.letterbox(packed, plans), cuda.warp_chips(packed, *faces), cuda.nms(boxes, valid, 0.4)

plain = all_of_it()
for name in ("letterbox", "align", "nms"):
    sys.modules[f"facefleet.ops.cuda.{name}"].has_kernels = lambda tensor: True
by_kernels = all_of_it()
for one, other in zip(plain, by_kernels, strict=True):
    off = (one.int() - other.int()).abs()
    assert off.max() <= 1 and (off > 0).float().mean() < 1e-3, (off.max(), (off > 0).float().mean())
assert torch.equal(plain[2], by_kernels[2])
print("agreed")
"""


@pytest.mark.slow
def test_kernels_agree_with_pytorch_s_operators() -> None:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed: it comes with a CUDA build of torch")
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    got = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=False, timeout=280
    )
    assert got.stdout.strip() == "agreed", got.stderr[-2000:]
