"""Priority and deadline of a request, from the texts that protocols carry them in."""

from __future__ import annotations

import math

from facefleet.batching import Priority
from facefleet.errors import RequestError
from facefleet.server.auth import Caller
from facefleet.server.service import Service
from facefleet.server.values import Ask

_PRIORITIES = {"interactive": Priority.INTERACTIVE, "bulk": Priority.BULK}


def make_ask(service: Service, caller: Caller, priority: str | None, timeout_ms: str | None) -> Ask:
    """An `Ask` from texts.

    Raises:
        RequestError: One of them is malformed.
    """
    chosen = _PRIORITIES.get(priority or "interactive")
    if chosen is None:
        raise RequestError(f"x-priority {priority!r:.100}", hint=f"one of {', '.join(_PRIORITIES)}")
    timeout_s = service.limits.timeout_s
    if timeout_ms is not None:
        try:
            timeout_s = float(timeout_ms) / 1000
        except ValueError:
            timeout_s = math.nan
        if not 0 < timeout_s <= service.limits.max_timeout_s:
            raise RequestError(
                f"x-timeout-ms {timeout_ms!r:.100}", hint=f"above 0, at most {service.limits.max_timeout_s * 1000:.0f}"
            )
    return Ask(priority=chosen, timeout_s=timeout_s, client=caller.name)
