"""Settings: precedence, origins, and errors that say what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from facefleet.config import Settings, available_threads, load_settings, setting_keys
from facefleet.config.threads import cgroup_quota
from facefleet.errors import ConfigError


def test_defaults() -> None:
    loaded = load_settings(env={})
    assert loaded.settings == Settings()
    assert {origin for _, _, origin in loaded.items()} == {"default"}


def test_precedence_and_origins(tmp_path: Path) -> None:
    file = tmp_path / "f.toml"
    file.write_text('pack = "a"\n[detect]\nscore = 0.1\nnms = 0.2\nsizes = [640, "native"]\n[batch]\nembed = 3\n')
    env = {"FACEFLEET_DETECT_SCORE": "0.3", "FACEFLEET_DETECT_NMS": "0.4", "FACEFLEET_CONFIG": str(file), "PATH": "x"}
    loaded = load_settings(cli={"detect.nms": 0.5}, env=env)
    assert loaded.settings.pack == "a"
    assert loaded.settings.detect.score == 0.3
    assert loaded.settings.detect.nms == 0.5
    assert loaded.settings.detect.sizes == (640, "native")
    assert loaded.settings.batch.embed == 3
    assert loaded.origins["pack"] == f"{file} pack"
    assert loaded.origins["detect.score"] == "environment FACEFLEET_DETECT_SCORE"
    assert loaded.origins["detect.nms"] == "command line"
    assert loaded.origins["embed.flip"] == "default"


def test_file_of_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "facefleet.toml").write_text("[runtime]\nthreads = 3\n")
    assert load_settings(env={}).settings.runtime.threads == 3


@pytest.mark.parametrize(
    ("name", "text", "key", "value"),
    [
        ("FACEFLEET_DETECT_SIZES", "640, 128", "detect.sizes", (640, 128)),
        ("FACEFLEET_DETECT_SIZES", "[native]", "detect.sizes", ("native",)),
        ("FACEFLEET_EMBED_FLIP", "true", "embed.flip", True),
        ("FACEFLEET_DETECT_SCORE", "none", "detect.score", None),
        ("FACEFLEET_DECODE_MAX_PIXELS", "1_000", "decode.max_pixels", 1000),
        ("FACEFLEET_PACK", "123", "pack", "123"),
    ],
)
def test_text_is_read(name: str, text: str, key: str, value: object) -> None:
    loaded = load_settings(env={name: text})
    assert next(v for k, v, _ in loaded.items() if k == key) == value


@pytest.mark.parametrize(
    ("env", "parts"),
    [
        ({"FACEFLEET_DETECTOR_SCORE": "1"}, ["FACEFLEET_DETECTOR_SCORE", "did you mean FACEFLEET_DETECT_SCORE"]),
        ({"FACEFLEET_DETECT_SCORE": "2"}, ["detect.score='2'", "FACEFLEET_DETECT_SCORE", "above 0", "below 1"]),
        ({"FACEFLEET_RUNTIME_BACKEND": "cuda"}, ["runtime.backend='cuda'", "auto, openvino, onnxruntime"]),
        ({"FACEFLEET_DETECT_SIZES": "10"}, ["detect.sizes", "at least 32", "native"]),
        ({"FACEFLEET_EMBED_FLIP": "maybe"}, ["embed.flip", "true, false"]),
    ],
)
def test_errors_say_what_is_allowed(env: dict[str, str], parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(env=env)
    for part in parts:
        assert part in str(caught.value)


def test_errors_of_files_and_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "f.toml"
    file.write_text("[detect]\nscor = 0.5\n")
    with pytest.raises(ConfigError, match=r"detect\.scor=0\.5.*f\.toml.*did you mean detect\.score"):
        load_settings(env={}, toml=file)
    file.write_text("[detect")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_settings(env={}, toml=file)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_settings(env={}, toml=tmp_path / "missing.toml")
    with pytest.raises(ConfigError, match="unknown setting nothing"):
        load_settings(env={}, cli={"nothing": 1})


def test_every_setting_is_explained() -> None:
    import dataclasses

    from facefleet.config import settings as module

    for key in setting_keys():
        owner: object = Settings()
        for part in key.split(".")[:-1]:
            owner = getattr(owner, part)
        assert dataclasses.is_dataclass(owner)
        assert f"{key.split('.')[-1]}:" in (type(owner).__doc__ or ""), key
    assert module.__doc__


class TestThreads:
    """Fault 57: what the container allows, not what the host has."""

    def group(self, tmp_path: Path, membership: str, files: dict[str, str]) -> tuple[Path, Path]:
        for name, text in files.items():
            path = tmp_path / "cgroup" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        member = tmp_path / "self"
        member.write_text(membership)
        return tmp_path / "cgroup", member

    def test_version_2_with_a_parent(self, tmp_path: Path) -> None:
        paths = self.group(
            tmp_path,
            "0::/a/b\n",
            {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "150000 100000\n", "cpu.max": "max 100000"},
        )
        assert cgroup_quota(*paths) == 1.5
        assert 1 <= available_threads(*paths) <= 2

    def test_version_1(self, tmp_path: Path) -> None:
        paths = self.group(
            tmp_path,
            "4:cpu,cpuacct:/docker/x\n",
            {"cpu,cpuacct/docker/x/cpu.cfs_quota_us": "50000", "cpu,cpuacct/docker/x/cpu.cfs_period_us": "100000"},
        )
        assert cgroup_quota(*paths) == 0.5
        assert available_threads(*paths) == 1

    def test_no_limit_and_nonsense(self, tmp_path: Path) -> None:
        import os

        assert cgroup_quota(*self.group(tmp_path, "0::/\n", {"cpu.max": "garbage"})) is None
        assert cgroup_quota(tmp_path / "nothing", tmp_path / "none") is None
        assert available_threads(tmp_path / "nothing", tmp_path / "none") == len(os.sched_getaffinity(0))
