"""What may stand in a log: never an image, an embedding or the bytes of a file.

Owns the rule only: pure, any thread. In the place of what may not be shown stands what it is:
``<uint8 480x640x3>``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence, Set
from enum import Enum
from pathlib import PurePath
from typing import Any

_LONGEST = 16
"""A sequence with more members may be an embedding, and no log needs it."""
_LONGEST_TEXT = 2000
_DEEPEST = 4


def plain(value: Any, depth: int = 0) -> Any:  # noqa: ANN401  # anything can be handed to a log
    """`value` as numbers, texts, lists and dictionaries that may be shown.

    Arrays are shown as type and shape, bytes and long sequences as their length, facefleet's own values and other
    dataclasses by the name of their type.
    """
    if value is None or isinstance(value, (bool, int, float)):
        return _number(value)
    if isinstance(value, str):
        return _short(str(value))
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is not None and dtype is not None:
        try:
            sides = "x".join(str(int(side)) for side in shape)
        except (TypeError, ValueError):
            sides = "?"
        return f"<{dtype} {sides}>" if sides else _scalar(value, dtype)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"<{memoryview(value).nbytes} bytes>"
    if isinstance(value, Enum):
        return plain(value.value, depth + 1)
    if isinstance(value, Mapping):
        if depth >= _DEEPEST or len(value) > _LONGEST:
            return f"<{type(value).__name__} of {len(value)}>"
        return {str(key): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (Sequence, Set)):
        if depth >= _DEEPEST or len(value) > _LONGEST:
            return f"<{type(value).__name__} of {len(value)}>"
        return [plain(item, depth + 1) for item in value]
    if isinstance(value, (BaseException, PurePath)):
        return _short(str(value))
    if dataclasses.is_dataclass(value) or type(value).__module__.startswith("facefleet."):
        return f"<{type(value).__name__}>"
    return _short(str(value))


def _number(value: Any) -> Any:  # noqa: ANN401  # as it came
    """Not a subclass of a number with a text of its own."""
    if value is None or type(value) in (bool, int, float):
        return value
    return float(value) if isinstance(value, float) else int(value)


def _scalar(value: Any, dtype: object) -> Any:  # noqa: ANN401  # a scalar of numpy or the like
    """An array without sides: one number, which is no image."""
    try:
        return plain(value.item())
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return f"<{dtype} scalar>"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}... ({len(text)} characters)"
