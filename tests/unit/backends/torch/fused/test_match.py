"""What is recognized, that folding changes nothing, and what is left to the general path."""

from __future__ import annotations

import numpy as np
import pytest

from facefleet.backends import InputContract
from facefleet.models.build.cast import cast_graph

from .networks import Builder, small_iresnet

torch = pytest.importorskip("torch", reason='needs the extra: pip install "facefleet[torch]"')

RGB = InputContract("rgb", (127.5, 120.0, 110.0), (128.0, 64.0, 100.0))
BGR = InputContract("bgr", (127.5, 120.0, 110.0), (128.0, 64.0, 100.0))
SIZE = (16, 16)


def pictures(count: int = 3, size: int = 16):
    return torch.from_numpy(np.random.default_rng(1).integers(0, 256, (count, size, size, 3)).astype(np.uint8))


def recognized(model, contract=RGB, **options):
    from facefleet.backends.torch.fused.match import plan_of
    from facefleet.backends.torch.importer import module_from_onnx

    module = module_from_onnx(model)
    return module, plan_of(module, contract, SIZE, **options)


def exact(module, plan, contract=RGB) -> float:
    """Relative difference between a plan and the graph it was made of, both in float64."""
    from facefleet.backends.torch.fused.reference import run_plan

    images = pictures().permute(0, 3, 1, 2).double()
    if contract.color == "bgr":
        images = images.flip(1)
    mean, std = (torch.tensor(each, dtype=torch.float64).view(1, 3, 1, 1) for each in (contract.mean, contract.std))
    with torch.inference_mode():
        want = module.double()((images - mean) / std)[0]
        got = run_plan(plan, pictures())
    return float((got - want).norm() / want.norm())


def reason(model, **options) -> str:
    from facefleet.backends.torch.fused.match import Unmatched

    found = recognized(model, **options)[1]
    assert isinstance(found, Unmatched)
    return found.reason


@pytest.mark.parametrize("contract", [RGB, BGR])
def test_every_norm_is_folded_exactly(contract) -> None:
    from facefleet.backends.torch.fused.plan import Conv, Head, Norm, Stem

    module, plan = recognized(small_iresnet(), contract)
    kinds = [type(step) for step in plan.steps]
    assert kinds[0] is Stem
    assert kinds[-1] is Head
    assert kinds.count(Conv) == 8
    assert Norm not in kinds
    assert sum(each.fill is not None for each in plan.maps) == 3
    assert exact(module, plan, contract) < 1e-13


@pytest.mark.parametrize("name", ["iresnet18", "curricularface_ir101_tface"])
def test_published_layouts(name: str) -> None:
    from facefleet.backends.torch.fused.match import plan_of
    from facefleet.backends.torch.fused.plan import Norm
    from facefleet.backends.torch.fused.reference import run_plan
    from facefleet.backends.torch.importer import module_from_onnx
    from facefleet.models.build.from_torch import onnx_from_torch
    from facefleet.models.nets import NETWORKS, LoadedNetwork

    torch.manual_seed(0)
    spec = NETWORKS[name]
    module = spec.build().eval()
    for layer in module.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.running_var.uniform_(0.5, 1.5)
            layer.running_mean.normal_(0, 0.2)
            torch.nn.init.normal_(layer.bias, 0, 0.3)
    loaded = LoadedNetwork(
        module=module, name=name, family=spec.family, color=spec.color, mean=spec.mean, std=spec.std,
        size_px=(112, 112), outputs=("output",), dimension=512,
    )  # fmt: skip
    graph, _ = onnx_from_torch(loaded, exporter="script")
    contract = InputContract(spec.color, spec.mean, spec.std)
    plan = plan_of(module_from_onnx(graph), contract, (112, 112))
    assert not any(isinstance(step, Norm) for step in plan.steps)
    chips = pictures(2, 112)
    images = chips.permute(0, 3, 1, 2).double()
    images = images.flip(1) if spec.color == "bgr" else images
    with torch.inference_mode():
        want = module.double()((images - 127.5) / 127.5)
        got = run_plan(plan, chips)
    assert float((got - want).norm() / want.norm()) < 1e-5  # the exporter rounds folded weights to float32


def test_a_zero_scale_is_not_folded_by_the_border() -> None:
    from facefleet.backends.torch.fused.plan import Norm

    scale = np.ones(64)
    scale[7] = 0
    module, plan = recognized(small_iresnet(scale=scale))
    assert sum(isinstance(step, Norm) for step in plan.steps) == 1
    assert exact(module, plan) < 1e-13


