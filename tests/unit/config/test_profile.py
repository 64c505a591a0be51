"""Profiles: written, read, layered below everything else, and refused where they do not belong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from facefleet.config import Settings, load_settings, read_profile, this_machine, with_profile, write_profile
from facefleet.config.machine import Machine, cpu_facts
from facefleet.config.profile import TUNABLE
from facefleet.config.settings import BatchSettings, RuntimeSettings
from facefleet.errors import ConfigError
from facefleet.pipeline import AsyncEngine, Engine

VALUES: dict[str, object] = {
    "runtime.devices": "cpu",
    "runtime.placement": "auto",
    "runtime.precision": "fp32",
    "runtime.threads": 2,
    "runtime.instances": 1,
    "batch.detect": 4,
    "batch.embed": 8,
    "batch.max_delay_ms": 12.5,
    "batch.max_images": 6,
}


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "profile.toml"
    write_profile(path, {"pack": "opencv", "p99_ms": 50.0, "faces_per_image": [1, 4]}, VALUES)
    return path


def edited(profile: Path, old: str, new: str) -> Path:
    text = profile.read_text()
    assert old in text
    profile.write_text(text.replace(old, new))
    return profile


class TestFile:
    def test_what_is_written_is_read(self, profile: Path) -> None:
        found = read_profile(profile)
        assert dict(found.values) == VALUES
        assert found.pack == "opencv"
        assert found.tuned["faces_per_image"] == [1, 4]
        assert not list(profile.parent.glob(".*"))

    def test_tunable_settings_exist(self) -> None:
        keys = load_settings(env={}).origins
        assert set(TUNABLE) <= set(keys)

    def test_another_machine_is_refused_with_a_clear_word(self, profile: Path) -> None:
        here = this_machine()
        with pytest.raises(ConfigError, match="was made on another machine: ") as caught:
            read_profile(profile, replace(here, cpu="Other CPU 9000"))
        assert "Other CPU 9000 here" in caught.value.message
        assert here.cpu in caught.value.message
        assert "facefleet tune opencv" in caught.value.hint
        with pytest.raises(ConfigError, match="threads: "):
            read_profile(profile, replace(here, threads=here.threads + 1))
        with pytest.raises(ConfigError, match="gpus: none there, H200, H200 here"):
            read_profile(profile, replace(here, gpus=("H200", "H200")))

    def test_memory_and_kernel_do_not_count(self, profile: Path) -> None:
        read_profile(profile, replace(this_machine(), memory_bytes=1, system="other"))

    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            ("schema = 1", "schema = 7", "schema 7"),
            ("[machine]", "[device]", "incomplete"),
            ('pack = "opencv"', 'p = "opencv"', "incomplete"),
            ("detect = 4", "flip = 4", "batch.flip is nothing that a profile sets"),
            ("schema = 1", "schema = ", "not valid TOML"),
        ],
    )
    def test_malformed(self, profile: Path, old: str, new: str, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            read_profile(edited(profile, old, new))

    def test_missing(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="cannot be read"):
            read_profile(tmp_path / "none.toml")
        with pytest.raises(ConfigError, match="cannot be written"):
            write_profile(tmp_path / "none" / "p.toml", {"pack": "x"}, {})


class TestLayer:
    def test_above_the_defaults_and_below_everything_else(self, profile: Path, tmp_path: Path) -> None:
        toml = tmp_path / "facefleet.toml"
        toml.write_text("[batch]\nembed = 32\n")
        loaded = load_settings(
            cli={"runtime.precision": "bf16"}, env={"FACEFLEET_BATCH_DETECT": "2"}, toml=toml, profile=profile
        )
        settings = loaded.settings
        assert (settings.batch.embed, settings.batch.detect, settings.runtime.precision) == (32, 2, "bf16")
        assert (settings.batch.max_images, settings.batch.max_delay_ms, settings.runtime.instances) == (6, 12.5, 1)
        assert loaded.origins["batch.max_images"] == f"profile {profile} batch.max_images"

    def test_named_by_the_environment(self, profile: Path) -> None:
        assert load_settings(env={"FACEFLEET_PROFILE": str(profile)}).settings.batch.max_images == 6
        assert load_settings(env={"FACEFLEET_PROFILE": ""}).settings.batch.max_images == 64

    def test_named_by_the_file_beside_it(self, profile: Path, tmp_path: Path) -> None:
        toml = tmp_path / "facefleet.toml"
        toml.write_text('profile = "profile.toml"\n')
        loaded = load_settings(env={}, toml=toml)
        assert loaded.settings.batch.detect == 4
        assert "profile" not in loaded.origins

    def test_another_pack_is_refused(self, profile: Path) -> None:
        with pytest.raises(ConfigError, match="tuned for pack 'opencv', not 'other'"):
            load_settings(cli={"pack": "other"}, env={}, profile=profile)

    def test_a_malformed_value_names_the_profile(self, profile: Path) -> None:
        with pytest.raises(ConfigError, match=r"batch\.detect='many' \(from profile "):
            load_settings(env={}, profile=edited(profile, "detect = 4", 'detect = "many"'))


class TestEngine:
    def test_what_stands_at_its_default_takes_the_profile(self, profile: Path) -> None:
        mine = Settings(batch=BatchSettings(embed=3), runtime=RuntimeSettings(threads=1))
        tuned = Engine(mine, profile=profile).settings
        assert (tuned.batch.embed, tuned.runtime.threads) == (3, 1)
        assert (tuned.batch.detect, tuned.runtime.precision, tuned.batch.max_images) == (4, "fp32", 6)
        assert mine.batch.detect == 1
        assert AsyncEngine(profile=str(profile)).engine.settings.batch.max_images == 6

    def test_refusals(self, profile: Path) -> None:
        with pytest.raises(ConfigError, match="tuned for pack"):
            Engine(pack="mine", profile=profile)
        with pytest.raises(ConfigError, match="another machine"):
            Engine(profile=edited(profile, f"threads = {this_machine().threads}\n", "threads = 977\n"))

    def test_a_malformed_value(self, profile: Path) -> None:
        with pytest.raises(ConfigError, match="at most 256"):
            with_profile(Settings(), read_profile(edited(profile, "embed = 8", "embed = 8000")))


class TestMachine:
    def test_this_one(self) -> None:
        here = this_machine()
        assert here.cpu
        assert len(here.instructions) == 16
        assert here.threads >= 1
        assert Machine.from_json(here.as_json()) == here
        assert here.differences(here) == []

    def test_facts_of_a_processor(self, tmp_path: Path) -> None:
        file = tmp_path / "cpuinfo"
        file.write_text("processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: a b c\nprocessor\t: 1\nflags\t: other\n")
        name, digest = cpu_facts(file)
        assert name == "Some CPU"
        assert cpu_facts(file) == (name, digest)
        file.write_text("model name\t: Some CPU\nflags\t\t: a b d\n")
        assert cpu_facts(file)[1] != digest
        assert cpu_facts(tmp_path / "none")[0]
