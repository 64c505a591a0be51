"""The decoder of one file: every frame it can give, in order, past damage.

Owns the container. With FFmpeg's frame threads an error also costs the healthy frames that are under way, so at the
first sign of damage the file is opened again without them, and read on from the last frame that was given.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from facefleet.decode.ffmpeg import AvObject, load
from facefleet.errors import EmptyInputError, SourceError, UnsupportedFormatError
from facefleet.sources.video.frame import Damage
from facefleet.sources.video.hardware import open_container
from facefleet.sources.video.plan import Plan

_LOCAL_ONLY = {"protocol_whitelist": "file,crypto,data"}  # a playlist must not lead elsewhere


class _DamagedError(Exception):
    """Something could not be decoded while frame threads were on."""


class Reader:
    """Opens a file and decodes its best video stream; closed by `close`.

    Args:
        name: The path.
        threads: Threads that FFmpeg may use; 0: as many as it likes.
        keyframes: Whether only key frames are decoded.
        damage: What is known already; counted on in it.
        decoder: See `open_container`.

    Raises:
        InputError: The file cannot be read, is empty, or is no video.
        BackendUnavailableError: PyAV is not installed, or the decoder cannot be used.

    Attributes:
        stream: PyAV's video stream.
        container: PyAV's container.
        damage: What was wrong so far.
        packets: Packets read so far; None when it did not begin at the beginning.
        last_s: Time of the last frame that was given.
        plan: Which packets may be left out; None: none.
    """

    def __init__(self, name: str, *, threads: int, keyframes: bool, damage: Damage, decoder: str = "cpu") -> None:
        self._av = load()
        self._name = name
        self._threads = threads
        self._decoder = decoder
        self._keyframes = keyframes
        self._serial = False
        self._start: int | None = None  # frames up to this one have been given before the file was opened again
        self.damage = damage
        self.last_s: float | None = None
        self.plan: Plan | None = None
        self._open()

    def close(self) -> None:
        """Close the file."""
        self.container.close()

    def frames(self, target: int | None = None) -> Iterator[AvObject]:
        """Decoded frames, from the beginning or from a key frame at or before `target`.

        Where the file has no usable index, it is read from its beginning.
        """
        last: int | None = None
        while True:
            before = replace(self.damage)
            try:
                for frame in self._decode(target if last is None else last):
                    if last is None or self._start is None or frame.pts > self._start:
                        last = frame.pts
                        self.last_s = self.time_s(frame)
                        yield frame
                if self._serial or self._keyframes or self._given >= self._read:
                    return
            except _DamagedError:
                self.damage = before
            # Damaged, or packets that gave no frame: frame threads keep silent about errors at the end.
            self._serial = True
            self._start = last
            self.close()
            self._open()

    def time_s(self, frame: AvObject) -> float:
        """Time of a frame in seconds."""
        return float(frame.pts * self.stream.time_base)

    def _open(self) -> None:
        try:
            if Path(self._name).stat().st_size == 0:
                raise EmptyInputError(f"{self._name}: the file is empty")
        except OSError as error:
            raise SourceError(f"{self._name}: {error.strerror or error}", hint="check the path") from error
        self.container = open_container(self._name, self._decoder, name=self._name, container_options=_LOCAL_ONLY)
        with contextlib.ExitStack() as stack:
            stack.callback(self.container.close)
            self.stream = self._choose()
            stack.pop_all()
        context = self.stream.codec_context
        context.thread_type = "SLICE" if self._serial else "AUTO"
        context.thread_count = 1 if self._serial else self._threads  # one: what is made up is always the same
        if self._keyframes:
            context.skip_frame = "NONKEY"
        self.packets: int | None = 0
        if self.plan is not None:
            self.plan.restart()
        self._read = self._given = 0

    def _choose(self) -> AvObject:
        videos = [stream for stream in self.container.streams.video if not _is_cover(stream)]
        if not videos:
            raise UnsupportedFormatError(f"{self._name}: there is no video in it", hint="it may be sound only")
        best = self.container.streams.best("video")
        stream = best if best is not None and not _is_cover(best) else videos[0]
        if stream.codec_context is None:
            raise UnsupportedFormatError(f"{self._name}: no decoder for its codec", hint="convert it to H.264 or AV1")
        return stream

    def _decode(self, target: int | None) -> Iterator[AvObject]:
        if target is None:
            yield from self._demux()
            return
        frames = self._seek(target)
        first = next(frames, None)
        if first is None or first.pts > target:  # no index, or a wrong one
            self.close()
            self._open()
            yield from self._demux()
            return
        yield first
        yield from frames

    def _seek(self, target: int) -> Iterator[AvObject]:
        try:
            self.container.seek(target, stream=self.stream, backward=True)
        except self._av.error.FFmpegError:
            return
        self.packets = None
        self._read = self._given = 0
        yield from self._demux()

    def _packets(self) -> Iterator[AvObject]:
        packets = self.container.demux(self.stream)
        while True:
            try:
                packet = next(packets)
            except StopIteration:
                return
            except self._av.error.FFmpegError as error:
                self._note(str(error.strerror))
                return
            if self.packets is not None:
                self.packets += packet.size > 0
            yield packet

    def _planned(self, plan: Plan) -> Iterator[AvObject]:
        """Packets, each after the decoder was told whether its frame may be left out."""
        waiting: deque[AvObject] = deque()
        packets = self._packets()
        more, last = True, None
        while more or waiting:
            while more and not (waiting and plan.settled(waiting[0].pts)):
                packet = next(packets, None)
                if packet is None or not packet.size:
                    more, last = False, packet
                    plan.finish()
                elif packet.pts is not None and not packet.is_discard:
                    plan.see(packet.pts)
                    waiting.append(packet)
                else:
                    yield packet
            if waiting:
                packet = waiting.popleft()
                wanted = plan.wants(packet.pts)
                self._read += wanted
                self.stream.codec_context.skip_frame = "DEFAULT" if wanted else "NONREF"
                yield packet
        if last is not None:  # the empty packet that makes the decoder give what it holds back
            yield last

    def _demux(self) -> Iterator[AvObject]:
        """Decoded frames; what cannot be decoded is noted and left out."""
        plan = self.plan
        for packet in self._packets() if plan is None else self._planned(plan):
            if plan is None:
                self._read += packet.size > 0
            try:
                frames = packet.decode()
            except self._av.error.FFmpegError as error:
                self._note(str(error.strerror), packets=1)
                continue
            for frame in frames:
                if frame.pts is None:
                    frame.pts = frame.dts if frame.dts is not None else self._guess_pts()
                if frame.is_corrupt:
                    self._note("damaged frame", frames=1)
                self._given += plan is None or plan.wants(frame.pts)
                yield frame

    def _guess_pts(self) -> int:
        if self.last_s is None:
            return int(self.stream.start_time or 0)
        step = 1 / float(self.stream.average_rate or 25)
        return round((self.last_s + step) / float(self.stream.time_base))

    def _note(self, reason: str, *, packets: int = 0, frames: int = 0) -> None:
        if not self._serial:
            raise _DamagedError
        if not self.damage:
            self.damage.first_s, self.damage.reason = self.last_s, reason
        self.damage.packets += packets
        self.damage.frames += frames


def _is_cover(stream: AvObject) -> bool:
    return "attached_pic" in str(getattr(stream, "disposition", "")).lower()
