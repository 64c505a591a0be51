"""One suite over every backend: a runner keeps the promises of `Runner`."""

from __future__ import annotations

import importlib.util
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from facefleet.backends import BACKENDS, InputContract, RunnerOptions, create_runner
from facefleet.backends.registry import choose
from facefleet.config import RuntimeSettings
from facefleet.errors import (
    BackendError,
    BackendUnavailableError,
    BadOutputError,
    ClosedError,
    ConfigError,
    InternalError,
)

RGB = InputContract("rgb", (10.0, 20.0, 30.0), (2.0, 4.0, 5.0))
BGR = InputContract("bgr", (10.0, 20.0, 30.0), (2.0, 4.0, 5.0))


def save(path: Path, *, fixed: bool = False, poison: bool = False) -> Path:
    """A network whose outputs are the channel sums of its input, and its mean."""
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["sums"], axes=[2, 3], keepdims=0),
        helper.make_node("Conv", ["images", "w"], ["map"], pads=[1, 1, 1, 1]),
    ]
    if poison:
        nodes.append(helper.make_node("Log", ["map"], ["out"]))
    else:
        nodes.append(helper.make_node("Relu", ["map"], ["out"]))
    weight = np.random.default_rng(0).normal(0, 1, (4, 3, 3, 3)).astype(np.float32)
    batch = 1 if fixed else "batch"
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [batch, 3, "h", "w"])],
        [
            helper.make_tensor_value_info("sums", TensorProto.FLOAT, [batch, 3]),
            helper.make_tensor_value_info("out", TensorProto.FLOAT, [batch, 4, "h", "w"]),
        ],
        [numpy_helper.from_array(weight, "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=9), path)
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save(tmp_path / "m.onnx")


INSTALLED = [
    name
    if importlib.util.find_spec(name)
    else pytest.param(name, marks=pytest.mark.skip(reason=f"{name} is an extra and not installed"))
    for name in BACKENDS
]


@pytest.mark.parametrize("backend", INSTALLED)
class TestRunner:
    def test_input_is_prepared_as_the_contract_says(self, model: Path, backend: str) -> None:
        """Fault 14: order, mean and divisor."""
        pictures = np.zeros((2, 4, 6, 3), np.uint8)
        pictures[0] = (50, 100, 150)
        pictures[1] = (1, 2, 3)
        for contract in (RGB, BGR):
            order = [0, 1, 2] if contract.color == "rgb" else [2, 1, 0]
            expected = (pictures[:, 0, 0][:, order] - np.array(contract.mean)) / np.array(contract.std)
            with create_runner(backend, model, contract, RunnerOptions()) as runner:
                sums, out = runner.run(pictures)
                assert runner.output_names == ("sums", "out")
                assert sums == pytest.approx(expected, abs=1e-4)
                assert out.shape == (2, 4, 4, 6)
                assert out.dtype == np.float32

    @pytest.mark.parametrize("warm", [(), ((8, 8),)])
    def test_rows_do_not_depend_on_the_batch(self, model: Path, backend: str, warm: tuple) -> None:
        """Fault 15: batch of five, singles, permuted, identical rows."""
        pictures = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3)).astype(np.uint8)
        pictures[4] = pictures[0]
        with create_runner(backend, model, RGB, RunnerOptions(warm=warm)) as runner:
            together = runner.run(pictures)[1]
            alone = np.concatenate([runner.run(picture[None])[1] for picture in pictures])
            turned = runner.run(pictures[::-1])[1][::-1]
        assert np.abs(together - alone).max() < 1e-4
        assert np.abs(together - turned).max() < 1e-4
        assert np.abs(together[0] - together[4]).max() < 1e-4
        assert np.abs(together[0] - together[1]).max() > 1

    @pytest.mark.parametrize("count", [1, 3, 4, 9])
    def test_chunks_change_nothing(self, model: Path, backend: str, count: int) -> None:
        """Not even the last bit: a resumed job must write what an undisturbed one does."""
        pictures = np.random.default_rng(0).integers(0, 256, (count, 8, 8, 3)).astype(np.uint8)
        answers = []
        for chunk in (1, 4):
            with create_runner(backend, model, RGB, RunnerOptions(warm=((8, 8),), chunk=chunk)) as runner:
                answers.append(runner.run(pictures))
        assert all(np.array_equal(a, b) for a, b in zip(*answers, strict=True))

    def test_any_size(self, model: Path, backend: str) -> None:
        with create_runner(backend, model, RGB, RunnerOptions(warm=((8, 8),))) as runner:
            for size in ((8, 8), (16, 4), (3, 5)):
                assert runner.run(np.zeros((1, *size, 3), np.uint8))[1].shape == (1, 4, *size)

    def test_many_threads(self, model: Path, backend: str) -> None:
        pictures = np.random.default_rng(0).integers(0, 256, (8, 1, 16, 16, 3)).astype(np.uint8)
        with create_runner(backend, model, RGB, RunnerOptions(instances=2, threads=2)) as runner:
            expected = [runner.run(picture)[1] for picture in pictures]
            wrong: list[int] = []

            def work(i: int) -> None:
                for _ in range(20):
                    if not np.allclose(runner.run(pictures[i])[1], expected[i], atol=1e-4):
                        wrong.append(i)

            threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert wrong == []

    def test_results_belong_to_the_caller(self, model: Path, backend: str) -> None:
        with create_runner(backend, model, RGB, RunnerOptions()) as runner:
            first = runner.run(np.full((1, 4, 4, 3), 9, np.uint8))[0]
            kept = first.copy()
            runner.run(np.full((1, 4, 4, 3), 200, np.uint8))
            assert np.array_equal(first, kept)

    def test_life(self, model: Path, backend: str) -> None:
        runner = create_runner(backend, model, RGB, RunnerOptions())
        with pytest.raises(ClosedError):
            runner.run(np.zeros((1, 4, 4, 3), np.uint8))
        with runner, pytest.raises(InternalError, match="twice"):
            runner.open()
        runner.close()
        runner.close()
        with pytest.raises(InternalError), runner:
            runner.run(np.zeros((1, 4, 4, 3), np.float32))  # type: ignore[arg-type]

    def test_values_that_are_not_finite(self, tmp_path: Path, backend: str) -> None:
        """Faults 11 and 16: NaN never counts as an answer."""
        path = save(tmp_path / "p.onnx", poison=True)
        with (
            create_runner(backend, path, RGB, RunnerOptions()) as runner,
            pytest.raises(BadOutputError, match="finite"),
        ):
            runner.run(np.random.default_rng(0).integers(0, 256, (1, 8, 8, 3)).astype(np.uint8))

    def test_bad_model(self, tmp_path: Path, backend: str) -> None:
        path = tmp_path / "bad.onnx"
        path.write_bytes(b"\x08\x07garbage")
        with pytest.raises(BackendError, match=r"refuses bad\.onnx"):
            create_runner(backend, path, RGB, RunnerOptions()).open()

    def test_other_devices_are_refused(self, model: Path, backend: str) -> None:
        """Fault 36."""
        with pytest.raises(BackendUnavailableError, match="device=cpu"):
            create_runner(backend, model, RGB, RunnerOptions(device="cuda")).open()


