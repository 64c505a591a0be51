"""One job at a time on one output: a lock that ends with its process, however that ends."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from facefleet.errors import JobError


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold a lock file; it is gone afterwards.

    Raises:
        JobError: Another process holds it.
        OSError: It cannot be made.
    """
    import fcntl

    while True:
        with path.open("a+") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                stream.seek(0)
                raise JobError(
                    f"another job (process {stream.read().strip() or 'unknown'}) is writing this output",
                    hint="wait for it, or write to another file",
                ) from error
            if not _still_there(path, stream.fileno()):
                continue  # its holder before us removed it between our opening and locking
            stream.truncate(0)
            stream.write(str(os.getpid()))
            stream.flush()
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def _still_there(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
