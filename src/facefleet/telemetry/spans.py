"""Spans through OpenTelemetry, where the user has set it up; else nothing, at next to no cost.

Owns no provider, exporter or setting: a user who wants spans calls `opentelemetry.trace.set_tracer_provider`, as for
any library, or `use_provider`. OpenTelemetry is never imported from here before the user has: a provider cannot be set
without importing it. Works in any thread; a thread that works for another's request is given its `current`.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

Attribute = str | bool | int | float
_NOTHING: AbstractContextManager[None] = nullcontext()
_TRACER: Any = None
_ASKED = False


def span(name: str, parent: Any = None, **attributes: Attribute) -> AbstractContextManager[Any]:  # noqa: ANN401  # a context of OpenTelemetry
    """A span around a ``with`` block; an exception that leaves the block is recorded in it.

    Args:
        name: Of the operation, e.g. ``detect``: few different ones.
        parent: From `current` or `from_headers`; None: the span that is open in this thread.
        attributes: Numbers and short texts about it. What is neither is left out: no image, no embedding.
    """
    if _TRACER is None and ("opentelemetry.trace" not in sys.modules or _find_tracer() is None):
        return _NOTHING
    plain = {key: value for key, value in attributes.items() if isinstance(value, (str, bool, int, float))}
    found: AbstractContextManager[Any] = _TRACER.start_as_current_span(name, context=parent, attributes=plain)
    return found


def current() -> Any:  # noqa: ANN401  # a context of OpenTelemetry
    """The context of the open span, to be the parent of spans in other threads; None without OpenTelemetry."""
    if (_TRACER or _find_tracer()) is None:
        return None
    from opentelemetry import context

    return context.get_current()


def to_headers(context: Any = None) -> dict[str, str]:  # noqa: ANN401  # a context of OpenTelemetry
    """A context as W3C trace headers, to travel to another process; empty without OpenTelemetry."""
    headers: dict[str, str] = {}
    if (_TRACER or _find_tracer()) is not None:
        from opentelemetry import propagate

        propagate.inject(headers, context)
    return headers


def from_headers(headers: dict[str, str]) -> Any:  # noqa: ANN401  # a context of OpenTelemetry
    """A context from `to_headers` or from a request; None without OpenTelemetry or headers."""
    if not headers or (_TRACER or _find_tracer()) is None:
        return None
    from opentelemetry import propagate

    return propagate.extract(headers)


def use_provider(provider: Any) -> None:  # noqa: ANN401  # a TracerProvider of OpenTelemetry
    """Send facefleet's spans to this `TracerProvider` whatever the global one is; None: to the global one again."""
    global _TRACER
    _TRACER = None if provider is None else provider.get_tracer("facefleet")


def _find_tracer() -> Any:  # noqa: ANN401  # a Tracer of OpenTelemetry
    """The tracer of the global provider; None as long as the user has set none."""
    global _ASKED, _TRACER
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    if _ASKED and getattr(trace, "_TRACER_PROVIDER", trace) is None:
        return None  # ten times as fast as asking; a version without this attribute is asked every time
    _ASKED = True
    provider = trace.get_tracer_provider()  # the first time, this also follows OpenTelemetry's environment variable
    if isinstance(provider, trace.ProxyTracerProvider):  # stands in until the user sets one
        return None
    _TRACER = provider.get_tracer("facefleet")
    return _TRACER