def test_layers_in_fp32(tmp_path: Path) -> None:
    """The more layers are kept in fp32, the nearer are the answers."""
    from facefleet.backends.openvino import capabilities
    from tests.unit.models.build.test_engines import CONTRACT, network

    if "BF16" not in capabilities():
        pytest.skip("this CPU has no bf16")
    model = network(tmp_path / "m.onnx")
    pictures = np.random.default_rng(0).integers(0, 256, (8, 16, 16, 3)).astype(np.uint8)

    def answer(precision: str, *layers: str) -> np.ndarray:
        options = RunnerOptions(warm=((16, 16),), precision=precision, fp32_layers=frozenset(layers))  # type: ignore[arg-type]
        with create_runner("openvino", model, CONTRACT, options) as runner:
            return runner.run(pictures)[0]

    want = answer("fp32")
    errors = [
        float(np.abs(answer("bf16", *layers) - want).mean()) for layers in ((), ("conv1",), ("conv1", "conv2", "fc1"))
    ]
    assert errors[0] > errors[1] > errors[2]


class TestChoice:
    def test_auto(self) -> None:
        choice = choose(RuntimeSettings())
        assert choice.backend == "openvino"
        assert choice.device == "cpu"
        assert choice.reason

    def test_what_is_asked_for(self) -> None:
        assert choose(RuntimeSettings(backend="onnxruntime")).precision == "fp32"
        assert choose(RuntimeSettings(precision="fp32")).precision == "fp32"
        with pytest.raises(ConfigError, match="openvino and torch run bf16"):
            choose(RuntimeSettings(backend="onnxruntime", precision="bf16"))

    def test_bf16_only_where_the_cpu_has_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from facefleet.backends import registry

        monkeypatch.setattr(registry, "_cpu_has_bf16", lambda: False)
        assert choose(RuntimeSettings()).precision == "fp32"
        with pytest.raises(BackendUnavailableError, match="no bf16"):
            choose(RuntimeSettings(precision="bf16"))
        monkeypatch.setattr(registry, "_cpu_has_bf16", lambda: True)
        assert choose(RuntimeSettings()) == registry.Choice(
            "openvino", "cpu", "bf16", True, choose(RuntimeSettings()).reason
        )

    def test_not_installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import importlib.util

        real = importlib.util.find_spec
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "openvino" else real(name))
        assert choose(RuntimeSettings()).backend == "onnxruntime"
        with pytest.raises(BackendUnavailableError, match="pip install openvino"):
            choose(RuntimeSettings(backend="openvino"))
