"""Bodies of requests, read piece by piece against the limits: raw, JSON with base64, multipart, JSON lines.

Owns the reading; a body that is too large, too slow or too many is refused as soon as that is known, before it is
held. Runs in the event loop; base64 of large pictures is decoded in a thread.
"""

from __future__ import annotations

import asyncio
import binascii
import json
import time
from base64 import b64decode
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from facefleet.errors import CancelledError, MediaTypeError, PayloadTooLargeError, RequestError, RequestTimeoutError
from facefleet.server.fetch import Fetcher
from facefleet.server.limits import Limits, Room

_THREAD_BYTES = 256 << 10
_MAX_HEADER_BYTES = 8 << 10
_MAX_NAME = 255
_PLAIN = ("application/octet-stream", "")


class Body:
    """The body of one request; what it holds counts against the room until `body_of` ends."""

    def __init__(self, request: Request, limits: Limits, room: Room) -> None:
        kind, options = parse_options_header(request.headers.get("content-type", ""))
        self.type = kind.decode("latin-1")
        self._boundary = options.get(b"boundary", b"")
        self._request = request
        self.limits = limits
        self._room = room
        self.held = 0

    def need(self, kind: str) -> None:
        """Check the content type.

        Raises:
            MediaTypeError: It is another one.
        """
        if self.type != kind:
            raise _media_type(self.type, kind)

    async def image(self) -> bytes:
        """The one picture of the body: raw, multipart, ``{"image": "<base64>"}``, or ``{"url": ...}`` where allowed.

        Raises:
            RequestError: It is not that, or too large, or too slow.
        """
        if self.type.startswith("multipart/"):
            async for _, data in self.images(1):
                return data
            raise RequestError("the form holds no file", hint="send the picture as a part of multipart/form-data")
        if self.type == "application/json":
            tree = await self.json(self.limits.max_json_bytes)
            return await self.picture(tree, "image")
        if self.type in _PLAIN or self.type.startswith("image/"):
            return await self.whole(self.limits.max_image_bytes)
        raise _media_type(self.type, "image/*, application/octet-stream, multipart/form-data, application/json")

    async def pair(self) -> tuple[bytes, bytes]:
        """Two pictures: two parts, or ``{"first": "<base64>", "second": "<base64>"}``.

        Raises:
            RequestError: As for `image`.
        """
        if self.type.startswith("multipart/"):
            both = [data async for _, data in self.images(2)]
            if len(both) != 2:
                raise RequestError("the form does not hold two files", hint="send two pictures")
            return both[0], both[1]
        if self.type == "application/json":
            tree = await self.json(2 * self.limits.max_json_bytes)
            return await self.base64(tree.get("first"), "first"), await self.base64(tree.get("second"), "second")
        raise _media_type(self.type, "multipart/form-data, application/json")

    async def images(self, most: int | None = None) -> AsyncGenerator[tuple[str, bytes], None]:
        """Name and bytes of each picture, as it comes: parts of a form, or lines ``{"id": ..., "image": ...}``.

        Raises:
            RequestError: As for `image`, when reading gets there.
        """
        if self.type.startswith("multipart/"):
            parts = self._parts()
        elif self.type == "application/x-ndjson":
            parts = self._lines()
        else:
            raise _media_type(self.type, "multipart/form-data, application/x-ndjson")
        count = 0
        async for name, data in parts:
            count += 1
            if most is not None and count > most:
                raise PayloadTooLargeError(f"more than {most} pictures", hint="POST /v1/faces:batch takes many")
            self.limits.check_images(count)
            yield name, data

    async def whole(self, limit_bytes: int) -> bytes:
        """All of it.

        Raises:
            PayloadTooLargeError: It is larger than `limit_bytes`.
        """
        found = bytearray()
        async for chunk in self.chunks(limit_bytes):
            found += chunk
        return bytes(found)

    async def json(self, limit_bytes: int) -> dict[str, Any]:
        """All of it, a JSON object.

        Raises:
            RequestError: It is none.
        """
        data = await self.whole(limit_bytes)
        try:
            tree = await _maybe_thread(len(data), json.loads, data)
        except (ValueError, RecursionError) as error:
            raise RequestError("the body is not valid JSON") from error
        if not isinstance(tree, dict):
            raise RequestError("the body is not a JSON object")
        return tree

    async def chunks(self, limit_bytes: int) -> AsyncIterator[bytes]:
        """The bytes as they come.

        Raises:
            PayloadTooLargeError: More than `limit_bytes`, by the announcement or by what came.
            RequestTimeoutError: It came too slowly.
            CancelledError: The client went away.
        """
        limits = self.limits
        announced = self._request.headers.get("content-length", "")
        if announced.isdigit():
            limits.check(int(announced), limit_bytes, "body")
        left_s = limits.body_timeout_s  # of waiting for the client; that the engine is full is not its fault
        stream = self._request.stream()
        count = 0
        while True:
            since = time.monotonic()
            try:
                chunk = await asyncio.wait_for(anext(stream), min(limits.idle_timeout_s, max(0.0, left_s)))
            except StopAsyncIteration:
                self._room.came(getattr(self._request.state, "coming", None))
                return
            except TimeoutError:
                raise RequestTimeoutError("the body came too slowly", hint="send it at once") from None
            except ClientDisconnect:
                raise CancelledError("the client went away") from None
            left_s -= time.monotonic() - since
            count += len(chunk)
            limits.check(count, limit_bytes, "body")
            self._room.hold(len(chunk))
            self.held += len(chunk)
            yield chunk

    def _passed_on(self, size_bytes: int) -> None:
        """So many bytes are the engine's now, which counts them itself."""
        size_bytes = min(size_bytes, self.held)
        self.held -= size_bytes
        self._room.release(size_bytes)

    async def _parts(self) -> AsyncIterator[tuple[str, bytes]]:
        if not self._boundary or len(self._boundary) > 200:
            raise RequestError("multipart without a usable boundary", hint="let your HTTP library build the form")
        form = _Form(self.limits)
        parser = MultipartParser(self._boundary, form.callbacks())
        try:
            async for chunk in self.chunks(self.limits.max_body_bytes):
                parser.write(chunk)
                for part in form.take():
                    self._passed_on(len(part[1]))
                    yield part
        except FormParserError as error:
            raise RequestError(f"the form is malformed: {error}") from error
        if not form.ended:
            raise RequestError("the form ends before its last boundary", hint="send it again")

    async def _lines(self) -> AsyncIterator[tuple[str, bytes]]:
        rest = bytearray()
        number = 0
        async for chunk in self.chunks(self.limits.max_body_bytes):
            *lines, tail = chunk.split(b"\n")
            for line in lines:
                rest += line
                if rest.strip():
                    yield await self._line(bytes(rest), number)
                    self._passed_on(len(rest))
                    number += 1
                rest.clear()
            rest += tail
            self.limits.check(len(rest), self.limits.max_json_bytes, f"line {number}")
        if rest.strip():
            yield await self._line(bytes(rest), number)

    async def _line(self, line: bytes, number: int) -> tuple[str, bytes]:
        try:
            tree = await _maybe_thread(len(line), json.loads, line)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"line {number} is not valid JSON") from error
        if not isinstance(tree, dict):
            raise RequestError(f"line {number} is not a JSON object")
        return str(tree.get("id", number))[:_MAX_NAME], await self.picture(tree, f"line {number}: image")

    async def picture(self, tree: dict[str, Any], what: str) -> bytes:
        """The picture of an object with ``image`` or ``url``.

        Raises:
            RequestError: There is none, or URLs are not fetched here.
        """
        url = tree.get("url")
        if url is None:
            return await self.base64(tree.get("image"), what)
        fetcher: Fetcher | None = self._request.app.state.fetcher
        if fetcher is None or not isinstance(url, str):
            raise RequestError("URLs are not fetched by this server", hint="send the bytes of the picture")
        return await fetcher.fetch(url)

    async def base64(self, text: Any, what: str) -> bytes:  # noqa: ANN401  # JSON
        """A picture that is written as base64.

        Raises:
            RequestError: It is not.
            PayloadTooLargeError: It is too large; known before it is decoded.
        """
        if not isinstance(text, str):
            raise RequestError(f"{what} is not there, or no text", hint="give the picture as base64")
        self.limits.check(len(text) // 4 * 3 - 2, self.limits.max_image_bytes, what)
        try:
            decoded: bytes = await _maybe_thread(len(text), b64decode, text, None, True)
            return decoded
        except (binascii.Error, ValueError) as error:
            raise RequestError(f"{what} is not valid base64") from error


@asynccontextmanager
async def body_of(request: Request, limits: Limits, room: Room) -> AsyncIterator[Body]:
    """The body of a request; its bytes count as held until the block ends."""
    body = Body(request, limits, room)
    try:
        yield body
    finally:
        room.release(body.held)


class _Form:
    """What a multipart parser finds, part by part."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._field, self._value = bytearray(), bytearray()
        self._headers: dict[bytes, bytes] = {}
        self._header_bytes = 0
        self._data = bytearray()
        self._done: list[tuple[str, bytes]] = []
        self._count = 0
        self.ended = False

    def callbacks(self) -> Any:  # noqa: ANN401  # a typed dict of the parser
        return {
            "on_part_begin": self._begin,
            "on_header_field": lambda data, start, end: self._header(self._field, data[start:end]),
            "on_header_value": lambda data, start, end: self._header(self._value, data[start:end]),
            "on_header_end": self._header_end,
            "on_part_data": self._part_data,
            "on_part_end": self._part_end,
            "on_end": self._end,
        }

    def take(self) -> list[tuple[str, bytes]]:
        done, self._done = self._done, []
        return done

    def _begin(self) -> None:
        self._count += 1
        self.limits.check_images(self._count)
        self._headers, self._header_bytes, self._data = {}, 0, bytearray()

    def _header(self, target: bytearray, piece: bytes) -> None:
        self._header_bytes += len(piece)
        if self._header_bytes > _MAX_HEADER_BYTES:
            raise RequestError("the headers of a part are too large")
        target += piece

    def _header_end(self) -> None:
        self._headers[bytes(self._field).lower()] = bytes(self._value)
        self._field, self._value = bytearray(), bytearray()

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        self.limits.check(len(self._data) + end - start, self.limits.max_image_bytes, f"part {self._count - 1}")
        self._data += data[start:end]

    def _part_end(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        name = options.get(b"filename") or options.get(b"name") or str(self._count - 1).encode()
        self._done.append((name.decode("utf-8", "replace")[:_MAX_NAME], bytes(self._data)))
        self._data = bytearray()

    def _end(self) -> None:
        self.ended = True


def _media_type(given: str, allowed: str) -> MediaTypeError:
    return MediaTypeError(f"content type {given[:100]!r}", hint=f"send {allowed}")


async def _maybe_thread(size_bytes: int, function: Any, *arguments: Any) -> Any:  # noqa: ANN401  # any function
    if size_bytes < _THREAD_BYTES:
        return function(*arguments)
    return await asyncio.to_thread(function, *arguments)
