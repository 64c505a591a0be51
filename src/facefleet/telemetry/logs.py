"""Logging for programs that run facefleet: one human line an event.

Nothing is configured by importing facefleet: a library's user decides where its log goes.
"""

from __future__ import annotations

import logging
import sys


def configure_logging(*, verbose: bool) -> None:
    """Send facefleet's log to stderr.

    Args:
        verbose: From INFO on; else from WARNING on.
    """
    logger = logging.getLogger("facefleet")
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("[%(asctime)s] %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO if verbose else logging.WARNING)
    logger.propagate = False
