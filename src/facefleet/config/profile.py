"""Profiles: the settings that `facefleet tune` found, for the machine it found them on and no other.

Owns the file, TOML with the sections ``tuned`` (for what), ``machine`` (where) and ``settings`` (what). A profile lies
below the command line, the environment and ``facefleet.toml``: each of these still has the last word.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from facefleet.config.keys import check_setting
from facefleet.config.machine import Machine, this_machine
from facefleet.config.settings import Settings
from facefleet.errors import ConfigError

SCHEMA = 1
TUNABLE = (
    "runtime.backend",
    "runtime.devices",
    "runtime.placement",
    "runtime.precision",
    "runtime.threads",
    "runtime.instances",
    "batch.detect",
    "batch.embed",
    "batch.max_delay_ms",
    "batch.max_images",
)
"""Settings that a profile may set: how fast, never what comes out (precision is held by its own guard)."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile that fits this machine.

    Attributes:
        path: Its file.
        pack: The pack that it was found for.
        values: Dotted setting -> value, not checked against its type yet.
        tuned: For what: target, rate, faces, and where the evidence is.
    """

    path: Path
    pack: str
    values: Mapping[str, object]
    tuned: Mapping[str, Any]

    def require_pack(self, pack: str) -> None:
        """Refuse another pack than the one it was found for.

        Raises:
            ConfigError: It is another one.
        """
        if pack != self.pack:
            raise ConfigError(
                f"profile {self.path} was tuned for pack {self.pack!r}, not {pack!r}",
                hint=f"facefleet tune {pack}, or leave the profile out",
            )


def read_profile(path: Path, machine: Machine | None = None) -> Profile:
    """Read a profile and hold it against this machine.

    Args:
        path: Its file.
        machine: What to hold it against; default: this one.

    Raises:
        ConfigError: It cannot be read, is malformed, or was made on another machine.
    """
    try:
        tree = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"profile {path}: cannot be read: {error.strerror}", hint="check --profile") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"profile {path}: not valid TOML: {error}") from error
    if tree.get("schema") != SCHEMA:
        raise ConfigError(
            f"profile {path}: schema {tree.get('schema')!r}, not {SCHEMA}", hint="make it with `facefleet tune`"
        )
    try:
        made_on = Machine.from_json(tree["machine"])
        tuned = dict(tree["tuned"])
        pack = str(tuned["pack"])
        values = {
            f"{section}.{name}": value for section, table in tree["settings"].items() for name, value in table.items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"profile {path}: incomplete or malformed: {error!r}", hint="make it with `facefleet tune`"
        ) from error
    if unknown := [key for key in values if key not in TUNABLE]:
        raise ConfigError(
            f"profile {path}: {unknown[0]} is nothing that a profile sets", hint=f"allowed: {', '.join(TUNABLE)}"
        )
    if differences := made_on.differences(machine or this_machine()):
        raise ConfigError(
            f"profile {path} was made on another machine: {'; '.join(differences)}",
            hint=f"its figures mean nothing here: run `facefleet tune {pack}` on this machine, or leave it out",
        )
    return Profile(path, pack, values, tuned)


def write_profile(path: Path, tuned: Mapping[str, Any], values: Mapping[str, object]) -> None:
    """Write a profile for this machine, as a whole or not at all.

    Args:
        path: Its file.
        tuned: For what; has at least ``pack``.
        values: Dotted setting -> value, of `TUNABLE`.

    Raises:
        ConfigError: It cannot be written.
    """
    machine = this_machine()
    lines = ["# Found by `facefleet tune` for this machine alone.", f"schema = {SCHEMA}", "", "[tuned]"]
    lines += [f"{key} = {_toml(value)}" for key, value in tuned.items()]
    lines += ["", "[machine]", *(f"{key} = {_toml(value)}" for key, value in machine.as_json().items())]
    for section in dict.fromkeys(key.partition(".")[0] for key in TUNABLE):
        mine = {key: value for key, value in values.items() if key.startswith(f"{section}.")}
        if mine:
            lines += ["", f"[settings.{section}]"]
            lines += [f"{key.partition('.')[2]} = {_toml(value)}" for key, value in mine.items()]
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text("\n".join(lines) + "\n")
        part.replace(path)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}", hint="name a file in a folder that is"
        ) from error


def with_profile(settings: Settings, profile: Profile) -> Settings:
    """Settings with a profile below them: what stands at its default takes the profile's value.

    Args:
        settings: `Settings`.
        profile: From `read_profile`.

    Raises:
        ConfigError: A value is malformed.
    """
    plain = Settings()
    for key, value in profile.values.items():
        section, _, name = key.partition(".")
        mine = getattr(settings, section)
        if getattr(mine, name) == getattr(getattr(plain, section), name):
            checked = check_setting(key, value, f"profile {profile.path}")
            settings = replace(settings, **{section: replace(mine, **{name: checked})})
    return settings


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value)
