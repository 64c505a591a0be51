"""A plan laid out for a device, in both layouts, on the CPU: PyTorch's operators in the place of the kernels."""

from __future__ import annotations

import numpy as np
import pytest

from facefleet.backends import InputContract

from .networks import small_iresnet

torch = pytest.importorskip("torch", reason='needs the extra: pip install "facefleet[torch]"')

RGB = InputContract("rgb", (127.5,) * 3, (127.5,) * 3)


@pytest.fixture(scope="module")
def plan():
    from facefleet.backends.torch.fused.match import plan_of
    from facefleet.backends.torch.importer import module_from_onnx

    scale = np.ones(64)
    scale[7] = 0  # one normalization is a step of its own
    return plan_of(module_from_onnx(small_iresnet(scale=scale)), RGB, (16, 16))


@pytest.fixture(scope="module")
def pictures():
    return torch.from_numpy(np.random.default_rng(1).integers(0, 256, (3, 16, 16, 3)).astype(np.uint8))


def run(maps, plan, pictures):
    """As the launches do, on operands laid out for them."""
    from facefleet.backends.torch.fused.plan import Norm, Stem
    from facefleet.backends.torch.fused.reference import _convolve
    from facefleet.backends.torch.fused.tune import _reference, norm_launch

    for index, step in enumerate(plan.steps):
        if isinstance(step, Stem):
            x = torch.nn.functional.pad(pictures.double() - step.mean, (0, 0, 1, 1, 1, 1))
            maps.inside(step.target).copy_(_convolve(x, step, None))
        elif isinstance(step, Norm):
            norm_launch(maps, index)()
        else:
            operands = maps.operands(index)
            operands.y.copy_(_reference(operands, rows=len(pictures)))
    return maps.output.view(len(pictures), -1)


@pytest.mark.parametrize("family", ["bordered", "dense"])
def test_both_layouts_answer_as_the_plan_does(plan, pictures, family: str) -> None:
    from facefleet.backends.torch.fused.execute import Maps, Weights
    from facefleet.backends.torch.fused.reference import run_plan

    want = run_plan(plan, pictures)
    maps = Maps(Weights(plan, torch.device("cpu")), 3, family)
    for _ in range(2):  # borders are written once: the second run finds them as the first did
        got = run(maps, plan, pictures).double()
        assert float((got - want).norm() / want.norm()) < 3e-3  # 16-bit maps
    assert torch.nn.functional.cosine_similarity(got, want).min() > 0.99999


def test_operands_say_who_can_run_them(plan) -> None:
    from facefleet.backends.torch.fused.execute import Maps, Weights
    from facefleet.backends.torch.fused.plan import Conv

    weights = Weights(plan, torch.device("cpu"))
    bordered, dense = Maps(weights, 2, "bordered"), Maps(weights, 2, "dense")
    convolutions = [index for index, step in enumerate(plan.steps) if isinstance(step, Conv)]
    assert all(bordered.operands(index).plain() for index in convolutions)
    assert all(dense.operands(index).packed() for index in convolutions)
    padded = [index for index in convolutions if not dense.operands(index).plain()]
    assert padded
    assert any(dense.operands(index).bias_map is not None for index in padded)
    strided = bordered.operands(convolutions[0])
    assert not strided.packed()


def test_bias_maps_are_shared_by_smaller_batches(plan) -> None:
    from facefleet.backends.torch.fused.execute import Maps, Weights

    weights = Weights(plan, torch.device("cpu"))
    large, small = Maps(weights, 4, "dense"), Maps(weights, 2, "dense")
    for index in range(1, len(plan.steps) - 1):
        if not hasattr(plan.steps[index], "padding"):
            continue
        a, b = large.operands(index).bias_map, small.operands(index).bias_map
        assert (a is None) == (b is None)
        if a is not None:
            assert a.data_ptr() == b.data_ptr()
            assert len(b) == 2


def test_signatures_and_floors(plan) -> None:
    from facefleet.backends.torch.fused.plan import Conv, Norm, Stem

    names = [plan.signature(step) for step in plan.steps]
    assert names[0] == "stem 32x16x16b1 k3x3s1 prelu"
    assert names[-1] == "head 1024 -> 32"
    conv = next(step for step in plan.steps if isinstance(step, Conv))
    assert plan.signature(conv) == "conv 32x16x16b1 k3x3s1 pad 1 -> 64x16x16b1 prelu"
    assert plan.gflop(conv) == pytest.approx(2e-9 * 256 * 64 * 9 * 32)
    assert plan.moved_bytes(conv, 2) == 2 * (2 * 256 * 32 + 2 * 256 * 64) + 2 * 64 * 9 * 32
    norm = next(step for step in plan.steps if isinstance(step, Norm))
    assert plan.gflop(norm) == 0
    assert plan.moved_bytes(norm, 1) == 2 * 2 * 64 * 64
    assert plan.moved_bytes(plan.steps[0], 1) == 16 * 16 * 3 + 2 * 256 * 32
    assert isinstance(plan.steps[0], Stem)
