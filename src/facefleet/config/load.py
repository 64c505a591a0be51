"""Settings from the command line, the environment and a TOML file, with where each came from.

Command line > environment (``FACEFLEET_DETECT_SCORE``) > ``facefleet.toml`` > profile > default. Owns precedence and
the wording of errors; ranges and choices are those of the dataclasses. Reads files; runs in the caller's thread.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import tomllib
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from facefleet.config.keys import check_setting, setting_keys
from facefleet.config.profile import Profile, read_profile
from facefleet.config.settings import Settings
from facefleet.errors import ConfigError

PREFIX = "FACEFLEET_"
RESERVED = frozenset({"FACEFLEET_CONFIG", "FACEFLEET_PROFILE", "FACEFLEET_DATA", "FACEFLEET_REQUIRE"})
"""Variables that are not settings: the TOML file and the profile to read, and two that belong to the tests."""

DEFAULT_FILE = Path("facefleet.toml")


@dataclass(frozen=True, slots=True)
class Loaded:
    """Effective settings.

    Attributes:
        settings: The settings.
        origins: For every dotted key, where its value came from, e.g. ``environment FACEFLEET_PACK``.
    """

    settings: Settings
    origins: Mapping[str, str]

    def items(self) -> Iterator[tuple[str, object, str]]:
        """Key, value and origin of every setting, in order of declaration."""
        for key, origin in self.origins.items():
            value: object = self.settings
            for part in key.split("."):
                value = getattr(value, part)
            yield key, value, origin


def load_settings(
    *,
    cli: Mapping[str, object] | None = None,
    env: Mapping[str, str] | None = None,
    toml: Path | None = None,
    profile: Path | None = None,
) -> Loaded:
    """Read all settings.

    Args:
        cli: Dotted key -> value; text is parsed as in the environment.
        env: The environment; default: the process's.
        toml: The file; default: ``FACEFLEET_CONFIG``, or ``facefleet.toml`` in the working folder if there is one.
        profile: What `facefleet tune` found; default: ``FACEFLEET_PROFILE``, or what the file names as ``profile``.

    Raises:
        ConfigError: An unknown key or a malformed value; names key, value, origin and what is allowed. Or a profile
            that was made on another machine, or for another pack.
    """
    env = os.environ if env is None else env
    file = toml or (Path(env["FACEFLEET_CONFIG"]) if env.get("FACEFLEET_CONFIG") else None)
    from_file = _from_toml(file)
    tuned = _profile(profile, env, file or DEFAULT_FILE, from_file)
    layers: list[dict[str, tuple[str, object]]] = [
        {} if tuned is None else {f"profile {tuned.path} {key}": (key, value) for key, value in tuned.values.items()},
        from_file,
        {f"environment {name}": (key, value) for name, key, value in _from_env(env)},
        {f"command line {key}": (key, value) for key, value in (cli or {}).items()},
    ]
    values: dict[str, object] = {}
    origins = dict.fromkeys(setting_keys(), "default")
    for layer in layers:
        for origin, (key, value) in layer.items():
            if key not in origins:
                raise _unknown(key, value, origin)
            values[key] = check_setting(key, value, origin)
            origins[key] = origin.removesuffix(f" {key}") if origin.startswith("command line") else origin
    settings: Settings = _compose(Settings, values, "")
    if tuned is not None:
        tuned.require_pack(settings.pack)
    return Loaded(settings, origins)


def _profile(
    path: Path | None, env: Mapping[str, str], file: Path, from_file: dict[str, tuple[str, object]]
) -> Profile | None:
    """The profile that somebody names, if anybody does; takes its name out of what the file says."""
    named = from_file.pop(f"{file} profile", None)
    if path is None and env.get("FACEFLEET_PROFILE"):
        path = Path(env["FACEFLEET_PROFILE"])
    if path is None and named is not None:
        path = file.parent / str(named[1])
    return None if path is None else read_profile(path)


def _compose(cls: type, values: Mapping[str, object], prefix: str) -> Any:  # noqa: ANN401  # an instance of cls
    hints = get_type_hints(cls)
    arguments = {}
    for field in dataclasses.fields(cls):
        key = prefix + field.name
        if dataclasses.is_dataclass(hints[field.name]):
            arguments[field.name] = _compose(typing.cast(type, hints[field.name]), values, f"{key}.")
        elif key in values:
            arguments[field.name] = values[key]
    return cls(**arguments)


def _from_toml(file: Path | None) -> dict[str, tuple[str, object]]:
    if file is None:
        if not DEFAULT_FILE.is_file():
            return {}
        file = DEFAULT_FILE
    try:
        tree = tomllib.loads(file.read_text())
    except OSError as error:
        raise ConfigError(
            f"{file}: cannot be read: {error.strerror}", hint="check FACEFLEET_CONFIG or --config"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not valid TOML: {error}") from error
    sections = {key.rpartition(".")[0] for key in setting_keys()} - {""}

    def flat(table: Mapping[str, object], prefix: str) -> Iterator[tuple[str, object]]:
        for name, value in table.items():
            key = prefix + name
            if isinstance(value, dict) and key in sections:
                yield from flat(value, f"{key}.")
            else:
                yield key, value

    return {f"{file} {key}": (key, value) for key, value in flat(tree, "")}


def _from_env(env: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    names = {PREFIX + key.replace(".", "_").upper(): key for key in setting_keys()}
    for name, value in sorted(env.items()):
        if not name.startswith(PREFIX) or name in RESERVED:
            continue
        if name not in names:
            close = difflib.get_close_matches(name, [*names, *RESERVED], n=1)
            raise ConfigError(
                f"environment variable {name}={value!r} is no setting of facefleet",
                hint=f"did you mean {close[0]}?" if close else "`facefleet config show` lists all settings",
            )
        yield name, names[name], value


def _unknown(key: str, value: object, origin: str) -> ConfigError:
    close = difflib.get_close_matches(key, setting_keys(), n=1)
    hint = f"did you mean {close[0]}?" if close else "`facefleet config show` lists all settings"
    return ConfigError(f"unknown setting {key}={value!r} (from {origin.removesuffix(f' {key}')})", hint=hint)
