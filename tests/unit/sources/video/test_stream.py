"""Live streams from a real RTSP server and from an HTTP server that stalls; the loopback interface only."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from facefleet.sources.video import LiveStream, Sampling, StreamOptions, StreamState, is_live
from facefleet.sources.video.stream import shown
from tests.conftest import skip_without
from tests.unit.sources.video.make import squares, write_video

SERVER = Path(__file__).with_name("rtsp_server.py")
SYSTEM_PYTHON = "/usr/bin/python3"
QUICK = StreamOptions(open_timeout_s=5, read_timeout_s=0.7, stall_s=5, first_wait_s=0.1, most_wait_s=0.5)
APT = "gir1.2-gst-rtsp-server-1.0 gstreamer1.0-plugins-good gstreamer1.0-plugins-ugly python3-gi"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def rtsp() -> Iterator[str]:
    """Base address of a running server."""
    if not Path(SYSTEM_PYTHON).exists():
        skip_without("rtsp", f"no {SYSTEM_PYTHON} for the RTSP server; on Debian: apt install {APT}")
    port = free_port()
    server = subprocess.Popen(
        [SYSTEM_PYTHON, str(SERVER), str(port)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert server.stdout is not None
        if server.stdout.readline().strip() != "ready":
            skip_without("rtsp", f"GStreamer's RTSP server does not run here; on Debian: apt install {APT}")
        yield f"rtsp://127.0.0.1:{port}"
    finally:
        server.kill()
        server.communicate()


class Http(ThreadingHTTPServer):
    """Sends so many bytes of a file to every client, then nothing, and keeps the connection."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, data: bytes, *, hang: bool) -> None:
        self.done = threading.Event()
        self.requests = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requests += 1
                self.send_response(200)
                self.send_header("Content-Type", "video/mp2t")
                self.end_headers()
                self.wfile.write(data)
                if hang:
                    outer.done.wait(60)

            def log_message(self, *_: object) -> None: ...

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/live.ts"

    def stop(self) -> None:
        self.done.set()
        self.shutdown()
        self.server_close()


@pytest.fixture(scope="module")
def clip_ts(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = write_video(tmp_path_factory.mktemp("ts") / "clip.ts", squares(75))
    return path.read_bytes()


def wait_for(condition: Callable[[], bool], seconds: float = 40) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.02)
    return False


def test_bad_streams_come_back_and_harm_no_good_one(rtsp: str) -> None:
    """Fault 40: a server that ends, one that stalls, one that changes its size, one that is not there."""
    names = ("good/0", "good/1", "cut", "stall", "resize")
    addresses = [f"{rtsp}/{name}" for name in names] + [f"rtsp://127.0.0.1:{free_port()}/none"]
    streams = [LiveStream(address, QUICK) for address in addresses]
    good, bad, missing = streams[:2], streams[2:5], streams[5]
    sizes: set[tuple[int, int]] = set()

    def settled() -> bool:
        for stream in streams:
            frame = stream.take()
            if frame is not None and stream is streams[4]:
                sizes.add((frame.image.width, frame.image.height))
        statuses = [stream.status() for stream in bad]
        return all(s.connects >= 3 for s in statuses) and len(sizes) == 2 and missing.status().failures >= 3

    try:
        assert wait_for(settled), [str(stream.status()) for stream in streams]
        for stream in good:
            status = stream.status()
            assert (status.state, status.connects, status.failures) == (StreamState.LIVE, 1, 0)
            assert status.frames > 50
        assert "time allowed" in bad[1].status().error
        assert "ended" in bad[0].status().error
        assert sizes == {(320, 240), (640, 480)}
        assert missing.status().connects == 0
    finally:
        for stream in streams:
            stream.close()
    assert all(stream.status().state is StreamState.CLOSED for stream in streams)


def test_the_newest_frame_wins_and_the_others_are_counted(rtsp: str) -> None:
    stream = LiveStream(f"{rtsp}/good/2", QUICK)
    try:
        assert wait_for(lambda: stream.status().decoded >= 40)
        frame = stream.take()
        status = stream.status()
        assert frame is not None
        assert frame.index >= 39
        assert status.frames == 1
        assert status.dropped >= 38
    finally:
        stream.close()


def test_sampling_of_a_stream(rtsp: str) -> None:
    options = StreamOptions(sampling=Sampling(every=5), read_timeout_s=5)
    stream = LiveStream(f"{rtsp}/good/3", options)
    seen: list[int] = []
    try:

        def enough() -> bool:
            frame = stream.take()
            if frame is not None:
                seen.append(frame.index)
            return len(seen) >= 6

        assert wait_for(enough)
    finally:
        stream.close()
    assert all(index % 5 == 0 for index in seen)


def test_http_that_stalls_is_left_and_tried_again(clip_ts: bytes) -> None:
    server = Http(clip_ts[: len(clip_ts) // 2], hang=True)
    stream = LiveStream(server.address, QUICK)
    try:
        assert wait_for(lambda: server.requests >= 3), str(stream.status())
        status = stream.status()
        assert status.decoded > 0
        assert "time allowed" in status.error
    finally:
        stream.close()
        server.stop()


def test_a_frame_after_a_new_connection_begins_a_new_scene(clip_ts: bytes) -> None:
    server = Http(clip_ts, hang=False)
    stream = LiveStream(server.address, QUICK)
    try:
        assert wait_for(lambda: stream.has_frame)
        first = stream.take()
        assert first is not None
        assert first.cut
        before = stream.status().connects
        assert wait_for(lambda: stream.status().connects > before + 1 and stream.has_frame)
        later = stream.take()
        assert later is not None
        assert later.cut
        assert later.time_s > first.time_s
    finally:
        stream.close()
        server.stop()


def test_a_thread_that_does_not_come_back_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watchdog behind FFmpeg's own timeouts."""
    hang, entered = threading.Event(), []

    def stuck(self: LiveStream) -> object:
        entered.append(threading.current_thread())
        hang.wait(60)
        raise OSError("at last")

    monkeypatch.setattr(LiveStream, "_open", stuck)
    options = StreamOptions(open_timeout_s=0.05, read_timeout_s=0.05, stall_s=0.05, first_wait_s=0.05)
    stream = LiveStream("rtsp://127.0.0.1:1/x", options)
    try:
        assert wait_for(lambda: stream.status().failures >= 2 and len(entered) >= 3)
        assert len(set(entered)) == len(entered)
    finally:
        hang.set()
        stream.close()
    assert wait_for(lambda: not any(thread.is_alive() for thread in entered))


def test_what_is_live() -> None:
    live = ["rtsp://camera/1", "RTSPS://x", "http://h/a.m3u8", "udp://239.0.0.1:5", "/dev/video0"]
    assert all(map(is_live, live))
    assert not any(map(is_live, ["clip.mp4", "/data/clip.mp4", "C:\\clip.mp4", "file.rtsp", "/dev/null"]))


def test_passwords_are_not_shown() -> None:
    assert shown("rtsp://ada:secret@camera:554/one@two") == "rtsp://camera:554/one@two"
    assert shown("/dev/video0") == "/dev/video0"


def test_importing_the_package_loads_nothing() -> None:
    code = "import sys, facefleet.sources.video, facefleet.jobs.video, facefleet.tracks, facefleet.sinks.video;"
    code += "print([m for m in ('av', 'lap', 'matplotlib', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
