"""`Client`: the plans of `logic`, driven with blocking calls over kept connections. One thread at a time."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from facefleet.client import logic
from facefleet.client.logic import More, Pause, Plan, Reply, Request
from facefleet.client.shared import Meter, Options, Source, Watcher, body, failed, library, read_source, reply_of
from facefleet.client.values import Gallery, Item, Match, Picture, Verdict

T = TypeVar("T")


class Client:
    """A blocking client: ``with Client("http://127.0.0.1:8000") as client: picture = client.faces("photo.jpg")``.

    Every call raises what the server answered as the `FacefleetError` it was there, or `ServerError` where no server
    answered; what trying again can mend was tried again before, as late as the server asked for.

    Args:
        url: Of the server.
        options: See `facefleet.client.shared.Options`: key, timeout_s, priority, retries, verify, uds.
    """

    def __init__(self, url: str = "http://127.0.0.1:8000", **options: Any) -> None:  # noqa: ANN401  # `Options`
        chosen = Options(url=url, **options)
        self._retries = chosen.policy
        self._http = chosen.http("HTTPTransport", "Client")
        self._failures: tuple[type[Exception], ...] = (library().TransportError,)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def faces(self, picture: Source, *, embed: bool = True) -> Picture:
        """The faces of one picture, a path or encoded bytes; `embed`: with their embeddings."""
        return self._drive(logic.faces(read_source(picture), embed=embed, retries=self._retries))

    def verify(self, first: Source, second: Source, *, threshold: float | None = None) -> Verdict:
        """Whether the largest faces of two pictures are of the same person, by this cosine or the pack's."""
        return self._drive(
            logic.verify(read_source(first), read_source(second), threshold=threshold, retries=self._retries)
        )

    def search(self, picture: Source, gallery: str, *, k: int = 1, threshold: float | None = None) -> list[list[Match]]:
        """For each face of a picture the `k` most alike people of a gallery, best first."""
        return self._drive(logic.search(read_source(picture), gallery, k=k, threshold=threshold, retries=self._retries))

    def galleries(self) -> list[Gallery]:
        """The galleries of the server."""
        return self._drive(logic.galleries(retries=self._retries))

    def create_gallery(self, name: str) -> Gallery:
        """Make an empty gallery."""
        return self._drive(logic.create_gallery(name, retries=self._retries))

    def enrol(self, gallery: str, name: str, pictures: Sequence[Source]) -> int:
        """Enrol somebody, who is made where the name is nobody's; returns the person's id."""
        data = [read_source(each) for each in pictures]
        return self._drive(logic.enrol(gallery, name, data, retries=self._retries))

    def erase(self, gallery: str, person: int) -> None:
        """Erase somebody."""
        self._drive(logic.erase(gallery, person, retries=self._retries))

    def info(self) -> dict[str, Any]:
        """What the server runs, and its limits."""
        return self._drive(logic.info(retries=self._retries))

    def folder(
        self,
        paths: str | Path | Iterable[str | Path],
        *,
        embed: bool = True,
        size: int = 64,
        progress: Watcher | None = None,
    ) -> Iterator[Item]:
        """The faces of a folder's files, subfolders included, or of these files; they are streamed, never held whole.

        Args:
            paths: A folder or files.
            embed: Whether faces are embedded.
            size: Files a request.
            progress: Is told after each piece that was sent, and each file that was answered.

        Yields:
            An item for each file, once, as soon as it is answered.
        """
        files = logic.files_of(paths)
        yield from self._run(
            logic.folder(files, embed=embed, size=size, retries=self._retries), Meter(len(files), progress)
        )

    def _drive(self, plan: Plan[T]) -> T:
        run = self._run(plan)
        try:
            while True:
                next(run)
        except StopIteration as end:
            value: T = end.value
            return value

    def _run(self, plan: Plan[T], meter: Meter | None = None) -> Generator[Item, None, T]:
        lines: Iterator[Reply] = iter(())
        reply = Reply(0)
        try:
            step = next(plan)
            while True:
                if isinstance(step, Item):
                    if meter is not None:
                        meter.answered()
                    yield step
                elif isinstance(step, Pause):
                    time.sleep(step.seconds)
                elif isinstance(step, More):
                    reply = next(lines)
                elif step.lines:
                    lines = self._lines(step, meter)
                    reply = next(lines)
                else:
                    reply = self._send(step, meter)
                step = plan.send(reply)
        except StopIteration as end:
            value: T = end.value
            return value

    def _send(self, request: Request, meter: Meter | None) -> Reply:
        headers, content = body(request, meter)
        try:
            return reply_of(self._http.request(request.method, request.path, headers=headers, content=content))
        except self._failures as error:
            return failed(error)

    def _lines(self, request: Request, meter: Meter | None) -> Iterator[Reply]:
        headers, content = body(request, meter)
        try:
            with self._http.stream(request.method, request.path, headers=headers, content=content) as response:
                if response.status_code >= 300:
                    response.read()
                    yield reply_of(response)
                    return
                for line in response.iter_lines():
                    yield Reply(200, line.encode(), more=True)
        except self._failures as error:
            yield failed(error)
            return
        yield Reply(200)
