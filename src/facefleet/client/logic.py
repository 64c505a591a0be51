"""What a client does, without doing it: generators that yield requests and pauses, and get answers.

The two clients drive the same generators, one with blocking calls, one with awaits: retries, pauses, batching and the
reading of answers are here only. Pure; any thread.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, TypeVar
from urllib.parse import quote, urlencode

from facefleet.client.values import Gallery, Item, Match, Picture, Verdict, error_of, matches_of, picture_of
from facefleet.errors import FacefleetError, NoFaceError, ServerError, SourceError

T = TypeVar("T")
_RETRY = frozenset({429, 502, 503, 504})
_REFUSED = frozenset({429, 503})
_FIRST_PAUSE_S, _MOST_PAUSE_S = 0.1, 30.0
_JSON = {"content-type": "application/json"}
_BYTES = {"content-type": "application/octet-stream"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One HTTP request to be sent.

    Attributes:
        method: Verb.
        path: Path and query.
        content: Body; None for none or for `files`.
        files: Name, and path or bytes, of what is sent as a form; files are streamed.
        headers: Additional ones.
        lines: Whether the answer is JSON lines; then it is handed in line by line, see `More`.
    """

    method: str
    path: str
    content: bytes | None = None
    files: tuple[tuple[str, Path | bytes], ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    lines: bool = False


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back: `status` 0 where nothing did, `failure` says why; `more`: a line, others follow."""

    status: int
    content: bytes = b""
    retry_after_s: float | None = None
    failure: str = ""
    more: bool = False


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class More:
    """The next line, please; the last reply has no `more`."""


Step: TypeAlias = Request | Pause | More | Item
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


def send(request: Request, retries: Retries, *, again: frozenset[int] = _RETRY | {0}) -> Plan[Reply]:
    """Send until there is an answer that trying again would not better.

    Args:
        request: What.
        retries: How often.
        again: Statuses after which it may be sent again; 0: no answer came, so nobody knows whether it was done.

    Raises:
        FacefleetError: What the server says, or `ServerError` where none answered.
    """
    attempt = 0
    while True:
        reply = yield request
        if 200 <= reply.status < 300:
            return reply
        if reply.status not in again or attempt >= retries.most:
            raise error_of_reply(reply)
        attempt += 1
        yield Pause(retries.pause_s(attempt, reply.retry_after_s))


def faces(data: bytes, *, embed: bool, retries: Retries) -> Plan[Picture]:
    """The faces of one picture."""
    path = f"/v1/faces?embeddings={'base64' if embed else 'none'}"
    reply = yield from send(Request(method="POST", path=path, content=data, headers=_BYTES), retries)
    return picture_of(_tree(reply))


def verify(first: bytes, second: bytes, *, threshold: float | None, retries: Retries) -> Plan[Verdict]:
    """Whether two pictures are of the same person."""
    path = "/v1/verify" + ("" if threshold is None else f"?threshold={threshold!r}")
    files = (("first", first), ("second", second))
    reply = yield from send(Request(method="POST", path=path, files=files), retries)
    tree = _tree(reply)
    return Verdict(bool(tree["same"]), float(tree["cosine"]), float(tree["threshold"]))


def search(data: bytes, gallery: str, *, k: int, threshold: float | None, retries: Retries) -> Plan[list[list[Match]]]:
    """For each face of a picture the people it may be."""
    query = {"gallery": gallery, "k": k} | ({} if threshold is None else {"threshold": threshold})
    request = Request(method="POST", path=f"/v1/search?{urlencode(query)}", content=data, headers=_BYTES)
    reply = yield from send(request, retries)
    return [matches_of(face["matches"]) for face in _tree(reply)["faces"]]


def galleries(*, retries: Retries) -> Plan[list[Gallery]]:
    """Which there are."""
    reply = yield from send(Request(method="GET", path="/v1/galleries"), retries)
    return [Gallery.of(tree) for tree in _tree(reply)["galleries"]]


def create_gallery(name: str, *, retries: Retries) -> Plan[Gallery]:
    """Make one; sent again only where the server said that it did nothing."""
    request = Request(method="POST", path="/v1/galleries", content=_dump({"name": name}), headers=_JSON)
    reply = yield from send(request, retries, again=_REFUSED)
    return Gallery.of(_tree(reply))


def enrol(gallery: str, name: str, pictures: Sequence[bytes], *, retries: Retries) -> Plan[int]:
    """Enrol somebody; harmless to repeat, since a server stores a picture of a person once."""
    path = f"/v1/galleries/{quote(gallery, safe='')}/people?{urlencode({'name': name})}"
    files = tuple((str(number), data) for number, data in enumerate(pictures))
    reply = yield from send(Request(method="POST", path=path, files=files), retries)
    tree = _tree(reply)
    if tree["person"] is None:
        reasons = "; ".join(f"{each['id']}: {', '.join(each['reasons'])}" for each in tree["results"])
        raise NoFaceError(f"no picture could be used: {reasons}", hint="send clearer pictures with one face")
    return int(tree["person"])


def erase(gallery: str, person: int, *, retries: Retries) -> Plan[None]:
    """Erase somebody."""
    path = f"/v1/galleries/{quote(gallery, safe='')}/people/{person}"
    yield from send(Request(method="DELETE", path=path), retries, again=_REFUSED)


def info(*, retries: Retries) -> Plan[dict[str, Any]]:
    """What the server runs."""
    reply = yield from send(Request(method="GET", path="/v1/info"), retries)
    return _tree(reply)


def files_of(paths: str | Path | Iterable[str | Path]) -> list[Path]:
    """The files of a folder and its subfolders, in order, without hidden ones; or these files.

    Raises:
        SourceError: There is no such folder.
    """
    if not isinstance(paths, (str, Path)):
        return [Path(path) for path in paths]
    folder = Path(paths)
    if folder.is_file():
        return [folder]
    if not folder.is_dir():
        raise SourceError(f"{folder}: no such folder", hint="check the path")
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return [path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts)]


def folder(paths: Sequence[Path], *, embed: bool, size: int, retries: Retries) -> Plan[None]:
    """The faces of many files, `size` a request; each file is answered by one `Item`.

    Files whose failure is retryable, or whose answer got lost with the connection, are sent again.
    """
    path = f"/v1/faces:batch?embeddings={'base64' if embed else 'none'}"
    for start in range(0, len(paths), size):
        pending = []
        for file in paths[start : start + size]:
            problem = _unreadable(file)
            if problem is None:
                pending.append(file)
            else:
                yield Item(str(file), None, problem)
        attempt = 0
        while pending:
            files = tuple((str(number), file) for number, file in enumerate(pending))
            answers = _Answers(pending, last=attempt >= retries.most)
            request = Request(method="POST", path=path, files=files, lines=True)
            reply = yield from send(request, retries, again=_RETRY | {0} if attempt < retries.most else frozenset())
            while reply.more:
                if (item := answers.read(reply.content)) is not None:
                    yield item
                reply = yield More()
            for item in answers.lost():
                yield item
            pending = answers.again
            attempt += 1
            if pending:
                yield Pause(retries.pause_s(attempt, answers.retry_after_s))


class _Answers:
    """The lines that answer one batch of files."""

    def __init__(self, sent: Sequence[Path], *, last: bool) -> None:
        self._waiting = dict(enumerate(sent))
        self._last = last
        self._again: dict[int, Path] = {}
        self.retry_after_s: float | None = None

    def read(self, line: bytes) -> Item | None:
        """The item of a line; None where it is none, or where its file is to be sent again."""
        try:
            tree = json.loads(line)
            number = tree.get("index")
        except (ValueError, AttributeError):
            return None  # the connection ended inside a line
        file = self._waiting.pop(number, None) if isinstance(number, int) else None
        if file is None:
            return None
        if "result" in tree:
            return Item(str(file), picture_of(tree["result"]), None)
        problem = tree["error"]
        if problem.get("retryable") and not self._last:
            self.retry_after_s = problem.get("retry_after_s", self.retry_after_s)
            self._again[number] = file
            return None
        return Item(str(file), None, error_of(problem, 0))

    def lost(self) -> list[Item]:
        """Failures of files without an answer, once nothing is sent again."""
        if not self._last:
            self._again |= self._waiting
            return []
        return [
            Item(str(file), None, ServerError(f"{file}: no answer came", hint="try again"))
            for file in self._waiting.values()
        ]

    @property
    def again(self) -> list[Path]:
        """Files to be sent again, in order."""
        return [file for _, file in sorted(self._again.items())]


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


def error_of_reply(reply: Reply) -> FacefleetError:
    """The error that a reply stands for."""
    if not reply.status:
        return ServerError(f"no answer: {reply.failure}", hint="is the server running there?")
    try:
        problem = json.loads(reply.content)
    except ValueError:
        problem = None
    return error_of(problem, reply.status)


def _dump(tree: Mapping[str, Any]) -> bytes:
    return json.dumps(tree).encode()
