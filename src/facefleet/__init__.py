"""facefleet: pictures in as bytes; faces out, detected, aligned, embedded.

Importing this starts no thread, touches no device and loads no runtime; names are resolved when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from facefleet.config import Settings
    from facefleet.errors import FacefleetError
    from facefleet.pipeline import AsyncEngine, Engine
    from facefleet.types import FaceRecord, Faces, Image, Outcome

__all__ = ["AsyncEngine", "Engine", "FaceRecord", "FacefleetError", "Faces", "Image", "Outcome", "Settings"]

_HOMES = {
    "AsyncEngine": "facefleet.pipeline",
    "Engine": "facefleet.pipeline",
    "FaceRecord": "facefleet.types",
    "FacefleetError": "facefleet.errors",
    "Faces": "facefleet.types",
    "Image": "facefleet.types",
    "Outcome": "facefleet.types",
    "Settings": "facefleet.config",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401  # module attributes are of any type
    if name not in _HOMES:
        raise AttributeError(f"module 'facefleet' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
