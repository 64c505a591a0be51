"""Schedules, connections and the generator, against real servers on the loopback. No assertion is about speed."""

from __future__ import annotations

import asyncio
import json
import math
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path

import pytest

from facefleet.bench.load.connection import Target
from facefleet.bench.load.generator import Generator, Sent
from facefleet.bench.load.null_server import null_server
from facefleet.bench.load.schedule import bursty, even, from_trace, poisson
from facefleet.bench.load.serve import Client, load_figures, saturation, schedule_error
from facefleet.bench.stats import latencies
from facefleet.errors import ConfigError


class TestSchedule:
    def test_even(self) -> None:
        assert even(4, 1) == [0.0, 0.25, 0.5, 0.75]

    def test_poisson_has_the_rate_and_exponential_gaps(self) -> None:
        times = poisson(500, 20)
        assert len(times) == 10_000
        assert times == sorted(times)
        assert times[0] >= 0
        assert times[-1] < 20
        gaps = [b - a for a, b in pairwise(times)]
        assert statistics.stdev(gaps) == pytest.approx(statistics.fmean(gaps), rel=0.05)
        assert sum(gap > 2 / 500 for gap in gaps) / len(gaps) == pytest.approx(math.exp(-2), abs=0.02)
        assert poisson(500, 20) == times

    def test_bursts_have_the_same_mean_and_come_in_a_fifth_of_the_time(self) -> None:
        times = bursty(100, 10)
        assert len(times) == 1000
        assert all(at % 1.0 <= 0.2 for at in times)

    def test_trace(self, tmp_path: Path) -> None:
        file = tmp_path / "trace.txt"
        file.write_text('# seconds\n12.5\n10\n\n{"t": 11, "path": "x"}\n{"time": 14.5}\n10.5,GET\n')
        assert from_trace(file) == [0.0, 0.5, 1.0, 2.5, 4.5]
        assert from_trace(file, speed=2)[-1] == 2.25

    @pytest.mark.parametrize(("text", "named"), [("1\nlater\n", "line 2"), ('{"x": 1}', "line 1"), ("nan", "line 1")])
    def test_bad_trace(self, tmp_path: Path, text: str, named: str) -> None:
        file = tmp_path / "trace.txt"
        file.write_text(text)
        with pytest.raises(ConfigError, match=named):
            from_trace(file)

    def test_empty_or_missing_trace(self, tmp_path: Path) -> None:
        (tmp_path / "empty").write_text("# nothing\n")
        for name in ("empty", "missing"):
            with pytest.raises(ConfigError, match=name):
                from_trace(tmp_path / name)


class TestTarget:
    @pytest.mark.parametrize(
        ("url", "target"),
        [
            ("http://a:81/x?y=1", Target("a", 81, "/x?y=1", False)),
            ("https://a/x", Target("a", 443, "/x", True)),
            ("a:9000", Target("a", 9000, "/v1/faces", False)),
            ("http://a/", Target("a", 80, "/v1/faces", False)),
        ],
    )
    def test_urls(self, url: str, target: Target) -> None:
        assert Target.of(url) == target

    @pytest.mark.parametrize("url", ["ftp://a/x", "http://", "http://a:port/x"])
    def test_no_url(self, url: str) -> None:
        with pytest.raises(ConfigError, match="no URL"):
            Target.of(url)


