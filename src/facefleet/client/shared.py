"""What `Client` and `AsyncClient` have in common: their options, and how requests and replies look in httpx."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeAlias

from facefleet.client.logic import Reply, Request, Retries
from facefleet.client.upload import form
from facefleet.errors import BackendUnavailableError, SourceError

Priority: TypeAlias = Literal["interactive", "bulk"]
Source: TypeAlias = str | Path | bytes
_CONNECT_S, _GRACE_S = 10.0, 10.0


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an upload is.

    Attributes:
        files: To be answered.
        answered: Answered so far.
        sent_bytes: Of files, sent so far; what is sent again counts again.
    """

    files: int
    answered: int = 0
    sent_bytes: int = 0


Watcher: TypeAlias = Callable[[Progress], None]


class Meter:
    """Counts an upload and tells a watcher."""

    def __init__(self, files: int, watcher: Watcher | None) -> None:
        self._files, self._watcher = files, watcher
        self._answered = self._sent = 0

    def sent(self, size_bytes: int) -> None:
        """Some bytes more."""
        self._sent += size_bytes
        self._tell()

    def answered(self) -> None:
        """One file more."""
        self._answered += 1
        self._tell()

    def _tell(self) -> None:
        if self._watcher is not None:
            self._watcher(Progress(self._files, self._answered, self._sent))


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a client.

    Attributes:
        url: Of the server.
        key: API key.
        timeout_s: Deadline of a request; the server is told, and stops then, too.
        priority: Who goes first at the server.
        retries: Times a request is sent again, or `Retries` for more choices.
        verify: TLS: whether certificates are checked, or the path of a bundle to check them with.
        uds: Path of a unix socket to connect to instead of the host of `url`.
    """

    url: str = "http://127.0.0.1:8000"
    key: str | None = None
    timeout_s: float = 30.0
    priority: Priority = "interactive"
    retries: int | Retries = 5
    verify: bool | str = True
    uds: str | None = None

    @property
    def policy(self) -> Retries:
        """How often a request is sent again."""
        return Retries(most=self.retries) if isinstance(self.retries, int) else self.retries

    def http(self, transport: str, client: str) -> Any:  # noqa: ANN401  # one of httpx's two clients
        """A client of httpx, with a transport of its own."""
        httpx = library()
        headers = {"x-timeout-ms": f"{self.timeout_s * 1000:.0f}", "x-priority": self.priority}
        if self.key is not None:
            headers["authorization"] = f"Bearer {self.key}"
        context = httpx.create_ssl_context(verify=self.verify) if self.url.startswith("https") else False
        return getattr(httpx, client)(
            base_url=self.url,
            headers=headers,
            timeout=httpx.Timeout(self.timeout_s + _GRACE_S, connect=_CONNECT_S),
            transport=getattr(httpx, transport)(verify=context, uds=self.uds),
        )


def library() -> ModuleType:
    """The HTTP library.

    Raises:
        BackendUnavailableError: It is not installed.
    """
    try:
        import httpx
    except ImportError as error:
        raise BackendUnavailableError("the client needs httpx", hint='pip install "facefleet[client]"') from error
    return httpx


def body(request: Request, meter: Meter | None) -> tuple[dict[str, str], bytes | Iterator[bytes] | None]:
    """Headers and content of a request."""
    if not request.files:
        return dict(request.headers), request.content
    kind, pieces = form(request.files, meter.sent if meter is not None else lambda _: None)
    return {**request.headers, "content-type": kind}, pieces


def reply_of(response: Any) -> Reply:  # noqa: ANN401  # httpx's, read
    """What came back."""
    after = response.headers.get("retry-after", "")
    return Reply(response.status_code, response.content, float(after) if after.isdigit() else None)


def failed(error: Exception) -> Reply:
    """No answer."""
    return Reply(0, failure=str(error) or type(error).__name__)


def read_source(source: Source) -> bytes:
    """The bytes of a picture.

    Raises:
        SourceError: The file cannot be read.
    """
    if isinstance(source, bytes):
        return source
    try:
        return Path(source).read_bytes()
    except OSError as error:
        raise SourceError(f"{source}: cannot be read: {error.strerror}", hint="check the path") from error
