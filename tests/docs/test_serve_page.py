"""The server's examples in the README and its page, run as they stand with curl and Python, but for the port."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import skip_without
from tests.docs.test_readme import blocks

pytest.importorskip("fastapi", reason='needs the extra: pip install "facefleet[server]"')
pytest.importorskip("tritonclient.grpc", reason='needs the extra: pip install "facefleet[server]"')


@pytest.fixture(scope="module")
def url(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    from facefleet import Settings
    from tests.server.conftest import Running

    with Running(Settings(home=str(home)), galleries=tmp_path_factory.mktemp("galleries"), grpc=False) as running:
        yield running.url


@pytest.fixture
def photos(tmp_path: Path, astronaut_jpeg: bytes, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "photos").mkdir()
    for name in ("photo.jpg", "a.jpg", "b.jpg", "photos/c.jpg"):
        (tmp_path / name).write_bytes(astronaut_jpeg)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def curls(page: str) -> list[str]:
    found = [line for block in blocks(page, "sh") for line in block.splitlines() if line.startswith("curl ")]
    assert len(found) == 3, "one picture, a batch, a verification"
    return found


@pytest.mark.parametrize("page", ["README.md", "docs/how-to/serve.md"])
def test_curl(page: str, url: str, photos: Path) -> None:
    answers = []
    for line in curls(page):
        assert "http://127.0.0.1:8000/" in line, "where it listens by default"
        command = shlex.split(line.replace("http://127.0.0.1:8000", url))
        try:
            done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
        except FileNotFoundError:
            skip_without("curl", "curl is not installed")
        answers.append(done.stdout)
    assert len(json.loads(answers[0])["faces"]) == 1
    *items, last = map(json.loads, answers[1].splitlines())
    assert [item["status"] for item in items] == ["ok", "ok"]
    assert last["totals"]["items"] == 2
    assert json.loads(answers[2])["same"] is True


def test_client(url: str, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks("docs/how-to/serve.md", "python")
    assert re.search(r'Client\("http://127.0.0.1:8000"\)', code)
    exec(compile(code.replace("http://127.0.0.1:8000", url), "serve.md", "exec"), {})
    assert re.search(r"c\.jpg 1$", capsys.readouterr().out, re.MULTILINE)


def test_commands_have_their_options() -> None:
    from typer.main import get_command

    from facefleet.cli.main import app

    command = get_command(app).commands["serve"]  # type: ignore[attr-defined]
    known = {text for each in command.params for text in each.opts}
    text = "\n".join(blocks("README.md", "sh") + blocks("docs/how-to/serve.md", "sh"))
    for line in re.findall(r"^facefleet serve ([^#\n]*)", text, re.MULTILINE):
        assert {each for each in line.split() if each.startswith("--")} <= known
