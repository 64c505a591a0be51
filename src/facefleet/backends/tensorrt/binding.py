"""Which TensorRT is here, and its messages in our log.

Owns the choice of the Python module: `tensorrt` (10 or 11), `tensorrt_rtx`, or `tensorrt_rtx_bindings` where the
metapackage of TensorRT-RTX is missing. All have the same API but for what `Binding` says. There is one logger a
process: TensorRT keeps the first that it is given and ignores all others.
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections import deque
from dataclasses import dataclass
from typing import Any

from facefleet.errors import BackendUnavailableError

_log = logging.getLogger("facefleet.tensorrt")
_MODULES = ("tensorrt", "tensorrt_rtx", "tensorrt_rtx_bindings")
_KEPT = 32
"""Messages that are kept for the error that is raised."""


@dataclass(frozen=True, slots=True)
class Binding:
    """An installed TensorRT.

    Attributes:
        module: Its Python module.
        rtx: Whether it is TensorRT-RTX: built for compute capabilities that are named, no tactic is timed.
        version: Its version.
        logger: An `ILogger` that writes to the log of ``facefleet.tensorrt`` and keeps the errors.
    """

    module: Any
    rtx: bool
    version: str
    logger: Any

    def errors(self) -> str:
        """What it has reported as errors since the last call, one line each; other threads' may be among them."""
        found = []
        while self.logger.kept:
            found.append(self.logger.kept.popleft())
        return "\n".join(found)


@functools.cache
def load_binding() -> Binding:
    """Import TensorRT; the same binding and logger at every call.

    Raises:
        BackendUnavailableError: None is installed, or what is installed cannot be loaded.
    """
    broken = []
    for name in _MODULES:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                broken.append(f"{name}: {error}")
            continue
        except (ImportError, OSError, RuntimeError) as error:  # its libraries are missing or of another version
            broken.append(f"{name}: {error}")
            continue
        if not hasattr(module, "Builder"):  # an empty namespace that an uninstalled package left behind
            continue
        return Binding(module, "rtx" in name, str(module.__version__), _logger(module))
    hint = 'pip install "facefleet[tensorrt]"'
    if broken:
        raise BackendUnavailableError(f"TensorRT cannot be loaded: {'; '.join(broken)}", hint=hint)
    raise BackendUnavailableError("TensorRT is not installed", hint=hint)


def _logger(module: Any) -> Any:  # noqa: ANN401  # a class of the binding
    levels = {
        module.ILogger.Severity.INTERNAL_ERROR: logging.ERROR,
        module.ILogger.Severity.ERROR: logging.ERROR,
        module.ILogger.Severity.WARNING: logging.WARNING,
        module.ILogger.Severity.INFO: logging.DEBUG,
        module.ILogger.Severity.VERBOSE: logging.DEBUG,
    }

    class Log(module.ILogger):  # type: ignore[misc]  # the binding has no types
        def __init__(self) -> None:
            module.ILogger.__init__(self)
            self.kept: deque[str] = deque(maxlen=_KEPT)

        def log(self, severity: Any, message: str) -> None:  # noqa: ANN401
            level = levels.get(severity, logging.DEBUG)
            if level == logging.ERROR:
                self.kept.append(message)
                level = logging.DEBUG  # it is raised, with what to do about it
            _log.log(level, message)

    return Log()
