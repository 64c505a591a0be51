"""`AsyncClient`: the plans of `logic`, driven with awaits over kept connections. Any number of tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from facefleet.client import logic
from facefleet.client.logic import Pause, Plan, Reply, Request
from facefleet.client.shared import Meter, Options, Source, Watcher, body, failed, library, read_source, reply_of
from facefleet.client.values import Gallery, Item, Match, Picture, Verdict

T = TypeVar("T")


class AsyncClient:
    """As `facefleet.client.Client`, with ``async with`` and ``await``.

    Args:
        url: Of the server.
        options: See `facefleet.client.shared.Options`.
    """

    def __init__(self, url: str = "http://127.0.0.1:8000", **options: Any) -> None:  # noqa: ANN401  # `Options`
        chosen = Options(url=url, **options)
        self._retries = chosen.policy
        self._http = chosen.http("AsyncHTTPTransport", "AsyncClient")
        self._failures: tuple[type[Exception], ...] = (library().TransportError,)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close its connections."""
        await self._http.aclose()

    async def faces(self, picture: Source, *, embed: bool = True) -> Picture:
        """The faces of one picture, a path or encoded bytes; `embed`: with their embeddings."""
        return await self._drive(logic.faces(await _read(picture), embed=embed, retries=self._retries))

    async def verify(self, first: Source, second: Source, *, threshold: float | None = None) -> Verdict:
        """Whether the largest faces of two pictures are of the same person, by this cosine or the pack's."""
        one, other = await _read(first), await _read(second)
        return await self._drive(logic.verify(one, other, threshold=threshold, retries=self._retries))

    async def search(
        self, picture: Source, gallery: str, *, k: int = 1, threshold: float | None = None
    ) -> list[list[Match]]:
        """For each face of a picture the `k` most alike people of a gallery, best first."""
        data = await _read(picture)
        return await self._drive(logic.search(data, gallery, k=k, threshold=threshold, retries=self._retries))

    async def galleries(self) -> list[Gallery]:
        """The galleries of the server."""
        return await self._drive(logic.galleries(retries=self._retries))

    async def create_gallery(self, name: str) -> Gallery:
        """Make an empty gallery."""
        return await self._drive(logic.create_gallery(name, retries=self._retries))

    async def enrol(self, gallery: str, name: str, pictures: Sequence[Source]) -> int:
        """Enrol somebody, who is made where the name is nobody's; returns the person's id."""
        data = [await _read(each) for each in pictures]
        return await self._drive(logic.enrol(gallery, name, data, retries=self._retries))

    async def erase(self, gallery: str, person: int) -> None:
        """Erase somebody."""
        await self._drive(logic.erase(gallery, person, retries=self._retries))

    async def info(self) -> dict[str, Any]:
        """What the server runs, and its limits."""
        return await self._drive(logic.info(retries=self._retries))

    async def folder(
        self,
        paths: str | Path | Iterable[str | Path],
        *,
        embed: bool = True,
        size: int = 64,
        progress: Watcher | None = None,
    ) -> AsyncIterator[Item]:
        """As `Client.folder`."""
        files = await asyncio.to_thread(logic.files_of, paths)
        meter = Meter(len(files), progress)
        plan = logic.folder(files, embed=embed, size=size, retries=self._retries)
        lines: AsyncGenerator[Reply, None] | None = None
        reply = Reply(0)
        try:
            step = next(plan)
            while True:
                if isinstance(step, Item):
                    meter.answered()
                    yield step
                elif isinstance(step, Pause):
                    await asyncio.sleep(step.seconds)
                elif isinstance(step, Request):
                    lines = self._lines(step, meter)
                    reply = await anext(lines)
                else:
                    assert lines is not None
                    reply = await anext(lines)
                step = plan.send(reply)
        except StopIteration:
            return
        finally:
            if lines is not None:
                await lines.aclose()

    async def _drive(self, plan: Plan[T]) -> T:
        reply = Reply(0)
        try:
            step = next(plan)
            while True:
                if isinstance(step, Pause):
                    await asyncio.sleep(step.seconds)
                elif isinstance(step, Request):
                    reply = await self._send(step)
                step = plan.send(reply)
        except StopIteration as end:
            value: T = end.value
            return value

    async def _send(self, request: Request) -> Reply:
        headers, content = body(request, None)
        sent = _pieces(content) if isinstance(content, Iterator) else content
        try:
            return reply_of(await self._http.request(request.method, request.path, headers=headers, content=sent))
        except self._failures as error:
            return failed(error)

    async def _lines(self, request: Request, meter: Meter) -> AsyncGenerator[Reply, None]:
        headers, content = body(request, meter)
        assert isinstance(content, Iterator)
        try:
            async with self._http.stream(
                request.method, request.path, headers=headers, content=_pieces(content)
            ) as response:
                if response.status_code >= 300:
                    await response.aread()
                    yield reply_of(response)
                    return
                async for line in response.aiter_lines():
                    yield Reply(200, line.encode(), more=True)
        except self._failures as error:
            yield failed(error)
            return
        yield Reply(200)


async def _read(source: Source) -> bytes:
    return source if isinstance(source, bytes) else await asyncio.to_thread(read_source, source)


async def _pieces(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Pieces of files, read in a thread."""
    while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
        yield piece