class Recording(ThreadingHTTPServer):
    """Answers with as many faces as the body has bytes, chunked if asked for; says 503 to bodies of 13 bytes."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.delay_s = 0.0
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # connections are given up by the generator


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Recording

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.bodies.append(body)
        self.server.headers.append(dict(self.headers))
        time.sleep(self.server.delay_s)
        answer = json.dumps({"faces": [{}] * len(body)}).encode()
        self.send_response(503 if len(body) == 13 else 200)
        if self.path.startswith("/chunked"):
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            half = len(answer) // 2
            for part in (answer[:half], answer[half:], b""):
                self.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
        else:
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@contextmanager
def server() -> Iterator[Recording]:
    with Recording() as found:
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def client(url: str, *bodies: bytes, connections: int = 16, timeout_s: float = 20.0) -> Client:
    headers = {"Content-Type": "image/jpeg", "X-Test": "1"}
    return Client(target=Target.of(url), bodies=bodies, headers=headers, connections=connections, timeout_s=timeout_s)


class TestGenerator:
    @pytest.mark.parametrize("path", ["/faces", "/chunked"])
    def test_closed_loop_sends_photos_and_counts_faces(self, path: str) -> None:
        with server() as found:
            sent = client(f"http://127.0.0.1:{found.server_port}{path}", b"xyz").closed(3, 0.3)
        assert sent.planned == len(sent.latencies_s) == len(found.bodies) >= 3
        assert set(found.bodies) == {b"xyz"}
        assert sent.faces == {0: 3}
        assert set(sent.statuses) == {200}
        assert sent.failed == 0
        assert found.headers[0]["X-Test"] == "1"
        figures = load_figures("3 users", None, [sent])
        assert set(figures["by_faces"]) <= {"3"}
        assert figures["schedule_error"] is None
        assert figures["answers_per_s"]["median"] > 0

    def test_open_loop_sends_everything_once(self) -> None:
        due = [index * 0.002 for index in range(60)]
        with server() as found:
            sent = client(f"http://127.0.0.1:{found.server_port}/faces", b"x", b"xyz").open(due)
        assert set(found.bodies) == {b"x", b"xyz"}
        assert sent.faces == {0: 1, 1: 3}
        assert set(load_figures("open", 500.0, [sent])["by_faces"]) == {"1", "3"}
        assert sent.planned == len(found.bodies) == len(sent.latencies_s) == len(sent.late_s) == 60
        assert all(latency >= service for latency, service in zip(sent.latencies_s, sent.services_s, strict=True))

    def test_failures_are_counted_and_no_latency(self) -> None:
        with server() as found:
            sent = client(f"http://127.0.0.1:{found.server_port}/faces", bytes(13), b"x").open(even(100, 0.3))
        assert sent.statuses[200] + sent.statuses[503] == 30
        assert sent.failed == sent.statuses[503] > 0
        assert len(sent.latencies_s) == sent.statuses[200]

    def test_a_server_that_never_answers_in_time(self) -> None:
        with server() as found:
            found.delay_s = 3.0
            sent = client(f"http://127.0.0.1:{found.server_port}/faces", b"x", timeout_s=0.3).open([0.0, 0.01])
        assert sent.statuses == {0: 2}
        assert load_figures("late", 2.0, [sent])["latency"] == {}

    def test_nobody_there(self) -> None:
        with pytest.raises(ConfigError, match="does not answer"):
            client("http://127.0.0.1:9/x", b"x").closed(1, 0.1)

    def test_more_requests_than_connections_wait_and_their_wait_counts(self) -> None:
        with server() as found:
            found.delay_s = 0.1
            sent = client(f"http://127.0.0.1:{found.server_port}/faces", b"x", connections=1).open([0.0] * 5)
        assert len(sent.latencies_s) == 5
        assert max(sent.latencies_s) >= 0.5
        assert max(sent.services_s) < max(sent.latencies_s)


class TestCoordinatedOmission:
    def test_a_stall_of_a_second_shows_in_p99(self) -> None:
        """Of 4 s at 200/s, a quarter is due while the server stands still: its p99 is nearly the whole stall."""
        with null_server(stall_at=1.0, stall_for=1.0) as url:
            sent = client(url, bytes(100), connections=64).open(even(200, 4))
        assert len(sent.latencies_s) == 800
        assert latencies(sent.latencies_s).p99 > 0.9
        # A tester that waits with the server sends few of them, and hardly sees it.
        with null_server(stall_at=1.0, stall_for=1.0) as url:
            waiting = client(url, bytes(100)).closed(1, 4.0)
        assert latencies(waiting.latencies_s).p99 < 0.5
        assert max(waiting.latencies_s) > 0.9

    def test_time_begins_when_a_request_is_due(self) -> None:
        with null_server(stall_at=0.2, stall_for=0.5) as url:
            sent = client(url, bytes(100), connections=2).open(even(100, 1.5))
        # With two connections most of what is due meanwhile waits for one, which the service time does not see.
        slow = [each for each in sent.latencies_s if each > 0.1]
        slow_service = [each for each in sent.services_s if each > 0.1]
        assert len(slow) > 20
        assert len(slow_service) < len(slow) / 3


class TestScheduleError:
    def test_late_at_the_end(self) -> None:
        sent = Sent(late_s=[0.0, 0.1], send_s=1.1)
        assert schedule_error([sent]) == pytest.approx(0.1)

    def test_on_time(self) -> None:
        assert schedule_error([Sent(late_s=[0.001, 0.0], send_s=2.0)]) == 0.0


class TestSaturation:
    def test_finds_the_rate_between_too_much_and_enough(self) -> None:
        class Fake(Client):
            def open(self, due_s: object) -> Sent:
                assert isinstance(due_s, list)
                count, seconds = len(due_s), 10.0
                answered = min(count, 470)
                late = 0.01 if count <= 470 else 5.0
                return Sent(
                    seconds=seconds,
                    planned=count,
                    latencies_s=[late] * answered,
                    services_s=[late] * answered,
                    photos=[0] * answered,
                    late_s=[0.0] * count,
                    send_s=seconds,
                )

        fake = Fake(target=Target("a", 1, "/", False), bodies=[b"x"], headers={})
        found, tried = saturation(fake, p99_ms=100, seconds=10, start=10, steps=8)
        assert found["rate_per_s"] <= 47.1
        assert found["rate_per_s"] == pytest.approx(47, rel=0.03)
        assert found["upper_per_s"] > found["rate_per_s"]
        assert [each["offered_per_s"] for each in tried[:4]] == [10, 20, 40, 80]
        assert len(tried) == 12


def test_the_null_server_ends_with_its_block() -> None:
    with null_server() as url:
        target = Target.of(url)
    with pytest.raises(OSError, match=r"."):
        asyncio.run(_connect(target))


async def _connect(target: Target) -> None:
    await asyncio.open_connection(target.host, target.port)


class _ClosesAfterEveryAnswer(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        self._transport.close()


def test_connections_that_a_server_closed_while_idle_are_not_used_again() -> None:
    async def main() -> Sent:
        server = await asyncio.get_running_loop().create_server(_ClosesAfterEveryAnswer, "127.0.0.1", 0)
        target = Target.of(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
        sent = await asyncio.wait_for(Generator(target, [b"x"], [0], {}).open([0.0, 0.5, 1.0]), 60)
        server.close()
        return sent

    assert asyncio.run(main()).statuses == {200: 3}
