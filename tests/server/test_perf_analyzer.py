"""NVIDIA's perf_analyzer against the running server, over HTTP and gRPC, unchanged.

`FACEFLEET_PERF_ANALYZER` names the binary; else it is looked for on PATH. The wheel `perf-analyzer` is empty on glibc
2.36 (Debian 12); what runs there is the binary in the wheel ``tritonclient==2.46.0``, with libb64 and libcudart.
"""

from __future__ import annotations

import base64
import csv
import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import skip_without
from tests.server.conftest import Running


@pytest.fixture(scope="module")
def analyzer() -> str:
    found = os.environ.get("FACEFLEET_PERF_ANALYZER") or shutil.which("perf_analyzer")
    if not found:
        skip_without("perf_analyzer", "perf_analyzer is not installed, and FACEFLEET_PERF_ANALYZER does not name it")
    assert found
    return found


def inputs_of(model: str, picture: bytes, folder: Path) -> Path:
    """A file with real data: random bytes are no picture."""
    if model == "face_pipeline":
        data = {"image": {"b64": base64.b64encode(len(picture).to_bytes(4, "little") + picture).decode()}}
    else:
        chips = np.random.default_rng(0).integers(0, 256, (112, 112, 3))
        data = {"faces": {"content": chips.reshape(-1).tolist(), "shape": [112, 112, 3]}}
    file = folder / "data.json"
    file.write_text(json.dumps({"data": [data]}))
    return file


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("model", ["face_pipeline", "face_embedder"])
def test_perf_analyzer(
    analyzer: str, server: Running, no_face_jpeg: bytes, tmp_path: Path, protocol: str, model: str
) -> None:
    port = server.port if protocol == "http" else server.serving.grpc_port
    data, export = inputs_of(model, no_face_jpeg, tmp_path), tmp_path / "export.csv"
    command = [analyzer, "-m", model, "-i", protocol, "-u", f"127.0.0.1:{port}", "-b", "2", "--input-data", str(data)]
    command += ["--concurrency-range", "2", "--measurement-mode", "count_windows", "--measurement-request-count", "5"]
    command += ["--max-trials", "20", "--stability-percentage", "999", "-f", str(export)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    (row,) = csv.DictReader(export.read_text().splitlines())
    assert float(row["Inferences/Second"]) > 0, said
    assert "error" not in said.lower(), said