def test_a_border_out_of_range_is_not_folded_by_the_border() -> None:
    from facefleet.backends.torch.fused.plan import Norm

    scale, shift = np.ones(64), np.ones(64)
    scale[3], shift[3] = 1e-6, 1.0  # -b / a is about a million
    module, plan = recognized(small_iresnet(scale=scale, shift=shift))
    assert sum(isinstance(step, Norm) for step in plan.steps) == 1
    assert exact(module, plan) < 1e-13


def test_two_readers_that_want_different_borders() -> None:
    """One map, normalized in two ways: the border serves one of them."""
    from facefleet.backends.torch.fused.plan import Norm

    build = Builder()
    x = build.prelu(build.conv("images", 3, 32), 32)
    a = build.conv(build.norm(x, 32), 32, 32)
    b = build.conv(build.norm(x, 32), 32, 32, 1)
    c = build.conv(build.norm(x, 32), 32, 64, 3, 2)
    y = build.add(build.conv(build.add(a, b), 32, 64, 3, 2), c)
    module, plan = recognized(build.model(build.head(y, 64 * 64)))
    assert sum(isinstance(step, Norm) for step in plan.steps) == 1
    assert exact(module, plan) < 1e-13


def test_a_strided_shortcut_without_weights() -> None:
    build = Builder()
    x = build.prelu(build.conv("images", 3, 32), 32)
    inner = build.prelu(build.conv(build.norm(x, 32), 32, 32), 32)
    short = build.node("MaxPool", x, kernel_shape=[1, 1], strides=[2, 2])
    y = build.add(short, build.norm(build.conv(inner, 32, 32, stride=2), 32))
    module, plan = recognized(build.model(build.head(build.conv(y, 32, 64), 64 * 64)))
    assert plan.steps[2].residual_step == 2
    assert exact(module, plan) < 1e-13


def test_activations_and_scalars_in_front() -> None:
    build = Builder()
    x = build.node("Mul", build.node("Sub", "images", build.constant(0.1)), build.constant(2.0))
    x = build.node("Relu", build.conv(x, 3, 32, stride=2))
    x = build.node("LeakyRelu", build.add(build.conv(x, 32, 32), x), alpha=0.3)
    x = build.prelu(build.conv(x, 32, 64, 1), 64, 1.5, 2.0)  # slopes above 1
    module, plan = recognized(build.model(build.head(x, 64 * 64, norm=False)))
    assert exact(module, plan) < 1e-13


@pytest.mark.parametrize(
    ("break_it", "word"),
    [
        (lambda b, x: b.conv(x, 16, 32, group=2), "groups"),
        (lambda b, x: b.conv(x, 32, 32, pads=[0, 1, 2, 1]), "uneven"),
        (lambda b, x: b.node("Sigmoid", x), "Sigmoid"),
        (lambda b, x: b.add(x, x), "Add"),
        (lambda b, x: b.conv(x, 32, 20), "whole tiles"),
        (lambda b, x: b.norm(x, 32, scale=np.full(32, 1e9)), "16-bit"),
    ],
)
def test_what_is_left_to_the_general_path(break_it, word: str) -> None:
    build = Builder()
    x = build.prelu(build.conv("images", 3, 32), 32)
    x = break_it(build, x)
    channels = 20 if word == "whole tiles" else 32
    x = build.conv(x, channels, 64, 1, 2)
    found = reason(build.model(build.head(x, 64 * 64)))
    assert word in found


def test_an_output_elsewhere() -> None:
    build = Builder()
    x = build.prelu(build.conv("images", 3, 64), 64)
    y = build.node("Sigmoid", build.head(x, 64 * 256))
    assert "not a map" in reason(build.model(y))
    assert "last fully connected" in reason(_only_pool())


def _only_pool():
    build = Builder()
    return build.model(build.node("Identity", "images"))


def test_layers_kept_in_fp32_are_respected() -> None:
    from facefleet.backends.torch.fused.match import Unmatched

    model = small_iresnet()
    _, plan = recognized(cast_graph(model, "fp16"), low=torch.float16)
    assert not isinstance(plan, Unmatched)
    kept = next(node.output[0] for node in model.graph.node if node.op_type == "Conv")
    assert "precision" in reason(cast_graph(model, "fp16", high=[kept]), low=torch.float16)
    assert "precision" in reason(model, low=torch.float16)
