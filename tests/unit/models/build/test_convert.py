"""From checkpoints and published files to graphs with a free batch."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from typer.testing import CliRunner

from facefleet.cli.main import app
from facefleet.errors import GraphError
from facefleet.models.build import simplify as simplify_module
from facefleet.models.build.convert import convert
from facefleet.models.build.dynamic import session
from facefleet.models.build.graph import dims
from facefleet.models.build.simplify import simplify
from tests.unit.models.build.test_engines import network

SMALL = ("iresnet18", "mobilefacenet", "adaface_ir18", "retinaface_mobilenet0.25")
LARGE = (
    "iresnet34",
    "iresnet50",
    "iresnet100",
    "iresnet200",
    "curricularface_ir101",
    "curricularface_ir101_tface",
    "adaface_ir50",
    "adaface_ir101",
    "retinaface_resnet50",
)


def checkpoint(path: Path, name: str) -> Path:
    """Random weights, saved under the names of the published file."""
    torch = pytest.importorskip("torch", reason='needs the extra: pip install "facefleet[torch]"')
    from facefleet.models.nets import NETWORKS

    torch.manual_seed(0)
    prefix = "module." if "retinaface" in name else "model." if "adaface" in name else ""
    state = {prefix + key: value for key, value in NETWORKS[name].build().state_dict().items()}
    torch.save({"state_dict": state} if prefix == "model." else state, path)
    return path


def check(tmp_path: Path, name: str, exporter: str) -> None:
    made = convert(
        checkpoint(tmp_path / "c.pth", name),
        name=name if name.startswith("adaface") else None,
        exporter=exporter,
        simplified=False,
        max_batch=4,
    )
    assert made.kind == name
    assert made.errors
    assert all(error <= 1e-4 for error in made.errors.values())
    assert made.trial.verified == 4
    assert made.model.graph.input[0].name == "images"
    assert isinstance(dims(made.model.graph.input[0])[0], str), "the batch is free"


@pytest.mark.parametrize("name", SMALL)
def test_a_checkpoint_answers_as_in_torch(tmp_path, name):
    """Compared at batch 1, 3 and 16; the conversion raises beyond 1e-4."""
    check(tmp_path, name, "script")


@pytest.mark.parametrize("name", ["mobilefacenet", "retinaface_mobilenet0.25"])
def test_the_other_exporter(tmp_path, name):
    pytest.importorskip("onnxscript", reason='needs the extra: pip install "facefleet[torch]"')
    check(tmp_path, name, "dynamo")


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_a_large_checkpoint_answers_as_in_torch(tmp_path, name):
    check(tmp_path, name, "script")


def test_detectors_take_other_sizes(tmp_path):
    made = convert(checkpoint(tmp_path / "c.pth", "retinaface_mobilenet0.25"), simplified=False, max_batch=2)
    outputs = session(made.model).run(None, {"images": np.zeros((2, 3, 64, 96), np.float32)})
    cells = 2 * (8 * 12 + 4 * 6 + 2 * 3)
    assert [each.shape for each in outputs] == [(2, cells, 4), (2, cells, 2), (2, cells, 10)]


class TestPublished:
    def test_command(self, tmp_path):
        model = onnx.load(network(tmp_path / "m.onnx"))
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
        onnx.save(model, tmp_path / "m.onnx")
        out = tmp_path / "out" / "free.onnx"
        result = CliRunner().invoke(app, ["convert", str(tmp_path / "m.onnx"), "-o", str(out), "--no-simplify"])
        assert result.exit_code == 0, result.output
        assert "up to 16" in result.output
        assert dims(onnx.load(out).graph.input[0])[0] != 1
        assert [path.name for path in out.parent.iterdir()] == ["free.onnx"]

    def test_what_cannot_be_converted(self, tmp_path):
        runner = CliRunner()
        for arguments, code, words in (
            ([str(tmp_path / "nothing.onnx")], 3, "no such file"),
            ([str(network(tmp_path / "m.onnx")), "--exporter", "magic"], 2, "auto, dynamo, script"),
        ):
            result = runner.invoke(app, ["convert", *arguments, "-o", str(tmp_path / "x.onnx")])
            assert result.exit_code == code, result.output
            assert words in result.output
        graph = helper.make_graph(
            [helper.make_node("ReduceMean", ["images"], ["y"])],
            "g",
            [helper.make_tensor_value_info("images", 1, [1, 3, 8, 8])],
            [helper.make_tensor_value_info("y", 1, [1, 1, 1, 1])],
        )
        onnx.save(
            helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=9), tmp_path / "u.onnx"
        )
        with pytest.raises(GraphError, match="no family"):
            convert(tmp_path / "u.onnx")


class TestSimplify:
    """Fault 27: tools that change dimensions, answers, or crash."""

    PICTURES = np.random.default_rng(0).normal(0, 1, (3, 3, 16, 16)).astype(np.float32)

    def tool(self, tmp_path, monkeypatch, body):
        """A tool of the given behavior, run as `python -m`."""
        (tmp_path / "faketool.py").write_text("import sys, onnx\nbefore, after = sys.argv[1:3]\n" + body)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setattr(simplify_module.sys, "executable", sys.executable)
        return onnx.load(network(tmp_path / "m.onnx"))

    @pytest.mark.parametrize(
        ("body", "words"),
        [
            ("import os; os.abort()", "signal 6"),
            ("sys.exit('no such operator')", "no such operator"),
            ("open(after, 'w').write('x')", "does not run"),
            (
                "m = onnx.load(before)\nshape = m.graph.input[0].type.tensor_type.shape\n"
                "shape.dim[0].dim_value = 1\nonnx.save(m, after)",
                "its inputs became",
            ),
            (
                "m = onnx.load(before); m.graph.initializer[0].raw_data = bytes(648); onnx.save(m, after)",
                "differs at batch",
            ),
        ],
    )
    def test_the_original_is_kept(self, tmp_path, monkeypatch, body, words):
        model = self.tool(tmp_path, monkeypatch, body)
        made = simplify(model, self.PICTURES, tool="faketool")
        assert made.model is model
        assert made.tool == ""
        assert words in made.note

    def test_what_is_the_same_is_taken(self, tmp_path, monkeypatch):
        model = self.tool(tmp_path, monkeypatch, "onnx.save(onnx.load(before), after)")
        made = simplify(model, self.PICTURES, tool="faketool")
        assert made.tool == "faketool"
        assert made.model is not model
