"""The kernels themselves on the CPU, through Triton's interpreter, in a process of its own: chosen at its start."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason='needs the extra: pip install "facefleet[torch]"')

SCRIPT = """
import json, torch, torch.nn.functional as F
from facefleet.backends.torch.fused import triton_conv as T
from facefleet.backends.torch.fused.cudnn import Operands
from facefleet.backends.torch.fused.execute import Weights
from facefleet.backends.torch.fused.plan import Map, Plan, Stem

torch.manual_seed(0)
scratch = T.Scratch(torch.device("cpu"))
found = {}
CASES = [
    (T.Tiles("gather", 64, 64, 64), 1, 3, True, False),
    (T.Tiles("gather", 32, 64, 64, 3, True), 2, 3, True, True),
    (T.Tiles("gather", 64, 32, 32, 2), 2, 1, False, False),
    (T.Tiles("rows", 64, 64, 64), 1, 3, True, True),
    (T.Tiles("rows", 64, 64, 64, swap=True), 1, 3, False, True),
]
for tiles, stride, size, residual, prelu in CASES:
    n, h, inputs, outputs = 2, 7, 128, 64
    buffer = torch.randn(n, h + 2, h + 2, inputs).half()
    x = buffer if size == 3 else buffer[:, 1:-1, 1:-1]
    side = (h - 1) // stride + 1
    weight = (torch.randn(outputs, size, size, inputs) / 30).half()
    room = torch.full((n, side + 2, side + 2, outputs), 7.0).half()
    y = room[:, 1:-1, 1:-1]
    added = torch.randn(n, side + 2, side + 2, outputs).half()[:, 1:-1, 1:-1] if residual else None
    operands = Operands(x, weight, torch.randn(outputs), torch.rand(outputs) if prelu else None, added, y, stride)
    T.launch(tiles, operands, scratch)()
    z = F.conv2d(x.permute(0, 3, 1, 2).float(), weight.permute(0, 3, 1, 2).float(), operands.bias, stride)
    z = z if added is None else z + added.permute(0, 3, 1, 2).float()
    z = F.prelu(z, operands.slope) if prelu else z
    z = z.permute(0, 2, 3, 1)
    border = bool((room[:, 0] == 7).all() and (room[:, :, -1] == 7).all())
    found[str(tiles)] = [float((y.float() - z).norm() / z.norm()), border, int(scratch.take(1, 1)[1].sum())]

stem = Stem(
    0, torch.randn(64, 3, 3, 3).double() / 30, torch.randn(64).double(), torch.rand(64).double(),
    torch.tensor([127.5, 120.0, 110.0]).double(), 1, 1,
)
weights = Weights(Plan(16, 12, (Map(64, 16, 12, 1),), (stem,)), torch.device("cpu"))
pictures = torch.randint(0, 256, (3, 16, 12, 3), dtype=torch.uint8)
x = F.pad((pictures.double() - stem.mean).permute(0, 3, 1, 2), [1] * 4)
z = F.prelu(F.conv2d(x, stem.weight.permute(0, 3, 1, 2), stem.bias), stem.slope).permute(0, 2, 3, 1)
for tiles in T.stem_candidates(stem):
    room = torch.full((3, 18, 14, 64), 7.0).half()
    y = room[:, 1:-1, 1:-1]
    T.launch_stem(tiles, stem, weights[0], pictures, y)()
    found[str(tiles)] = [float((y.double() - z).norm() / z.norm()), bool((room[:, 0] == 7).all()), 0]
print(json.dumps(found))
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton comes with CUDA builds of torch only")
def test_kernels_against_pytorch() -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=False, timeout=280
    )
    if "only 0-dimensional arrays can be converted" in done.stderr:
        pytest.skip("Triton's interpreter does not run with this numpy")
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert len(found) == 11
    for name, (difference, border, counters) in found.items():
        assert difference < 5e-4, name
        assert border, name
        assert counters == 0, name
