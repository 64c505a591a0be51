"""What a client does, without doing it: generators that yield requests and pauses, and get answers.

The two clients drive the same generators, one with blocking calls, one with awaits: retries, pauses, batching and the
reading of answers are here only. Pure; any thread.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import batched
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from facefleet.client.values import Item, Picture, Verdict, error_of, picture_of
from facefleet.errors import FacefleetError, ServerError, SourceError

T = TypeVar("T")
_RETRY = frozenset({429, 502, 503, 504})
_FIRST_PAUSE_S, _MOST_PAUSE_S = 0.1, 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One HTTP request to be sent.

    Attributes:
        method: Verb.
        path: Path and query.
        content: Body; None for none or for `files`.
        files: Name and path of files to be streamed as a form.
        headers: Additional ones.
        lines: Whether the answer is JSON lines; then each is handed in as it comes.
    """

    method: str
    path: str
    content: bytes | None = None
    files: tuple[tuple[str, Path], ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    lines: bool = False


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back: `status` 0 where nothing did, `failure` says why."""

    status: int
    content: bytes = b""
    retry_after_s: float | None = None
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait so many seconds."""

    seconds: float


Step: TypeAlias = Request | Pause
Plan: TypeAlias = Generator[Step, Reply, T]


@dataclass(frozen=True, slots=True)
class Retries:
    """How often and how long.

    Attributes:
        most: Times a request is sent again.
        jitter: Gives numbers in [0, 1).
    """

    most: int = 5
    jitter: Callable[[], float] = random.random

    def pause_s(self, attempt: int, retry_after_s: float | None) -> float:
        """Seconds before attempt `attempt`, counted from 1: as the server says, else doubling, with jitter."""
        if retry_after_s is not None:
            return min(retry_after_s * (1 + 0.25 * self.jitter()), _MOST_PAUSE_S)
        return min(_FIRST_PAUSE_S * 2.0 ** (attempt - 1), _MOST_PAUSE_S) * (0.5 + 0.5 * self.jitter())


def send(request: Request, retries: Retries) -> Plan[Reply]:
    """Send until there is an answer that trying again would not better. All requests here may be repeated.

    Raises:
        FacefleetError: What the server says, or `ServerError` where none answered.
    """
    attempt = 0
    while True:
        reply = yield request
        if 200 <= reply.status < 300:
            return reply
        if (reply.status and reply.status not in _RETRY) or attempt >= retries.most:
            raise _error(reply)
        attempt += 1
        yield Pause(retries.pause_s(attempt, reply.retry_after_s))


def faces(data: bytes, headers: Mapping[str, str], *, embed: bool, retries: Retries) -> Plan[Picture]:
    """The faces of one picture."""
    path = f"/v1/faces?embeddings={'base64' if embed else 'none'}"
    kind = {"content-type": "application/octet-stream"}
    reply = yield from send(Request(method="POST", path=path, content=data, headers={**headers, **kind}), retries)
    return picture_of(_tree(reply))


def verify(
    first: bytes, second: bytes, headers: Mapping[str, str], *, threshold: float | None, retries: Retries
) -> Plan[Verdict]:
    """Whether two pictures are of the same person."""
    from base64 import b64encode

    path = "/v1/verify" + ("" if threshold is None else f"?threshold={threshold!r}")
    content = json.dumps({"first": b64encode(first).decode(), "second": b64encode(second).decode()}).encode()
    kind = {"content-type": "application/json"}
    reply = yield from send(Request(method="POST", path=path, content=content, headers={**headers, **kind}), retries)
    tree = _tree(reply)
    return Verdict(bool(tree["same"]), float(tree["cosine"]), float(tree["threshold"]))


def info(headers: Mapping[str, str], *, retries: Retries) -> Plan[dict[str, Any]]:
    """What the server runs."""
    reply = yield from send(Request(method="GET", path="/v1/info", headers=headers), retries)
    return _tree(reply)


Emit: TypeAlias = Callable[[Item], None]


def folder(
    paths: Iterable[Path], headers: Mapping[str, str], emit: Emit, *, embed: bool, size: int, retries: Retries
) -> Plan[None]:
    """The faces of many files, `size` a request; each file is answered once, through `emit`.

    Files whose failure is retryable, or whose answer got lost with the connection, are sent again.
    """
    path = f"/v1/faces:batch?embeddings={'base64' if embed else 'none'}"
    for group in batched(paths, size):
        pending = []
        for file in group:
            problem = _unreadable(file)
            if problem is None:
                pending.append(file)
            else:
                emit(Item(str(file), None, problem))
        attempt = 0
        while pending:
            files = tuple((str(number), file) for number, file in enumerate(pending))
            request = Request(method="POST", path=path, files=files, headers=headers, lines=True)
            reply = yield from send(request, retries)
            attempt += 1
            pending, pause = _answered(reply, pending, emit, last=attempt > retries.most)
            if pending:
                yield Pause(retries.pause_s(attempt, pause))


def _answered(reply: Reply, sent: list[Path], emit: Emit, *, last: bool) -> tuple[list[Path], float | None]:
    """Emit what is final; the files to be sent again, and when."""
    left = dict(enumerate(sent))
    failed: dict[int, FacefleetError] = {}
    pause: float | None = None
    for line in reply.content.splitlines():
        try:
            tree = json.loads(line)
        except ValueError:
            break  # the connection ended inside a line
        if "index" not in tree:
            continue
        number = int(tree["index"])
        if "result" in tree:
            emit(Item(str(left.pop(number)), picture_of(tree["result"]), None))
        elif tree["error"].get("retryable") and not last:
            pause = tree["error"].get("retry_after_s", pause)
        else:
            failed[number] = error_of(tree["error"], 0)
    for number, error in failed.items():
        emit(Item(str(left.pop(number)), None, error))
    if last:
        for file in left.values():
            emit(Item(str(file), None, ServerError(f"{file}: no answer came", hint="try again")))
        return [], None
    return list(left.values()), pause


def _unreadable(file: Path) -> FacefleetError | None:
    try:
        with file.open("rb"):
            return None
    except OSError as error:
        return SourceError(f"{file}: cannot be read: {error.strerror}", hint="check the path")


def _tree(reply: Reply) -> dict[str, Any]:
    try:
        tree = json.loads(reply.content)
    except ValueError as error:
        raise ServerError("the answer is not JSON", hint="is that a facefleet server?") from error
    if not isinstance(tree, dict):
        raise ServerError("the answer is no JSON object", hint="is that a facefleet server?")
    return tree


def _error(reply: Reply) -> FacefleetError:
    if not reply.status:
        return ServerError(f"no answer: {reply.failure}", hint="is the server running there?")
    try:
        problem = json.loads(reply.content)
    except ValueError:
        problem = None
    return error_of(problem, reply.status)
