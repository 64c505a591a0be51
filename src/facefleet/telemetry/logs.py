"""Logging for programs that run facefleet: one human line, or one line of JSON, an event.

Nothing is configured by importing facefleet: a library's user decides where its log goes. What is configured here shows
extra fields (``extra={"batch": 8}``) and the request that a record belongs to, and never an image, an embedding or the
bytes of a file: in their place stands what they are.

    [2026-01-31 12:00:00] INFO inference batch=8 latency=45.2ms mem=3.2GB/8GB
    {"time": "2026-01-31T12:00:00.123+00:00", "level": "INFO", "message": "inference", "batch": 8, ...}
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal

from facefleet.errors import ConfigError
from facefleet.telemetry.devices import process_memory
from facefleet.telemetry.redact import plain

Format = Literal["human", "json"]
FORMATS: tuple[Format, ...] = ("human", "json")

_log = logging.getLogger(__name__)
_REQUEST: ContextVar[str] = ContextVar("facefleet_request", default="")
# What every record has; everything else in it is an extra field.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "request"}


def configure_logging(*, verbose: bool, format: Format = "human") -> None:  # noqa: A002  # the word of the field
    """Send facefleet's log to stderr.

    Args:
        verbose: From INFO on; else from WARNING on.
        format: ``human``: ``[time] LEVEL message key=value``; ``json``: one object a line.

    Raises:
        ConfigError: There is no such format.
    """
    if format not in FORMATS:
        raise ConfigError(f"log format {format!r}", hint=f"choose one of {', '.join(FORMATS)}")
    logger = logging.getLogger("facefleet")
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else HumanFormatter())
    logger.addHandler(handler)
    logger.setLevel(logging.INFO if verbose else logging.WARNING)
    logger.propagate = False


def log_settings() -> tuple[bool, Format]:
    """Whether facefleet's log shows what is normal, and in which format: for processes that are to log alike."""
    logger = logging.getLogger("facefleet")
    as_json = any(isinstance(handler.formatter, JsonFormatter) for handler in logger.handlers)
    return logger.isEnabledFor(logging.INFO), "json" if as_json else "human"


@contextlib.contextmanager
def request(name: str) -> Iterator[None]:
    """Records of this thread or task inside the ``with`` block bear this request's name."""
    token = _REQUEST.set(name)
    try:
        yield
    finally:
        _REQUEST.reset(token)


def current_request() -> str:
    """Name of the request that this thread or task works for; empty: none."""
    return _REQUEST.get()


class HumanFormatter(logging.Formatter):
    """``[time] LEVEL message key=value``, one line unless there is a traceback.

    Fields whose names end in ``_s`` or ``_bytes`` are shown with their unit and without the suffix; a pair
    ``x_bytes``, ``x_total_bytes`` as one: ``x=3.2GB/8GB``. GB are 2**30 bytes here, as memory is sold.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        when = self.formatTime(record, "%Y-%m-%d %H:%M:%S")
        message = _message(record).replace("\r", "\\r").replace("\n", "\\n")
        line = " ".join([f"[{when}] {record.levelname} {message}", *_pairs(_fields(record))])
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, message, request, then the extra fields as they are."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        entry = {"time": when, "level": record.levelname, "logger": record.name, "message": _message(record)}
        fields = _fields(record)
        entry |= {(f"field_{key}" if key in entry else key): value for key, value in fields.items()}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False, default=str)


class InferenceLog:
    """One line about a batch, at most once an interval: a sample, since the metrics count every batch.

    Args:
        interval_s: Least seconds between two lines.
        clock: Monotonic seconds.
        memory: Bytes in use and bytes there are, asked only for a line that is written; this process' where not given.
    """

    def __init__(
        self,
        interval_s: float = 1.0,
        *,
        clock: Callable[[], float] = time.monotonic,
        memory: Callable[[], tuple[int, int]] = process_memory,
    ) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._memory = memory
        self._next = float("-inf")
        self._lock = threading.Lock()

    def batch(self, size: int, seconds: float, **fields: object) -> bool:
        """A batch of `size` took so long; more fields, as the stage, follow. Whether a line was written."""
        now = self._clock()
        if now < self._next or not _log.isEnabledFor(logging.INFO):
            return False
        with self._lock:
            if now < self._next:
                return False
            self._next = now + self._interval_s
        used, total = self._memory()
        memory = {"mem_bytes": used, "mem_total_bytes": total} if used and total else {}
        _log.info("inference", extra={"batch": size, "latency_s": seconds, **memory, **fields})
        return True


def _message(record: logging.LogRecord) -> str:
    """The message with its arguments, none of which is an image."""
    if not record.args:
        return str(plain(record.msg))
    shown: Any
    if isinstance(record.args, Mapping):
        shown = {key: plain(value) for key, value in record.args.items()}
    else:
        shown = tuple(plain(value) for value in record.args)
    try:
        message: str = str(record.msg) % shown
        return message
    except (TypeError, ValueError, KeyError):  # logging would print the arguments themselves
        return f"{record.msg} {shown}"


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    found = {key: plain(value) for key, value in vars(record).items() if key not in _STANDARD}
    name = _REQUEST.get()
    return {**found, "request": name} if name else found


def _pairs(fields: Mapping[str, Any]) -> Iterator[str]:
    for key, value in fields.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if number and key.endswith("_total_bytes") and key.replace("_total_bytes", "_bytes") in fields:
            continue  # shown with the part of it that is in use
        if number and key.endswith("_bytes"):
            total = fields.get(key.replace("_bytes", "_total_bytes"))
            yield f"{key.removesuffix('_bytes')}={human_bytes(value)}" + (f"/{human_bytes(total)}" if total else "")
        elif number and key.endswith("_s") and not key.endswith("_per_s"):
            yield f"{key.removesuffix('_s')}={_duration(value)}"
        else:
            yield f"{key}={_quoted(value)}"


def human_bytes(count: float) -> str:
    """A number of bytes as people read it: 3.2GB, 8GB, 512MB; units are powers of 1024."""
    unit, size = next((pair for pair in (("GB", 2**30), ("MB", 2**20), ("KB", 2**10)) if count >= pair[1]), ("B", 1))
    return f"{count / size:.1f}".removesuffix(".0") + unit


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:.1f}ms" if abs(seconds) < 10 else f"{seconds:.1f}s"


def _quoted(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    bare = bool(text) and text.isprintable() and not any(character in text for character in ' "=')
    return text if bare or not isinstance(value, str) else json.dumps(text, ensure_ascii=False)
