"""Statuses of engines over time, in a file: one JSON object a line, the time and what every engine said then.

Owns the format. A recording that was cut off in its last line is read up to there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from types import TracebackType
from typing import Self

from facefleet.errors import ConfigError
from facefleet.telemetry.status import Status, status_from_json


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen at one time.

    Attributes:
        at: Seconds since 1970.
        statuses: An engine each.
    """

    at: float
    statuses: list[Status]


class StatusRecorder:
    """Appends looks to a file; to be used in a ``with`` block.

    Args:
        path: A recording that is there is gone on with.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: TextIOWrapper | None = None

    def __enter__(self) -> Self:
        try:
            self._file = self._path.open("a")
        except OSError as error:
            raise ConfigError(
                f"{self._path} cannot be written: {error.strerror}", hint="name a file in a folder that is"
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, look: Look) -> None:
        """Add a look; it is in the file when this returns.

        Raises:
            ConfigError: The disk does not take it.
        """
        assert self._file is not None
        line = json.dumps({"at": look.at, "engines": [status.as_json() for status in look.statuses]})
        try:
            self._file.write(line + "\n")
            self._file.flush()
        except OSError as error:
            raise ConfigError(f"{self._path} cannot be written: {error.strerror}") from error


def read_recording(path: Path) -> list[Look]:
    """The looks of a file, in its order.

    Raises:
        ConfigError: It cannot be read, or is no recording.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"recording {path} cannot be read: {error}") from error
    looks: list[Look] = []
    for number, line in enumerate(lines, 1):
        try:
            data = json.loads(line)
            looks.append(Look(float(data["at"]), [status_from_json(entry) for entry in data["engines"]]))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            if number == len(lines) and looks:
                break  # whoever recorded was killed while writing
            raise ConfigError(
                f"recording {path}, line {number}: not a look of `facefleet top --record`", hint="check the file"
            ) from error
    if not looks:
        raise ConfigError(f"recording {path} is empty", hint="record with `facefleet top --record FILE`")
    return looks
