"""Candidates, what is remembered of a choice, and compiled kernels in an archive."""

from __future__ import annotations

import importlib.util
import io
import json
import zipfile

import pytest

torch = pytest.importorskip("torch", reason='needs the extra: pip install "facefleet[torch]"')


def operands(batch=2, height=14, inputs=256, outputs=256, size=3, stride=1):
    from facefleet.backends.torch.fused.cudnn import Operands

    x = torch.zeros(batch, height + 2 * (size // 2), height + 2 * (size // 2), inputs, dtype=torch.float16)
    side = (height - 1) // stride + 1
    y = torch.zeros(batch, side, side, outputs, dtype=torch.float16)
    weight = torch.zeros(outputs, size, size, inputs, dtype=torch.float16)
    return Operands(x, weight, torch.zeros(outputs), None, None, y, stride)


@pytest.mark.parametrize("batch", [1, 8, 64, 256])
@pytest.mark.parametrize(("height", "inputs", "outputs"), [(14, 256, 256), (7, 512, 512), (16, 32, 64), (28, 96, 32)])
def test_candidates_divide_the_work(batch: int, height: int, inputs: int, outputs: int) -> None:
    from facefleet.backends.torch.fused.triton_conv import candidates

    given = operands(batch, height, inputs, outputs)
    found = candidates(given, whole=True)
    assert found
    for tiles in found:
        assert outputs % tiles.channels == 0
        assert inputs % tiles.depth == 0
        assert 1 <= tiles.split <= 9 * inputs // tiles.depth
        assert tiles.kernel == "gather" or tiles.split == 1
    assert {tiles.kernel for tiles in candidates(given, whole=False)} == {"gather"}


def test_a_small_batch_splits_its_sums() -> None:
    from facefleet.backends.torch.fused.triton_conv import candidates

    assert any(tiles.split > 1 for tiles in candidates(operands(1), whole=True))
    assert all(tiles.split == 1 for tiles in candidates(operands(256), whole=True))


def test_choices_survive_json() -> None:
    from facefleet.backends.torch.fused.triton_conv import Tiles
    from facefleet.backends.torch.fused.tune import BucketChoice, Choice

    made = BucketChoice(
        "dense",
        {"a": Choice(Tiles("gather", 64, 64, 128, 3, True, 8, 2), "", 3.5), "b": Choice(None, "eng4_k24=2", 7.0)},
        {"bordered": 12.0},
    )
    assert BucketChoice.from_json(json.loads(json.dumps(made.to_json()))) == made
    with pytest.raises(KeyError):
        BucketChoice.from_json({"family": "dense", "steps": {"a": {}}, "others": {}})


def test_scratch_grows_and_keeps_what_launches_hold() -> None:
    from facefleet.backends.torch.fused.triton_conv import Scratch

    scratch = Scratch(torch.device("cpu"))
    first, arrived = scratch.take(10, 3)
    again, _ = scratch.take(5, 3)
    assert first.data_ptr() == again.data_ptr()
    larger, more = scratch.take(1000, 9000)
    assert larger.numel() >= 1000
    assert more.numel() >= 9000
    assert not more.any()
    assert any(kept is first for kept in scratch.keep)
    assert any(kept is arrived for kept in scratch.keep)
    assert scratch.bytes(100).numel() >= 100


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton comes with CUDA builds of torch only")
class TestArchive:
    @pytest.fixture(autouse=True)
    def _cache(self, tmp_path, monkeypatch) -> None:
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))

    def test_kernels_come_back_with_their_new_paths(self, tmp_path, monkeypatch) -> None:
        from triton.runtime.cache import get_cache_manager

        from facefleet.backends.torch.fused.kernel_files import archive, restore

        manager = get_cache_manager("ab12")
        cubin = manager.put(b"code", "k.cubin")
        listed = manager.put("{}", "k.json", binary=False)
        manager.put(b"text", "k.ptx")
        manager.put_group("k.json", {"k.cubin": cubin, "k.json": listed})
        content = archive(["ab12"])
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "other"))
        assert restore(content) == 3
        assert restore(content) == 0
        group = get_cache_manager("ab12").get_group("k.json")
        assert group is not None
        assert set(group) == {"k.cubin", "k.json"}
        assert all(str(tmp_path / "other") in path for path in group.values())

    @pytest.mark.parametrize("name", ["../../evil", "a/b/c", "/etc/x", "plain"])
    def test_foreign_names_are_refused(self, name: str) -> None:
        from facefleet.backends.torch.fused.kernel_files import restore

        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as made:
            made.writestr(name, b"x")
        with pytest.raises(ValueError, match="name of a kernel"):
            restore(stream.getvalue())
