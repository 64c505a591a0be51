"""Loading: every published form comes back as the same network, and every wrong file as one typed error."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from facefleet.errors import BackendUnavailableError, CheckpointError
from facefleet.models.nets import NETWORKS, load_checkpoint
from tests.unit.models.nets.published import random_network, save

MOBILE, DETECTOR = "mobilefacenet", "retinaface_mobilenet0.25"
# network, prefix, form, other entries -> as published, or as people save them.
FORMS = [
    (MOBILE, "", "bare", {}),
    (MOBILE, "module.", "legacy", {}),
    (MOBILE, "backbone.", "state_dict", {"head.weight": (10, 512)}),
    (MOBILE, "module.backbone.", "safetensors", {}),
    (MOBILE, "", "state_dict_backbone", {}),
    (DETECTOR, "module.", "legacy", {}),
    (DETECTOR, "", "safetensors", {}),
    (DETECTOR, "module.", "state_dict", {}),
    ("adaface_ir18", "model.", "state_dict", {"head.kernel": (512, 10), "head.t": (1,)}),
    ("iresnet18", "", "bare", {}),
]


def _same(first: Any, second: Any, size: tuple[int, int]) -> None:
    import torch

    for batch in (1, 2):
        x = torch.randn(batch, 3, *size, generator=torch.Generator().manual_seed(batch))
        with torch.inference_mode():
            one, other = first(x), second(x)
        for found, wanted in zip(
            *((each if isinstance(each, tuple) else (each,)) for each in (one, other)), strict=True
        ):
            assert found.shape[0] == batch
            torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("name", "prefix", "form", "extra"), FORMS)
def test_every_form_loads_as_what_was_saved(
    name: str, prefix: str, form: str, extra: dict[str, tuple[int, ...]], tmp_path: Path
) -> None:
    import torch

    module = random_network(name)
    others = {key: torch.zeros(shape) for key, shape in extra.items()}
    loaded = load_checkpoint(save(module.state_dict(), tmp_path / "file", prefix=prefix, form=form, extra=others))
    spec = NETWORKS[name]
    assert loaded.name == name
    for attribute in ("family", "color", "mean", "std", "size_px", "outputs", "dimension"):
        assert getattr(loaded, attribute) == getattr(spec, attribute)
    assert not any(part.training for part in loaded.module.modules())
    assert not any(parameter.requires_grad for parameter in loaded.module.parameters())
    assert {tensor.device.type for tensor in loaded.module.state_dict().values()} == {"cpu"}
    _same(loaded.module, module, loaded.size_px or (64, 96))


@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        *((name, "") for name in NETWORKS if not name.startswith("adaface")),
        ("adaface_ir50", "model."),
        ("adaface_ir101", "model."),
    ],
)
def test_every_network_is_recognized(name: str, prefix: str) -> None:
    import torch

    from facefleet.models.nets.layouts import recognize

    with torch.device("meta"):
        shapes = {key: tuple(tensor.shape) for key, tensor in NETWORKS[name].build().state_dict().items()}
    assert recognize(shapes, [prefix] if prefix else [], origin="x").name == name


def test_a_bare_state_dict_that_two_networks_share(tmp_path: Path) -> None:
    module = random_network("adaface_ir18")
    path = save(module.state_dict(), tmp_path / "file", extra={})
    with pytest.raises(CheckpointError, match="which network") as caught:
        load_checkpoint(path)
    assert "adaface_ir18" in caught.value.hint
    loaded = load_checkpoint(path, name="adaface_ir18")
    assert (loaded.family, loaded.color) == ("adaface", "bgr")


def test_counters_may_be_missing_and_halves_become_floats(tmp_path: Path) -> None:
    import torch

    state = {
        key: tensor.half()
        for key, tensor in random_network(MOBILE).state_dict().items()
        if not key.endswith("num_batches_tracked")
    }
    loaded = load_checkpoint(save(state, tmp_path / "file", extra={}))
    assert {p.dtype for p in loaded.module.parameters()} == {torch.float32}
    assert loaded.module.features.layers[3].num_batches_tracked.item() == 0


def test_lightning_class_as_a_key_is_not_looked_up(tmp_path: Path) -> None:
    """Old Lightning files name the class of a callback; the library need not be there, and nothing of it is run."""
    import torch

    module = type("ModelCheckpoint", (), {"__module__": "pytorch_lightning.callbacks.model_checkpoint"})
    stub = type(sys)("pytorch_lightning.callbacks.model_checkpoint")
    stub.ModelCheckpoint = module  # type: ignore[attr-defined]
    names = ["pytorch_lightning", "pytorch_lightning.callbacks", stub.__name__]
    state = {"model." + key: tensor for key, tensor in random_network("adaface_ir18").state_dict().items()}
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setitem(sys.modules, name, stub)
        torch.save({"state_dict": state, "callbacks": {module: {"monitor": "loss"}}}, tmp_path / "file.ckpt")
    assert "pytorch_lightning" not in sys.modules
    assert load_checkpoint(tmp_path / "file.ckpt").name == "adaface_ir18"


class TestWrongTensors:
    """A state dict that is nearly right."""

    @pytest.fixture
    def state(self) -> dict[str, Any]:
        return dict(random_network(DETECTOR).state_dict())

    def fails(self, state: dict[str, Any], folder: Path, name: str | None = None) -> CheckpointError:
        with pytest.raises(CheckpointError) as caught:
            load_checkpoint(save(state, folder / "weights.pth", extra={}), name=name)
        assert "weights.pth" in caught.value.message
        assert caught.value.hint
        return caught.value

    def test_missing(self, state: dict[str, Any], tmp_path: Path) -> None:
        del state["body.stage2.3.0.weight"], state["fpn.merge1.0.weight"]
        message = self.fails(state, tmp_path).message
        assert "2 missing, first body.stage2.3.0.weight (128, 1, 3, 3)" in message
        assert "retinaface_mobilenet0.25 (300 tensors, 426,608 parameters): of 298 tensors" in message

    def test_unexpected(self, state: dict[str, Any], tmp_path: Path) -> None:
        state["body.fc.weight"] = state["fpn.merge1.1.bias"]
        assert "1 unexpected, first body.fc.weight (64,)" in self.fails(state, tmp_path).message

    def test_shape(self, state: dict[str, Any], tmp_path: Path) -> None:
        key = "ClassHead.1.conv1x1.weight"
        state[key] = state[key][:2].clone()
        assert (
            f"1 of another shape, first {key} (2, 64, 1, 1), not (4, 64, 1, 1)" in self.fails(state, tmp_path).message
        )

    def test_not_finite(self, state: dict[str, Any], tmp_path: Path) -> None:
        key = "ssh2.conv3X3.0.weight"
        state[key] = state[key] * float("nan")
        assert key in self.fails(state, tmp_path).message

    def test_sparse(self, state: dict[str, Any], tmp_path: Path) -> None:
        key = "ssh2.conv3X3.0.weight"
        state[key] = state[key].to_sparse()
        assert "not a plain tensor" in self.fails(state, tmp_path).message

    def test_depth(self, state: dict[str, Any], tmp_path: Path) -> None:
        state["body.stage3.7.0.weight"] = state["body.stage3.1.0.weight"]
        error = self.fails(state, tmp_path)
        assert "6-6-8 blocks" in error.message
        assert "6-6-2" in error.hint

    def test_layout(self, state: dict[str, Any], tmp_path: Path) -> None:
        error = self.fails({"a.weight": state["fpn.merge1.1.bias"]}, tmp_path)
        assert "a.weight" in error.message
        assert "Pytorch_Retinaface" in error.hint

    def test_another_network_by_name(self, state: dict[str, Any], tmp_path: Path) -> None:
        message = self.fails(state, tmp_path, name=MOBILE).message
        assert "missing, first layers.0.layers.0.weight (128, 3, 3, 3)" in message

    def test_names_twice(self, state: dict[str, Any], tmp_path: Path) -> None:
        state["module.fpn.merge1.1.bias"] = state["fpn.merge1.1.bias"]
        assert "same names" in self.fails(state, tmp_path).message


class TestWrongFiles:
    """Files that are no checkpoints."""

    def fails(self, path: Path, **options: str) -> CheckpointError:
        with pytest.raises(CheckpointError) as caught:
            load_checkpoint(path, **options)
        assert caught.value.hint
        return caught.value

    @pytest.mark.parametrize(
        "content", [b"", b"<!DOCTYPE html><html>", b"version https://git-lfs.github.com/spec/v1\n"]
    )
    def test_text(self, content: bytes, tmp_path: Path) -> None:
        (tmp_path / "w.pth").write_bytes(content)
        assert "not a checkpoint" in self.fails(tmp_path / "w.pth").message

    @pytest.mark.parametrize("form", ["bare", "legacy", "safetensors"])
    @pytest.mark.parametrize("part", [0.001, 0.3, 0.999])
    def test_truncated(self, form: str, part: float, tmp_path: Path) -> None:
        path = save(random_network(DETECTOR).state_dict(), tmp_path / "w.pth", form=form, extra={})
        whole = path.read_bytes()
        path.write_bytes(whole[: int(len(whole) * part)])
        assert "damaged" in self.fails(path).message

    def test_pickle_of_objects(self, tmp_path: Path) -> None:
        import torch

        torch.save({"state_dict": {}, "args": argparse.Namespace(a=1)}, tmp_path / "w.pth")
        error = self.fails(tmp_path / "w.pth")
        assert "Python objects" in error.message
        assert "state dict alone" in error.hint

    def test_nothing_is_run(self, tmp_path: Path) -> None:
        import torch

        class Harmful:
            def __reduce__(self) -> tuple[Any, ...]:
                return (Path.write_text, (tmp_path / "ran", "x"))

        torch.save({"state_dict": Harmful()}, tmp_path / "w.pth")
        self.fails(tmp_path / "w.pth")
        assert not (tmp_path / "ran").exists()

    @pytest.mark.parametrize("value", [[1, 2], {}, {"epoch": 3}, {3: 4}])
    def test_no_state_dict(self, value: object, tmp_path: Path) -> None:
        import torch

        torch.save(value, tmp_path / "w.pth")
        assert "save model.state_dict()" in self.fails(tmp_path / "w.pth").hint

    def test_missing_file_and_folder(self, tmp_path: Path) -> None:
        assert "cannot be read" in self.fails(tmp_path / "none.pth").message
        assert "cannot be read" in self.fails(tmp_path).message

    def test_unknown_name(self, tmp_path: Path) -> None:
        assert "iresnet50" in self.fails(tmp_path / "w.pth", name="resnet").hint


def test_without_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(BackendUnavailableError) as caught:
        load_checkpoint(tmp_path / "w.pth")
    assert 'pip install "facefleet[torch]"' in caught.value.hint


def test_importing_the_package_imports_no_torch() -> None:
    code = "import sys, facefleet.models.nets; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
