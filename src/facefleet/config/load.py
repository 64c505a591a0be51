"""Settings from the command line, the environment and a TOML file, with where each came from.

Command line > environment (``FACEFLEET_DETECT_SCORE``) > ``facefleet.toml`` > profile > default. Owns precedence and
the wording of errors; ranges and choices are those of the dataclasses. Reads files; runs in the caller's thread.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

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


@lru_cache(maxsize=1)
def setting_keys() -> dict[str, Any]:
    """Every dotted key and its annotation, in order of declaration."""
    return dict(_walk(Settings, ""))


def _walk(cls: type, prefix: str) -> Iterator[tuple[str, Any]]:
    hints = get_type_hints(cls, include_extras=True)
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint):
            yield from _walk(typing.cast(type, hint), f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, hint


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


def check_setting(key: str, value: object, origin: str) -> object:
    """A value as the setting's type.

    Args:
        key: Dotted.
        value: Text is parsed.
        origin: Where it came from, for the error.

    Raises:
        ConfigError: It is malformed; names what is allowed.
    """
    hint = setting_keys()[key]
    parsed = _parsed(value, hint) if isinstance(value, str) else value
    try:
        return TypeAdapter(hint).validate_python(parsed, strict=None)
    except ValidationError as error:
        reason = error.errors(include_url=False)[0]["msg"]
        raise ConfigError(
            f"{key}={value!r} (from {origin.removesuffix(f' {key}')}): {reason}", hint=f"allowed: {allowed(hint)}"
        ) from error


def _parsed(text: str, hint: Any) -> object:  # noqa: ANN401  # an annotation
    """Text from the environment or the command line as the value it stands for; JSON or commas for lists."""
    members = _members(hint)
    if any(get_origin(member) is tuple for member in members):
        items = text.strip().removeprefix("[").removesuffix("]").split(",")
        return tuple(_scalar(item.strip().strip("\"'")) for item in items if item.strip())
    if types.NoneType in members and text.strip().lower() in ("", "none", "unset"):
        return None
    return text if str in members else _scalar(text)


def _scalar(text: str) -> object:
    try:
        return json.loads(text.lower() if text.lower() in ("true", "false") else text.replace("_", ""))
    except ValueError:
        return text


def _members(hint: Any) -> list[Any]:  # noqa: ANN401  # an annotation
    """The alternatives of an annotation, bare of constraints."""
    if get_origin(hint) is typing.Annotated:
        return _members(get_args(hint)[0])
    if get_origin(hint) in (typing.Union, types.UnionType):
        return [member for part in get_args(hint) for member in _members(part)]
    return [hint]


def allowed(hint: Any) -> str:  # noqa: ANN401  # an annotation
    """What an annotation allows, in words."""
    if get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join(allowed(part) for part in get_args(hint))
    if get_origin(hint) is typing.Annotated:
        inner, *constraints = get_args(hint)
        bounds = [
            f"{word} {getattr(meta, name)}"
            for constraint in constraints
            for meta in getattr(constraint, "metadata", [constraint])
            for name, word in _BOUNDS.items()
            if getattr(meta, name, None) is not None
        ]
        return " ".join([allowed(inner), *([f"({', '.join(bounds)})"] if bounds else [])])
    if get_origin(hint) is Literal:
        return ", ".join(str(choice) for choice in get_args(hint))
    if get_origin(hint) is tuple:
        return f"a list of ({allowed(get_args(hint)[0])})"
    return {int: "a whole number", float: "a number", bool: "true, false", str: "text", types.NoneType: "unset"}.get(
        hint, str(hint)
    )


_BOUNDS = {
    "ge": "at least",
    "gt": "above",
    "le": "at most",
    "lt": "below",
    "min_length": "at least this many:",
    "max_length": "at most this many:",
    "pattern": "like",
}
