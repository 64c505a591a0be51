"""Logs: the human line, the JSON line, and what never gets in."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from facefleet.errors import ConfigError
from facefleet.telemetry import InferenceLog, configure_logging, request
from facefleet.telemetry.logs import current_request, human_bytes
from facefleet.telemetry.redact import plain
from facefleet.types import Image

log = logging.getLogger("facefleet.tests")
GB = 2**30


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    logger = logging.getLogger("facefleet")
    before = logger.level, logger.propagate, list(logger.handlers)
    yield
    logger.level, logger.propagate = before[:2]
    logger.handlers[:] = before[2]


def configured(*, style: str = "human", verbose: bool = True) -> io.StringIO:
    configure_logging(verbose=verbose, format=style)  # type: ignore[arg-type]
    handler = logging.getLogger("facefleet").handlers[0]
    assert isinstance(handler, logging.StreamHandler)
    stream = io.StringIO()
    handler.setStream(stream)
    return stream


class TestHuman:
    def test_inference_line(self) -> None:
        stream = configured()
        InferenceLog(memory=lambda: (int(3.2 * GB), 8 * GB)).batch(8, 0.0452)
        assert re.fullmatch(
            r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] INFO inference batch=8 latency=45\.2ms mem=3\.2GB/8GB\n",
            stream.getvalue(),
        )

    def test_more_fields_follow(self) -> None:
        stream = configured()
        InferenceLog(memory=lambda: (0, 0)).batch(8, 12.34, stage="detect", device="cuda:0")
        assert stream.getvalue().endswith("INFO inference batch=8 latency=12.3s stage=detect device=cuda:0\n")

    def test_fields(self) -> None:
        stream = configured()
        fields = {
            "path": Path("/a b.jpg"),
            "share": 0.123456789,
            "ok": True,
            "none": None,
            "text": 'a="b"',
            "empty": "",
        }
        log.info("read %s of %d", "x", 3, extra={**fields, "size_bytes": 1536, "rate_per_s": 4.5})
        assert stream.getvalue().endswith(
            'INFO read x of 3 path="/a b.jpg" share=0.123457 ok=true none=null text="a=\\"b\\"" empty="" '
            "size=1.5KB rate_per_s=4.5\n"
        )

    def test_one_line_an_event(self) -> None:
        stream = configured()
        log.warning("bad name: %s", "a\n[2026-01-01 00:00:00] INFO forged\r", extra={"name_of": "b\nc"})
        assert stream.getvalue().count("\n") == 1
        assert "\r" not in stream.getvalue()

    def test_a_traceback_follows(self) -> None:
        stream = configured()
        try:
            raise ValueError("broken")
        except ValueError:
            log.exception("failed", extra={"batch": 8})
        first, second, *_, last = stream.getvalue().splitlines()
        assert first.endswith("ERROR failed batch=8")
        assert second.startswith("Traceback")
        assert last == "ValueError: broken"

    def test_levels(self) -> None:
        stream = configured(verbose=False)
        log.info("not shown")
        log.warning("shown")
        assert "not shown" not in stream.getvalue()
        assert "WARNING shown" in stream.getvalue()

    @pytest.mark.parametrize(
        ("count", "text"), [(0, "0B"), (1023, "1023B"), (1024, "1KB"), (3 * GB + GB // 5, "3.2GB"), (5 << 20, "5MB")]
    )
    def test_bytes(self, count: int, text: str) -> None:
        assert human_bytes(count) == text


class TestJson:
    def test_line(self) -> None:
        stream = configured(style="json")
        with request("r-17"):
            InferenceLog(memory=lambda: (3, 8)).batch(8, 0.0452, stage="detect")
        entry = json.loads(stream.getvalue())
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", entry.pop("time"))
        assert entry == {
            "level": "INFO",
            "logger": "facefleet.telemetry.logs",
            "message": "inference",
            "batch": 8,
            "latency_s": 0.0452,
            "mem_bytes": 3,
            "mem_total_bytes": 8,
            "stage": "detect",
            "request": "r-17",
        }

    def test_exceptions_and_clashes(self) -> None:
        stream = configured(style="json")
        try:
            raise ValueError("broken\nin two")
        except ValueError:
            log.exception("failed", extra={"level": "mine"})
        (line,) = stream.getvalue().splitlines()
        entry = json.loads(line)
        assert (entry["level"], entry["field_level"]) == ("ERROR", "mine")
        assert "ValueError: broken" in entry["exception"]

    def test_unknown_format(self) -> None:
        with pytest.raises(ConfigError, match="xml"):
            configure_logging(verbose=True, format="xml")  # type: ignore[arg-type]


class TestRequest:
    def test_in_records_of_its_own_only(self) -> None:
        stream = configured()
        with request("outer"):
            with request("inner"):
                log.info("one")
            log.info("two")
            with ThreadPoolExecutor(1) as pool:
                pool.submit(log.info, "three").result()
        log.info("four")
        ends = [line.partition("INFO ")[2] for line in stream.getvalue().splitlines()]
        assert ends == ["one request=inner", "two request=outer", "three", "four"]
        assert current_request() == ""


class TestRate:
    def test_at_most_one_an_interval(self) -> None:
        stream = configured()
        now = [100.0]
        batches = InferenceLog(1.0, clock=lambda: now[0], memory=lambda: (0, 0))
        written = []
        for _ in range(1000):
            written.append(batches.batch(8, 0.01))
            now[0] += 0.005
        assert sum(written) == len(stream.getvalue().splitlines()) == 5

    def test_memory_is_asked_for_lines_only(self) -> None:
        configured(verbose=False)
        asked: list[int] = []
        batches = InferenceLog(memory=lambda: (asked.append(1), (0, 0))[1])
        assert not batches.batch(8, 0.01)
        assert not asked


class TestNoPictures:
    MARK = 201.0625  # exact in float32, and its text is nothing else's

    @pytest.mark.parametrize("style", ["human", "json"])
    def test_no_array_gets_into_a_log(self, style: str) -> None:
        stream = configured(style=style)
        picture = np.full((4, 6, 3), 201, np.uint8)
        vector = np.full(512, self.MARK, np.float32)
        image = Image(picture, 6, 4, name="secret")
        extra = {
            "pixels": picture,
            "vector": vector,
            "listed": vector.tolist(),
            "short": vector[:3],
            "deep": {"vectors": [vector, {"again": vector}]},
            "data": picture.tobytes(),
            "view": memoryview(picture),
            "image": image,
            "number": np.float32(0.5),
        }
        log.info("embedded %s %s %s", vector, image, picture.tobytes(), extra=extra)
        log.info("by name %(vector)s", {"vector": vector})
        log.info(vector)
        log.info("wrong number of arguments %s", vector, vector)  # noqa: PLE1205  # that is what is tried
        log.info("not a number %d", vector)
        text = stream.getvalue()
        assert "201" not in text.replace("201 bytes", "")
        assert "xc9" not in text.lower()
        assert "<uint8 4x6x3>" in text
        assert "<float32 512>" in text
        assert "<list of 512>" in text
        assert "<72 bytes>" in text
        assert "<Image>" in text
        assert re.search(r'number"?[=:] ?0\.5', text)
        assert text.count("<float32 512>") >= 8

    @pytest.mark.parametrize(
        ("value", "shown"),
        [
            (np.zeros((0, 512), np.float32), "<float32 0x512>"),
            (np.int64(7), 7),
            (np.array(2.5), 2.5),
            ({1: (1, 2)}, {"1": [1, 2]}),
            (range(100), "<range of 100>"),
            ([[[[[1]]]]], [[[["<list of 1>"]]]]),
            (ValueError("why"), "why"),
            ("x" * 2001, "x" * 2000 + "... (2001 characters)"),
            (object, "<class 'object'>"),
        ],
    )
    def test_what_stands_for_a_value(self, value: object, shown: object) -> None:
        assert plain(value) == shown
