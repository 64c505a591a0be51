"""The dotted keys of all settings, and values checked against what each allows.

Ranges and choices are those of the dataclasses; text is parsed as in a command line.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from facefleet.config.settings import Settings
from facefleet.errors import ConfigError


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
