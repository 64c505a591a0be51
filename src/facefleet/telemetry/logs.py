"""Logging for programs that run facefleet: one human line an event. A library user's own configuration is left alone."""

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
