"""Pictures by URL, for servers whose operator allows it; off by default.

A caller must not reach through the server what it cannot reach itself (server-side request forgery). So: only schemes
that the operator names; the host is resolved once, every address it has must be public, and the connection goes to
that very address, whatever the name means a moment later; a redirect is checked the same way; caps on size and time.
Runs in threads of its own, few, so that slow hosts hold up nobody else.
"""

from __future__ import annotations

import asyncio
import http.client
import ipaddress
import socket
import ssl
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Final
from urllib.parse import SplitResult, urljoin, urlsplit

from facefleet.errors import ConfigError, FetchError, PayloadTooLargeError, QueueFullError, RequestError

SCHEMES: Final = {"https": 443, "http": 80}
_REDIRECTS: Final = 3
_THREADS, _WAITING = 8, 64
_PIECE = 64 << 10
_MAX_URL = 2048
_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")  # NAT64: an IPv4 address inside
Resolve = Callable[[str, int], list[str]]


def public(address: str) -> bool:
    """Whether an IP address belongs to the public internet, also where IPv6 wraps an IPv4 address."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour or (found.teredo[1] if found.teredo else None)
        if inner is None and found in _TRANSLATED:
            inner = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        if inner is not None:
            return public(str(inner))
    return found.is_global and not found.is_multicast


def addresses(host: str, port: int) -> list[str]:
    """What a name resolves to."""
    return list(dict.fromkeys(str(each[4][0]) for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)))


class Fetcher:
    """Fetches pictures.

    Args:
        schemes: Of URLs that may be fetched; ``https`` and ``http``.
        max_bytes: Most bytes a picture.
        timeout_s: Longest time for all of it, redirects included.
        resolve: Gives the addresses of a host.
        permitted: Says which addresses may be connected to.

    Raises:
        ConfigError: A scheme is not known.
    """

    def __init__(
        self,
        schemes: Collection[str],
        *,
        max_bytes: int,
        timeout_s: float = 10.0,
        resolve: Resolve = addresses,
        permitted: Callable[[str], bool] = public,
    ) -> None:
        unknown = sorted(set(schemes) - set(SCHEMES))
        if unknown or not schemes:
            raise ConfigError(f"URLs of the scheme {', '.join(unknown)!r}", hint=f"one of {', '.join(SCHEMES)}")
        self._schemes = frozenset(schemes)
        self._max_bytes, self._timeout_s = max_bytes, timeout_s
        self._resolve, self._permitted = resolve, permitted
        self._threads = ThreadPoolExecutor(_THREADS, "facefleet-fetch")
        self._waiting = 0

    async def fetch(self, url: str) -> bytes:
        """The bytes behind a URL.

        Raises:
            RequestError: It is no URL that may be fetched.
            FetchError: It could not be fetched.
            PayloadTooLargeError: It is too large.
            QueueFullError: Too many are being fetched.
        """
        if self._waiting >= _WAITING:
            raise QueueFullError(f"{self._waiting} pictures are being fetched")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, self.fetch_blocking, url)
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """End the threads; what is being fetched ends at its timeout."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def fetch_blocking(self, url: str) -> bytes:
        """As `fetch`, in this thread."""
        end = time.monotonic() + self._timeout_s
        for _ in range(_REDIRECTS + 1):
            found = self._once(url, end)
            if isinstance(found, bytes):
                return found
            url = found
        raise FetchError("too many redirects", hint="give the final URL")

    def _once(self, url: str, end: float) -> bytes | str:
        """The bytes, or where it redirects to."""
        parts = self._checked(url)
        port = parts.port or SCHEMES[parts.scheme]
        host = str(parts.hostname)
        connection = _Pinned(host, port, self._address(host, port), end, tls=parts.scheme == "https")
        try:
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request("GET", target, headers={"accept": "image/*", "accept-encoding": "identity"})
            response = connection.getresponse()
            if response.status in (301, 302, 303, 307, 308):
                return urljoin(url, response.headers.get("location", ""))
            if response.status != 200:
                raise FetchError(f"the host answered {response.status}", hint="check the URL")
            return self._body(connection, response)
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            raise FetchError(f"the host cannot be read: {type(error).__name__}", hint="check the URL") from error
        finally:
            connection.close()

    def _checked(self, url: str) -> SplitResult:
        try:
            if len(url) > _MAX_URL or not url.isascii() or any(c <= " " for c in url):
                raise ValueError
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise RequestError("that is no URL", hint="percent-encode what is not ASCII") from None
        if parts.scheme not in self._schemes or not parts.hostname or port == 0:
            raise RequestError("that URL is not fetched", hint=f"schemes: {', '.join(sorted(self._schemes))}")
        if parts.username is not None or parts.password is not None:
            raise RequestError("a URL with a user is not fetched")
        return parts

    def _address(self, host: str, port: int) -> str:
        """Where to connect; all addresses of the host have to be permitted, so that none is picked by luck."""
        try:
            found = self._resolve(host, port)
        except (OSError, UnicodeError) as error:
            raise FetchError("the host is not known", hint="check the URL") from error
        if not found or not all(self._permitted(each) for each in found):
            raise RequestError("that host is not fetched from", hint="public addresses only")
        return found[0]

    def _body(self, connection: _Pinned, response: http.client.HTTPResponse) -> bytes:
        limit = self._max_bytes
        if (response.length or 0) > limit:
            raise PayloadTooLargeError(f"the picture has more than {limit} bytes")
        data = bytearray()
        while True:
            connection.pace()
            piece = response.read1(_PIECE)
            if not piece:
                break
            data += piece
            if len(data) > limit:
                raise PayloadTooLargeError(f"the picture has more than {limit} bytes")
        if response.length:
            raise FetchError("the host ended early", hint="try again")
        return bytes(data)


class _Pinned(http.client.HTTPConnection):
    """A connection to one address, whatever its name resolves to now; every wait ends at `end`."""

    def __init__(self, host: str, port: int, address: str, end: float, *, tls: bool) -> None:
        super().__init__(host, port)
        self._address, self._end, self._tls = address, end, tls

    def connect(self) -> None:
        """Connect, and agree on TLS for the name."""
        self.sock = socket.create_connection((self._address, self.port), self._left_s())
        if self._tls:
            self.sock = ssl.create_default_context().wrap_socket(self.sock, server_hostname=self.host)

    def pace(self) -> None:
        """Let the next wait end in time."""
        if self.sock is not None:
            self.sock.settimeout(self._left_s())

    def _left_s(self) -> float:
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("too slow")
        return left
