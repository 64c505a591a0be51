"""Spans with and without OpenTelemetry."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from facefleet.telemetry import current, span
from facefleet.telemetry.spans import from_headers, to_headers, use_provider

pytest.importorskip(
    "opentelemetry.sdk.trace", reason='opentelemetry-sdk is not installed: pip install "facefleet[test]"'
)

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    use_provider(provider)
    yield exporter
    use_provider(None)
    provider.shutdown()


class TestConfigured:
    def test_names_attributes_parents(self, exporter: InMemorySpanExporter) -> None:
        with span("photo", stage="all"), span("detect", batch=8, share=0.5, full=True):
            pass
        inner, outer = exporter.get_finished_spans()
        assert (inner.name, outer.name) == ("detect", "photo")
        assert dict(inner.attributes or {}) == {"batch": 8, "share": 0.5, "full": True}
        assert inner.parent is not None
        assert inner.parent.span_id == outer.context.span_id
        assert outer.parent is None

    def test_no_array_gets_in(self, exporter: InMemorySpanExporter) -> None:
        with span("embed", vector=np.ones(512), data=b"jpeg", rows=[1, 2]):  # type: ignore[arg-type]
            pass
        assert not exporter.get_finished_spans()[0].attributes

    def test_exceptions_are_recorded_and_go_on(self, exporter: InMemorySpanExporter) -> None:
        with pytest.raises(ZeroDivisionError), span("detect"):
            raise ZeroDivisionError("by zero")
        (found,) = exporter.get_finished_spans()
        assert not found.status.is_ok
        assert [event.name for event in found.events] == ["exception"]

    def test_other_threads_and_processes_go_on(self, exporter: InMemorySpanExporter) -> None:
        with span("photo"):
            here, headers = current(), to_headers()

        def work() -> None:
            with span("embed", parent=here):
                pass
            with span("remote", parent=from_headers(headers)):
                pass

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        photo, embed, remote = exporter.get_finished_spans()
        assert headers["traceparent"].split("-")[2] == f"{photo.context.span_id:016x}"
        for child in (embed, remote):
            assert child.parent is not None
            assert child.parent.span_id == photo.context.span_id
            assert child.context.trace_id == photo.context.trace_id


class TestNotConfigured:
    def test_nothing_happens(self) -> None:
        with span("detect", batch=8) as nothing:
            assert nothing is None
        assert span("detect") is span("embed")
        assert current() is None
        assert to_headers() == {}
        assert from_headers({"traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01"}) is None

    def test_exceptions_go_on(self) -> None:
        with pytest.raises(ZeroDivisionError), span("detect"):
            raise ZeroDivisionError

    @pytest.mark.parametrize("imported", ["import opentelemetry.trace\n", ""])
    def test_global_provider_counts_as_soon_as_it_is_set(self, imported: str) -> None:
        code = imported + (
            "import sys\n"
            "from facefleet.telemetry import span\n"
            "with span('before') as nothing: assert nothing is None\n"
            "with span('before') as nothing: assert nothing is None\n"
            f"assert ('opentelemetry' in sys.modules) == {bool(imported)}\n"
            "from opentelemetry import trace\n"
            "from opentelemetry.sdk.trace import TracerProvider\n"
            "from opentelemetry.sdk.trace.export import SimpleSpanProcessor\n"
            "from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter\n"
            "exporter = InMemorySpanExporter()\n"
            "provider = TracerProvider()\n"
            "provider.add_span_processor(SimpleSpanProcessor(exporter))\n"
            "trace.set_tracer_provider(provider)\n"
            "with span('after', batch=2): pass\n"
            "print([found.name for found in exporter.get_finished_spans()])"
        )
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert ended.stdout.strip() == "['after']"
