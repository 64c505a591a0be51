"""The engine for asyncio: the same threads, awaited instead of waited for."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Hashable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from facefleet.config import Settings
from facefleet.pipeline.engine import Engine
from facefleet.types import Faces, ImageSource, Outcome


class AsyncEngine:
    """`Engine` for asyncio; the event loop never waits for decoding or inference.

    Args:
        settings: As for `Engine`.
        pack: As for `Engine`.
        profile: As for `Engine`.
    """

    def __init__(
        self, settings: Settings | None = None, *, pack: str | None = None, profile: str | Path | None = None
    ) -> None:
        self.engine = Engine(settings, pack=pack, profile=profile)

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.engine.open)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.engine.close)

    async def analyze(
        self, image: ImageSource, *, chips: bool = False, timeout_s: float | None = None, client: Hashable = None
    ) -> Faces:
        """As `Engine.analyze`; cancelling the task drops the image if no stage has taken it up yet.

        Args:
            image: As for `Engine.analyze`.
            chips: Likewise.
            timeout_s: As for `Engine.submit`.
            client: Likewise.
        """
        submit = functools.partial(self.engine.submit, image, chips=chips, timeout_s=timeout_s, client=client)
        future = await asyncio.to_thread(submit)
        return (await asyncio.wrap_future(future)).unwrap()

    async def map(self, images: Iterable[ImageSource], *, chips: bool = False) -> AsyncIterator[Outcome[Faces]]:
        """As `Engine.map`."""
        results = self.engine.map(images, chips=chips)
        end = object()
        try:
            while (outcome := await asyncio.to_thread(next, results, end)) is not end:
                assert isinstance(outcome, Outcome)
                yield outcome
        finally:
            results.close()
