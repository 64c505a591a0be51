"""Engines of one ONNX file that no manifest describes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner

from facefleet.cli.main import app
from facefleet.errors import GraphError
from facefleet.models.build.single import Input, manifest_of, recognize_model
from facefleet.packs import Store


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["build", *map(str, arguments)])
    return result.exit_code, result.output


@pytest.fixture
def embedder(tmp_path: Path) -> Path:
    """A convolution over the whole chip: (n, 3, 112, 112) to (n, 16)."""
    weight = np.random.default_rng(0).normal(0, 0.01, (16, 3, 112, 112)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["images", "weight"], ["whole"]),
        helper.make_node("Flatten", ["whole"], ["output"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "embedder",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["n", 3, 112, 112])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["n", 16])],
        [onnx.numpy_helper.from_array(weight, "weight")],
    )
    path = tmp_path / "mine.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_an_embedder_is_recognized(embedder: Path, tmp_path: Path) -> None:
    model = recognize_model(embedder)
    located, role = manifest_of(model, Store(tmp_path / "home"))
    assert role == "embedder"
    assert located.folder == embedder.parent
    assert located.manifest.embedder.dimension == 16
    assert located.manifest.embedder.mean == (127.5, 127.5, 127.5)
    given = Input("bgr", (0.0, 1.0, 2.0), (3.0, 3.0, 3.0))
    other, _ = manifest_of(replace(model, input=given), Store(tmp_path / "home"))
    assert (other.manifest.embedder.color, other.manifest.embedder.mean) == ("bgr", (0.0, 1.0, 2.0))


def test_an_engine_of_a_file(embedder: Path, tmp_path: Path) -> None:
    options = ("--backend", "onnxruntime", "--opt", "2", "--max", "4", "-o", tmp_path / "engines")
    code, output = run(embedder, *options)
    assert code == 0, output
    assert "mine.onnx: embedder, rgb, mean (127.5, 127.5, 127.5)" in output
    assert "parity passed" in output
    assert len(list((tmp_path / "engines").glob("mine-onnxruntime-*"))) == 1, "the file's, and no detector's"
    code, output = run(embedder, *options)
    assert code == 0
    assert "built already" in output
    code, output = run(embedder, *options, "--mean", "0", "--std", "1")
    assert code == 0
    assert len(list((tmp_path / "engines").glob("mine-onnxruntime-*"))) == 2, "it reads something else"


@pytest.mark.parametrize(
    ("name", "family", "color"),
    [
        ("scrfd/scrfd_500m_bnkps.onnx", "scrfd", "rgb"),
        ("mobilefacenet_diandianti/mobilefacenet.onnx", "embedder", "rgb"),
    ],
)
def test_published_files(data_dir: Path, name: str, family: str, color: str) -> None:
    model = recognize_model(data_dir / "models" / name)
    assert (model.family, model.input.color) == (family, color)


def test_what_is_refused(embedder: Path, tmp_path: Path) -> None:
    model = onnx.load(embedder)
    model.graph.output[0].type.tensor_type.shape.dim.add().dim_value = 1
    strange = tmp_path / "strange.onnx"
    onnx.save(model, strange)
    with pytest.raises(GraphError, match="neither a detector nor an embedder"):
        recognize_model(strange)
    for arguments, text in (
        ((embedder, "--mean", "1,2"), "one number, or three"),
        ((embedder, "--color", "hsv"), "rgb, bgr"),
        (("opencv", "--std", "1"), "for a MODEL.onnx"),
        ((tmp_path / "missing.onnx",), "not an ONNX file"),
    ):
        code, output = run(*arguments, "-o", tmp_path / "engines")
        assert code == 2 or code == 3, output
        assert text in output
