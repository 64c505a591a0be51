"""The how-to pages, run command by command as they stand."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_readme import blocks

PAGE = "docs/how-to/checkpoint-to-engine.md"


def facefleet(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    name, *arguments = shlex.split(line)
    assert name == "facefleet"
    script = Path(sys.executable).with_name("facefleet")
    return subprocess.run(
        [str(script), *arguments], cwd=folder, capture_output=True, text=True, timeout=240, env=os.environ, check=False
    )


def test_from_a_checkpoint_to_an_engine(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason='needs the extra: pip install "facefleet[torch]"')
    from facefleet.models.nets import NETWORKS

    torch.manual_seed(0)
    network = NETWORKS["mobilefacenet"].build()
    for layer in network.modules():  # random weights of a size that trained ones have
        if isinstance(layer, torch.nn.Conv2d):
            torch.nn.init.kaiming_normal_(layer.weight)
    torch.save(network.state_dict(), tmp_path / "checkpoint.pth")
    convert, look, build, auto = blocks(PAGE, "sh")
    (manifest,) = blocks(PAGE, "toml")
    assert "--precision auto" in auto, "measured in benchmarks/int8_lfw.py: it takes minutes"
    for line in (*convert.splitlines(), *look.splitlines()):
        done = facefleet(line, tmp_path)
        assert done.returncode == 0, done.stderr
    assert "embedder: 112 x 112 chips, 512 dimensions" in done.stdout
    (tmp_path / "mine" / "manifest.toml").write_text(manifest)
    for line in build.splitlines():
        done = facefleet(line, tmp_path)
        assert done.returncode == 0, done.stderr
    assert done.stdout.count("ok ") == 2
    assert len(list((tmp_path / "engines").glob("*/parity.json"))) == 2
