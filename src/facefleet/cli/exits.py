"""Exit codes, and errors as people see them.

0 done; 1 done, but some inputs failed or a problem was found; 2 used wrongly; 3 nothing could be done.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from enum import IntEnum
from functools import wraps
from typing import ParamSpec

import typer

from facefleet.errors import ConfigError, FacefleetError, InternalError

P = ParamSpec("P")


class Exit(IntEnum):
    """What a command ends with."""

    DONE = 0
    SOME_FAILED = 1
    USAGE = 2
    NOTHING_DONE = 3


def command(function: Callable[P, Exit]) -> Callable[P, None]:
    """Make a typer command of a function that returns an exit code; errors become one message, not a traceback."""

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            code = function(*args, **kwargs)
        except FacefleetError as error:
            say(f"error: {error.message}")
            if error.hint:
                say(f"hint: {error.hint}")
            code = Exit.USAGE if isinstance(error, ConfigError) else Exit.NOTHING_DONE
        except InternalError as error:
            traceback.print_exception(error)
            say(f"error: {error.message}\nhint: {error.hint}")
            code = Exit.NOTHING_DONE
        raise typer.Exit(int(code))

    return wrapped


def say(text: str) -> None:
    """Print to stderr: everything that is not a result."""
    print(text, file=sys.stderr, flush=True)


def one_of(option: str, value: str, choices: tuple[str, ...]) -> str:
    """`value`, if it is one of `choices`.

    Raises:
        ConfigError: It is not.
    """
    if value not in choices:
        raise ConfigError(f"{option} {value!r}", hint=f"choose one of {', '.join(choices)}")
    return value
