"""The definitions: counts as published, any batch and size, and rows that do not depend on their neighbors."""

from __future__ import annotations

import math

import pytest

from facefleet.models.nets import NETWORKS
from tests.unit.models.nets.published import random_network

# From the published checkpoints: tensors with num_batches_tracked, and trained parameters.
PUBLISHED = {
    "iresnet50": (475, 43_590_848),
    "iresnet100": (925, 65_156_160),
    "curricularface_ir101": (672, 65_128_768),
    "curricularface_ir101_tface": (917, 65_150_912),
    "adaface_ir101": (917, 65_150_912),
    "retinaface_mobilenet0.25": (300, 426_608),
    "retinaface_resnet50": (456, 27_293_600),
}
# One key of each part that a published checkpoint has, with its shape.
LANDMARKS = {
    "iresnet50": {
        "conv1.weight": (64, 3, 3, 3),
        "layer1.0.downsample.0.weight": (64, 64, 1, 1),
        "layer3.13.prelu.weight": (256,),
        "layer4.0.bn3.running_var": (512,),
        "fc.weight": (512, 25088),
        "features.running_mean": (512,),
    },
    "mobilefacenet": {
        "layers.0.layers.0.weight": (128, 3, 3, 3),
        "layers.1.layers.0.weight": (128, 2, 3, 3),
        "layers.2.layers.1.layers.2.weight": (128,),
        "layers.5.layers.5.layers.2.layers.0.weight": (256, 256, 1, 1),
        "layers.6.layers.0.layers.0.weight": (512, 256, 1, 1),
        "conv_sep.layers.0.weight": (512, 256, 1, 1),
        "features.layers.0.layers.0.weight": (512, 1, 7, 7),
        "features.layers.2.weight": (512, 512),
        "features.layers.3.running_var": (512,),
    },
    "curricularface_ir101": {
        "input_layer.2.weight": (64,),
        "body.3.shortcut_layer.0.weight": (128, 64, 1, 1),
        "body.16.shortcut_layer.1.weight": (256,),
        "body.46.shortcut_layer.0.weight": (512, 256, 1, 1),
        "body.48.res_layer.4.running_mean": (512,),
        "output_layer.3.weight": (512, 25088),
        "output_layer.4.running_mean": (512,),
    },
    "adaface_ir18": {"body.0.res_layer.5.running_mean": (64,), "body.7.res_layer.3.weight": (512,)},
    "retinaface_mobilenet0.25": {
        "body.stage1.0.0.weight": (8, 3, 3, 3),
        "body.stage1.5.3.weight": (64, 64, 1, 1),
        "fpn.output3.0.weight": (64, 256, 1, 1),
        "fpn.merge2.0.weight": (64, 64, 3, 3),
        "ssh1.conv3X3.0.weight": (32, 64, 3, 3),
        "ssh3.conv7x7_3.1.running_mean": (16,),
        "ClassHead.0.conv1x1.weight": (4, 64, 1, 1),
        "BboxHead.1.conv1x1.bias": (8,),
        "LandmarkHead.2.conv1x1.bias": (20,),
    },
    "retinaface_resnet50": {
        "body.conv1.weight": (64, 3, 7, 7),
        "body.layer3.5.conv2.weight": (256, 256, 3, 3),
        "fpn.output1.0.weight": (256, 512, 1, 1),
        "ClassHead.0.conv1x1.weight": (4, 256, 1, 1),
    },
}


@pytest.mark.parametrize("name", NETWORKS)
def test_counts(name: str) -> None:
    import torch

    spec = NETWORKS[name]
    with torch.device("meta"):
        module = spec.build()
    state = module.state_dict()
    assert (len(state), sum(p.numel() for p in module.parameters())) == (spec.keys, spec.parameters)
    assert PUBLISHED.get(name, (spec.keys, spec.parameters)) == (spec.keys, spec.parameters)
    for key, shape in LANDMARKS.get(name, {}).items():
        assert tuple(state[key].shape) == shape, key


@pytest.mark.parametrize("name", ["mobilefacenet", "mobilefacenet_deep", "iresnet18", "adaface_ir18"])
def test_embedder_rows_do_not_depend_on_the_batch(name: str) -> None:
    import torch

    module = random_network(name)
    x = torch.randn(2, 3, 112, 112, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        both = module(x)
        one = module(x[1:])
    assert both.shape == (2, 512)
    assert both.dtype == torch.float32
    torch.testing.assert_close(both[1:], one, rtol=1e-4, atol=1e-4 * float(one.abs().max()))
    assert not torch.allclose(both[0], both[1], rtol=0, atol=1e-2 * float(one.abs().max()))
    assert float((both.norm(dim=1) - 1).abs().min()) > 0.01, "embeddings leave the network unnormalized"


@pytest.mark.parametrize(("height", "width"), [(64, 96), (75, 41)])
def test_detector_takes_any_size(height: int, width: int) -> None:
    import torch

    module = random_network("retinaface_mobilenet0.25")
    x = torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(2)) * 50
    with torch.inference_mode():
        both = module(x)
        one = module(x[1:])
    anchors = 2 * sum(math.ceil(height / stride) * math.ceil(width / stride) for stride in (8, 16, 32))
    for found, single, values in zip(both, one, (4, 2, 10), strict=True):
        assert found.shape == (2, anchors, values)
        torch.testing.assert_close(found[1:], single, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(both[1].sum(dim=-1), torch.ones(2, anchors))


def test_detector_rows_are_cells_in_order() -> None:
    """Row r of the finest level is anchor r % 2 of cell r // 2, rows of cells first."""
    import torch

    module = random_network("retinaface_mobilenet0.25")
    maps = []
    module.BboxHead[0].conv1x1.register_forward_hook(lambda _module, _args, out: maps.append(out))
    with torch.inference_mode():
        loc, _, _ = module(torch.randn(1, 3, 64, 96))
    for y, x, anchor in ((0, 0, 1), (2, 5, 0), (7, 11, 1)):
        row = (y * 12 + x) * 2 + anchor
        assert torch.equal(loc[0, row], maps[0][0, 4 * anchor : 4 * anchor + 4, y, x])


def test_detector_on_resnet_runs() -> None:
    import torch

    module = random_network("retinaface_resnet50")
    with torch.inference_mode():
        loc, conf, landm = module(torch.zeros(1, 3, 32, 32))
    assert (loc.shape, conf.shape, landm.shape) == ((1, 42, 4), (1, 42, 2), (1, 42, 10))


def test_export_keeps_batch_and_size_free() -> None:
    """One exported program answers for another batch and another size as the module does."""
    import torch
    from torch.export import Dim, export

    module = random_network("retinaface_mobilenet0.25")
    sides = {0: Dim("n"), 2: 32 * Dim("h", min=1), 3: 32 * Dim("w", min=1)}
    program = export(module, (torch.zeros(2, 3, 64, 96),), dynamic_shapes=(sides,)).module()
    x = torch.randn(3, 3, 96, 64)
    with torch.inference_mode():
        for found, wanted in zip(program(x), module(x), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_export_of_an_embedder_keeps_the_batch_free() -> None:
    import torch
    from torch.export import Dim, export

    module = random_network("mobilefacenet")
    program = export(module, (torch.zeros(2, 3, 112, 112),), dynamic_shapes=({0: Dim("n")},)).module()
    x = torch.randn(1, 3, 112, 112)
    with torch.inference_mode():
        torch.testing.assert_close(program(x), module(x), rtol=1e-5, atol=1e-5)
