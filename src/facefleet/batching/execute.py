"""Running a batch so that only what is at fault fails.

Owns what follows a failure: halving when memory ended, items alone after any other error. Refuses to know what is
run. Called in the threads that run batches.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from facefleet.errors import DeviceLostError, OutOfMemoryError

T = TypeVar("T")
_log = logging.getLogger(__name__)


class SizeLimit:
    """The largest batch that fits, as far as is known; it only falls. Reading and lowering it is safe in any thread."""

    def __init__(self, size: int) -> None:
        self.size = size

    def lower(self, size: int) -> None:
        """Remember that a batch larger than `size` did not fit."""
        self.size = max(1, min(self.size, size))


def run_batch(
    run: Callable[[Sequence[T]], None], batch: Sequence[T], limit: SizeLimit, failed: Callable[[T, Exception], None]
) -> None:
    """Run a batch, in parts or item by item where it fails as a whole.

    Out of memory halves the batch and `limit`, down to one; any other error makes every item run alone, so that each
    keeps its own. The order of items is kept.

    Args:
        run: Runs items of one shape; gives its results away itself, all or none.
        batch: What to run.
        limit: What is known to fit.
        failed: Gets each item that failed, with its error.

    Raises:
        DeviceLostError: Nothing can run here any more; items without a result or a failure are the caller's to move.
    """
    pending = [batch[start : start + limit.size] for start in range(0, len(batch), limit.size)]
    while pending:
        part = pending.pop(0)
        if len(part) > limit.size:
            pending[:0] = [part[: limit.size], part[limit.size :]]
            continue
        try:
            run(part)
        except DeviceLostError:
            raise
        except Exception as error:
            if len(part) == 1:
                failed(part[0], error)
            elif isinstance(error, OutOfMemoryError):
                limit.lower(len(part) // 2)
                _log.warning("a batch of %d did not fit in memory; from now on at most %d", len(part), limit.size)
                pending[:0] = [part]
            else:
                _log.warning("a batch of %d failed and is run item by item: %s", len(part), error)
                pending[:0] = [[item] for item in part]
