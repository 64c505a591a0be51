"""One HTTP/1.1 connection that sends a request and gives back status, body and the moment of its end.

As small as a load generator needs: keep-alive, Content-Length and chunked answers. Runs in an event loop.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from facefleet.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go.

    Attributes:
        host: Name or address.
        port: Of the server.
        path: With its query.
        tls: Whether the connection is encrypted.
    """

    host: str
    port: int
    path: str
    tls: bool

    @classmethod
    def of(cls, url: str, default_path: str = "/v1/faces") -> Target:
        """From a URL; without a path, that of facefleet's own server.

        Raises:
            ConfigError: It is no URL of a server.
        """
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise ConfigError(f"{url!r} is no URL of a server", hint="write http://host:port or https://host/path")
        path = parts.path if parts.path not in ("", "/") else default_path
        tls = parts.scheme == "https"
        return cls(parts.hostname, port or (443 if tls else 80), path + (f"?{parts.query}" if parts.query else ""), tls)

    def request(self, body: bytes, headers: dict[str, str]) -> bytes:
        """A POST of a body."""
        lines = [f"POST {self.path} HTTP/1.1", f"Host: {self.host}:{self.port}", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


Done = Callable[["Connection", int, bytes, float], None]


class Connection(asyncio.Protocol):
    """Sends one request at a time.

    Args:
        done: Called with the connection, the status (0: the connection was lost), the body and the time of the end.
    """

    def __init__(self, done: Done) -> None:
        self._done = done
        self._transport: asyncio.Transport | None = None
        self._data = bytearray()
        self._need = -1
        self._status = 0
        self._chunked = False
        self.busy = False
        self.open = False

    async def connect(self, target: Target) -> None:
        """Open it.

        Raises:
            OSError: Nobody answers.
        """
        loop = asyncio.get_running_loop()
        context = ssl.create_default_context() if target.tls else None
        await loop.create_connection(lambda: self, target.host, target.port, ssl=context)

    def send(self, request: bytes) -> None:
        """Send a request; the connection is busy until its answer is there."""
        assert self._transport is not None
        self.busy = True
        self._data.clear()
        self._need = -1
        self._transport.write(request)

    def close(self) -> None:
        """Give it up; a request in progress is lost."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Of `asyncio.Protocol`."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.open = True

    def connection_lost(self, exc: Exception | None) -> None:
        """Of `asyncio.Protocol`."""
        del exc
        self.open = False
        if self.busy:
            self.busy = False
            self._done(self, 0, b"", time.perf_counter())

    def data_received(self, data: bytes) -> None:
        """Of `asyncio.Protocol`."""
        self._data += data
        if self._need < 0 and not self._chunked and not self._head():
            return
        if self._chunked:
            if not self._data.endswith(b"0\r\n\r\n"):
                return
            body = _unchunked(bytes(self._data))
        elif len(self._data) < self._need:
            return
        else:
            body = bytes(self._data[: self._need])
        self._chunked = False
        self.busy = False
        self._done(self, self._status, body, time.perf_counter())

    def _head(self) -> bool:
        """Read status line and headers; False while they are not complete."""
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            return False
        head = bytes(self._data[:end])
        del self._data[: end + 4]
        try:
            self._status = int(head[9:12])
        except ValueError:
            self._status = 0
        lower = head.lower()
        self._chunked = b"transfer-encoding: chunked" in lower
        at = lower.find(b"\r\ncontent-length:")
        self._need = int(lower[at + 17 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        return True


def _unchunked(data: bytes) -> bytes:
    body, rest = b"", data
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        count = int(size.split(b";")[0], 16)
        if not count:
            break
        body, rest = body + rest[:count], rest[count + 2 :]
    return body
