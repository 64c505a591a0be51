"""Live streams: the newest frame of each, whatever the network does.

Owns a thread a stream that opens, reads, decodes, and after any failure waits and begins again. The newest frame
wins: what nobody took in time is dropped and counted, so that latency is bounded by one frame. A thread that does not
come back from FFmpeg within its timeouts is given up and replaced; it ends when FFmpeg lets it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from facefleet.decode.ffmpeg import AvObject, explain, load
from facefleet.errors import ConfigError, FacefleetError, ImageTooLargeError, StreamError, StreamTimeoutError
from facefleet.sources.video.backoff import Backoff
from facefleet.sources.video.frame import VideoFrame
from facefleet.sources.video.hardware import check_decoder, open_container
from facefleet.sources.video.picture import Developer, change, thumbnail
from facefleet.sources.video.sampling import CUT, Sampler, Sampling
from facefleet.types import Image, U8Array

_log = logging.getLogger(__name__)
_SCHEMES = ("rtsp", "rtsps", "rtmp", "rtmps", "http", "https", "udp", "tcp", "srt", "rtp")
_PROTOCOLS = "rtp,srtp,udp,tcp,tls,rtsp,rtsps,rtmp,rtmps,rtmpt,http,https,httpproxy,srt,crypto,hls"
_WATCHDOG_PARTS = 3.0  # FFmpeg reports a timeout after about twice the time that it was given


class StreamState(StrEnum):
    """What a stream is doing."""

    CONNECTING = "connecting"
    LIVE = "live"
    WAITING = "waiting"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """How a stream is read.

    Attributes:
        sampling: Which frames are looked at: `every`, `fps`, `scene` or `keyframes`.
        open_timeout_s: It is given up if it has not opened by then.
        read_timeout_s: ... or if nothing comes for so long.
        stall_s: ... or if data comes, but no frame for so long.
        first_wait_s: Longest wait before the first new attempt.
        most_wait_s: Longest wait at all.
        transport: Of RTSP: ``tcp`` or ``udp``.
        threads: Decoder threads a stream.
        max_pixels: Larger frames fail the connection.
        decoder: ``cpu``, or ``cuda`` or ``cuda:N`` for NVDEC.

    Raises:
        ConfigError: A time is not positive, or there is no such transport or decoder.
    """

    sampling: Sampling = field(default_factory=Sampling)
    open_timeout_s: float = 10.0
    read_timeout_s: float = 5.0
    stall_s: float = 10.0
    first_wait_s: float = 0.5
    most_wait_s: float = 30.0
    transport: str = "tcp"
    threads: int = 1
    max_pixels: int = 100_000_000
    decoder: str = "cpu"

    def __post_init__(self) -> None:
        check_decoder(self.decoder)
        if self.transport not in ("tcp", "udp"):
            raise ConfigError(f"transport {self.transport!r}", hint="use tcp or udp")
        for name in ("open_timeout_s", "read_timeout_s", "stall_s", "first_wait_s", "most_wait_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}={getattr(self, name)}", hint="seconds, more than 0")


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """What is known of a stream.

    Attributes:
        name: Its address, without a password.
        state: What it is doing.
        decoded: Frames decoded.
        frames: Frames taken.
        dropped: Frames that a newer one replaced before anybody took them.
        connects: Times it was opened.
        failures: Attempts and connections that failed.
        error: The last failure; empty if none.
        age_s: Seconds since the last frame; None before the first.
        width: Width of the last frame in pixels.
        height: Its height.
    """

    name: str
    state: StreamState = StreamState.CONNECTING
    decoded: int = 0
    frames: int = 0
    dropped: int = 0
    connects: int = 0
    failures: int = 0
    error: str = ""
    age_s: float | None = None
    width: int = 0
    height: int = 0

    def __str__(self) -> str:
        age = "" if self.age_s is None else f", last frame {self.age_s:.1f} s ago"
        error = f", last failure: {self.error}" if self.error else ""
        return f"{self.name}: {self.state}, {self.frames} frames, {self.dropped} dropped{age}{error}"


class LiveStream:
    """One stream, read from its creation on until `close`.

    Args:
        address: ``rtsp://...``, ``http://...``, a device such as ``/dev/video0``, or anything else FFmpeg opens.
        options: How it is read.
        ready: Set whenever there is a new frame; several streams may share one.

    Raises:
        BackendUnavailableError: PyAV is not installed.
    """

    def __init__(
        self, address: str, options: StreamOptions | None = None, *, ready: threading.Event | None = None
    ) -> None:
        self._av = load()
        self._address = address
        self.options = options or StreamOptions()
        self.ready = ready or threading.Event()
        self._developer = Developer(self.options.max_pixels)
        self._lock = threading.Lock()
        self._status = StreamStatus(shown(address))
        self._slot: tuple[Any, int, float, bool] | None = None
        self._cut = False
        self._last_s: float | None = None
        self._beat_s = time.monotonic()
        self._closing = threading.Event()
        self._thread = self._start()

    def close(self) -> None:
        """Stop reading; a thread that FFmpeg holds back is not waited for longer than a moment."""
        self._closing.set()
        self._thread.join(timeout=1.0)
        with self._lock:
            self._status = replace(self._status, state=StreamState.CLOSED)
            self._slot = None

    def take(self) -> VideoFrame | None:
        """The newest frame, if it has not been taken; None if there is none. Any one thread at a time.

        Its time is that of its arrival, in seconds since 1970: clocks of cameras begin anew with each connection.
        """
        with self._lock:
            slot, self._slot = self._slot, None
            if slot is None:
                return None
            self._status = replace(self._status, frames=self._status.frames + 1)
        frame, index, time_s, cut = slot
        try:
            pixels = self._developer.rgb(frame)
        except (FacefleetError, self._av.error.FFmpegError) as error:
            self._failed(error if isinstance(error, FacefleetError) else explain(error, self.name, live=True))
            return None
        height, width = pixels.shape[:2]
        image = Image(pixels, width, height, f"{self.name}@{time_s:.3f}", "video")
        return VideoFrame(index, frame.pts or 0, time_s, image, bool(frame.key_frame), bool(frame.is_corrupt), cut)

    @property
    def name(self) -> str:
        """Its address, without a password."""
        return self._status.name

    @property
    def has_frame(self) -> bool:
        """Whether `take` has something to give."""
        return self._slot is not None

    def status(self) -> StreamStatus:
        """What is known of it; replaces a thread that hangs, so call it now and then."""
        options = self.options
        patience = _WATCHDOG_PARTS * max(options.open_timeout_s, options.read_timeout_s, options.stall_s)
        with self._lock:
            hangs = not self._closing.is_set() and time.monotonic() - self._beat_s > patience
            if hangs:
                self._beat_s = time.monotonic()
        if hangs:
            self._failed(StreamTimeoutError(f"{self.name}: FFmpeg did not come back", hint="its thread was replaced"))
            self._thread = self._start()
        with self._lock:
            age = None if self._last_s is None else time.monotonic() - self._last_s
            return replace(self._status, age_s=age)

    def _start(self) -> threading.Thread:
        self._closing.set()  # of the thread before, if there is one
        self._closing = threading.Event()
        thread = threading.Thread(target=self._run, args=(self._closing,), name=f"stream {self.name}", daemon=True)
        thread.start()
        return thread

    def _run(self, closing: threading.Event) -> None:
        backoff = Backoff(self.options.first_wait_s, self.options.most_wait_s)
        while not closing.is_set():
            try:
                self._read(closing, backoff)
                raise StreamError(f"{self.name}: the stream ended")
            except FacefleetError as error:
                failure = error
            except (self._av.error.FFmpegError, OSError, ValueError) as error:
                failure = explain(error, self.name, live=True)
            if closing.is_set():
                return
            self._failed(failure)
            wait_until = time.monotonic() + backoff.next_s()
            while not closing.wait(min(0.2, max(0.0, wait_until - time.monotonic()))):
                self._beat_s = time.monotonic()
                if self._beat_s >= wait_until:
                    break

    def _read(self, closing: threading.Event, backoff: Backoff) -> None:
        options = self.options
        self._change(state=StreamState.CONNECTING)
        self._beat_s = time.monotonic()
        with contextlib.closing(self._open()) as container:
            if not container.streams.video:
                raise StreamError(f"{self.name}: there is no video in it", hint="check the address")
            stream = container.streams.video[0]
            stream.codec_context.thread_count = options.threads
            if options.sampling.keyframes:
                stream.codec_context.skip_frame = "NONKEY"
            self._change(connects=self._status.connects + 1)
            self._decode(container, stream, closing, backoff)

    def _open(self) -> AvObject:
        options = self.options
        timeout = (options.open_timeout_s, options.read_timeout_s)
        if self._address.startswith("/dev/"):
            return self._container(format="v4l2", timeout=timeout)
        settings = {"fflags": "nobuffer", "flags": "low_delay"}
        if _scheme(self._address) in _SCHEMES:
            settings["protocol_whitelist"] = _PROTOCOLS
        if self._address.startswith("rtsp"):
            settings |= {"rtsp_transport": options.transport}
        return self._container(container_options=settings, timeout=timeout)

    def _container(self, **how: Any) -> AvObject:  # noqa: ANN401  # options of av.open
        return open_container(self._address, self.options.decoder, name=self.name, live=True, **how)

    def _decode(self, container: AvObject, stream: AvObject, closing: threading.Event, backoff: Backoff) -> None:
        options = self.options
        sampler, picker = Sampler(options.sampling), _Picker()
        since, index = time.monotonic(), -1
        for packet in container.demux(stream):
            if closing.is_set():
                return
            now = self._beat_s = time.monotonic()
            if now - since > options.stall_s:
                raise StreamTimeoutError(f"{self.name}: data, but no frame for {options.stall_s:g} s")
            try:
                frames = packet.decode()
            except self._av.error.InvalidDataError:
                continue  # lost packets; the next key frame mends it
            for frame in frames:
                if frame.width * frame.height > options.max_pixels:
                    raise ImageTooLargeError(f"{self.name}: a frame of {frame.width} x {frame.height} pixels")
                since, index = now, index + 1
                backoff.reset()
                self._arrived(frame, index, sampler, picker, closing)

    def _arrived(
        self,
        frame: AvObject,
        index: int,
        sampler: Sampler,
        picker: _Picker,
        closing: threading.Event,
    ) -> None:
        now_s = time.time()
        thumb = thumbnail(frame)
        wanted = sampler.due(index, now_s) or sampler.changed(picker.difference(thumb))
        cut = picker.see(thumb, taken=wanted)
        with self._lock:
            if closing.is_set():
                return  # this thread was replaced
            status = self._status
            self._cut = self._cut or cut or index == 0
            self._last_s = time.monotonic()
            dropped = status.dropped + (wanted and self._slot is not None)
            size = {"width": frame.width, "height": frame.height}
            self._status = replace(status, state=StreamState.LIVE, decoded=status.decoded + 1, dropped=dropped, **size)
            if wanted:
                skipped_cut = self._slot is not None and self._slot[3]
                self._slot = (frame, index, now_s, self._cut or skipped_cut)
                self._cut = False
        if wanted:
            self.ready.set()

    def _failed(self, error: FacefleetError) -> None:
        _log.log(logging.DEBUG if error.message == self._status.error else logging.WARNING, "%s", error)
        self._change(state=StreamState.WAITING, failures=self._status.failures + 1, error=error.message)

    def _change(self, **values: Any) -> None:  # noqa: ANN401  # fields of the status
        with self._lock:
            self._status = replace(self._status, **values)


class _Picker:
    """Scene changes of a stream, seen from thumbnails."""

    def __init__(self) -> None:
        self._before: U8Array | None = None
        self._taken: U8Array | None = None

    def difference(self, thumb: U8Array) -> float:
        """From the last frame taken."""
        return 0.0 if self._taken is None else change(self._taken, thumb)

    def see(self, thumb: U8Array, *, taken: bool) -> bool:
        """Take a frame's thumbnail; whether another scene begins with it."""
        cut = self._before is not None and change(self._before, thumb) > CUT
        self._before = thumb
        if taken:
            self._taken = thumb
        return cut


def is_live(name: str) -> bool:
    """Whether a name is an address of a live stream or a device, and not a file."""
    return _scheme(name) in _SCHEMES or name.startswith("/dev/video")


def shown(address: str) -> str:
    """An address without user and password."""
    head, sign, rest = address.partition("://")
    host, slash, path = rest.partition("/")
    return f"{head}{sign}{host.rpartition('@')[2]}{slash}{path}"


def _scheme(name: str) -> str:
    return name.partition("://")[0].lower() if "://" in name else ""
