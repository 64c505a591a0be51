"""Search among rows on a CUDA device with the kernels of `peaks`, each batch size with the launch that measured best.

Owns the buffers of a search and the choice of launches. What comes back is every row whose score in low precision lies
within a slack of the k-th best: the slack bounds what rounding may have done to two scores, so that the k nearest are
among them. Safe in any thread; nothing waits for another search but the device itself.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from facefleet.types import F32Array

_log = logging.getLogger(__name__)
LARGEST_TILE = 256
"""Rows have to be padded to a multiple of this."""
SLOTS = 1024
_LINES = 16
_GROUP = 32
_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)
MOST_QUERIES = _BUCKETS[-1]
_FEW = 8  # up to so many queries rows may go through registers
_LEAST_PRODUCT = 16  # queries of a matrix product
_ROOM = {1: 4096, 2: 4096, 4: 4096, 8: 4096}
_ROOM_ELSE = 1024
_WORTH_MEASURING = 200_000
_TIMED = 7


@dataclass(frozen=True, slots=True)
class Launch:
    """How the first pass is launched.

    Attributes:
        way: ``words`` (registers) or ``products`` (matrix units).
        tile: Rows of a tile; a power of two, at most `LARGEST_TILE`.
        warps: Of a program.
        stages: Loads that are under way ahead of their use.
        resident: Programs a multiprocessor, each taking every n-th tile; 0: one program a tile.
        block: Numbers of a row that are multiplied at a time; 0: all. Of ``products`` only.
    """

    way: str
    tile: int
    warps: int
    stages: int = 1
    resident: int = 0
    block: int = 64

    def __str__(self) -> str:
        return f"{self.way} tile={self.tile} warps={self.warps} stages={self.stages} resident={self.resident}" + (
            f" block={self.block}" if self.way == "products" else ""
        )


LAUNCHES = (
    Launch("words", 64, 4),
    Launch("words", 128, 8),
    Launch("words", 32, 2),
    Launch("words", 64, 4, 2, 4),
    Launch("products", 128, 4, 4),
    Launch("products", 128, 8, 3, 0, 128),
    Launch("products", 128, 8, 3, 2, 0),
)
"""What is tried when a gallery is opened."""
MORE_LAUNCHES = (
    *LAUNCHES,
    Launch("words", 32, 4),
    Launch("words", 64, 8),
    Launch("words", 128, 4),
    Launch("words", 32, 4, 2, 8),
    Launch("words", 32, 4, 3, 6),
    Launch("words", 64, 4, 3, 2),
    Launch("words", 128, 8, 2, 2),
    Launch("words", 64, 4, 1, 8),
    Launch("products", 128, 4, 3, 0, 128),
    Launch("products", 256, 8, 3, 0, 64),
    Launch("products", 64, 4, 4, 0, 128),
    Launch("products", 64, 4, 3, 2, 0),
    Launch("products", 128, 4, 3, 1, 0),
    Launch("products", 256, 8, 2, 1, 0),
)
"""What `benchmarks/search_gpu.py --sweep` tries."""


class _Buffers:
    """What one search writes to: the queries with their slacks, the best of each tile, and what was found."""

    def __init__(self, torch: Any, rows: Any, bucket: int) -> None:  # noqa: ANN401  # torch
        device, depth = rows.device, rows.shape[1]
        bytes_ = max(bucket, _LEAST_PRODUCT) * depth * rows.element_size()
        self.room = _ROOM.get(bucket, _ROOM_ELSE)
        given = torch.zeros(bytes_ + 4 * bucket, dtype=torch.uint8, pin_memory=rows.is_cuda)
        self.given, self.given_there = given, torch.empty_like(given, device=device)
        self.asked, self.slack = given[:bytes_].view(rows.dtype).view(-1, depth), given[bytes_:].view(torch.float32)
        there = self.given_there
        self.asked_there, self.slack_there = there[:bytes_].view(rows.dtype), there[bytes_:].view(torch.float32)
        self.best = torch.empty(0, device=device)
        self.limit = torch.empty(bucket, device=device)
        found = torch.zeros(bucket * (1 + 2 * self.room), dtype=torch.int32, pin_memory=rows.is_cuda)
        self.found, self.found_there = found, torch.empty_like(found, device=device)
        self.done = torch.cuda.Event() if rows.is_cuda else None

    def parts(self, found: Any) -> tuple[Any, Any, Any]:  # noqa: ANN401  # a tensor
        """Counter, rows and scores in what was found."""
        bucket, room = len(self.slack), self.room
        rows, scores = found[bucket:].view(2, bucket, room)
        return found[:bucket], rows, scores


class DeviceSearch:
    """See this module.

    Args:
        torch: PyTorch.
        rows: (n, depth) int8, float16 or float32 on a device, contiguous; n a multiple of `LARGEST_TILE`.
        scales: (n,) float32 for int8, what each row has to be multiplied with; else None.
        count: Rows that are there; the others are padding.
    """

    def __init__(self, torch: Any, rows: Any, scales: Any, count: int) -> None:  # noqa: ANN401  # torch
        self._torch = torch
        self._rows, self._scales, self._count = rows, rows if scales is None else scales, count
        self._bytes = scales is not None
        self._processors = torch.cuda.get_device_properties(rows.device).multi_processor_count if rows.is_cuda else 2
        self._free: dict[int, deque[_Buffers]] = {bucket: deque() for bucket in _BUCKETS}
        self._launches = {bucket: self._usual(bucket) for bucket in _BUCKETS}
        self.measured: dict[int, dict[Launch, float]] = {}

    def measure(self, launches: Iterable[Launch] = LAUNCHES, buckets: Iterable[int] = _BUCKETS) -> None:
        """Time launches on these rows, and keep the best for each number of queries. One thread, before searching.

        A launch that does not compile, or whose answer is not that of the first, is left out. Fewer rows than are
        worth it are not measured. Of the many numbers of queries only the smallest and the largest try everything;
        those between choose among the best.
        """
        if not self._rows.is_cuda or self._count < _WORTH_MEASURING:
            return
        tried = tuple(launches)
        best: list[Launch] = []
        for bucket in sorted(buckets, key=lambda b: (b not in (1, 64), b)):
            some = tried if bucket in (1, 64) or not best else tuple(dict.fromkeys(best))
            times = self._times(bucket, [launch for launch in some if self._fits(launch, bucket)])
            self.measured[bucket] = times
            if times:
                self._launches[bucket] = min(times, key=times.__getitem__)
            for way in ("words", "products"):
                of_way = [launch for launch in times if launch.way == way]
                if bucket in (1, 64) and of_way:
                    best.append(min(of_way, key=times.__getitem__))

    def search(
        self,
        queries: NDArray[Any],
        slack: F32Array,
        k: int,
        mask: Any,  # noqa: ANN401  # a tensor
    ) -> tuple[F32Array, NDArray[np.int64]] | None:
        """Scores and rows of all that may be among the k best; None where this way does not do for so many.

        Args:
            queries: (q, d) of the rows' kind, q at most `MOST_QUERIES`, d at most the rows' depth.
            slack: (q,) float32, how far two scores may be wrong together.
            k: How many are wanted.
            mask: (n,) bool on the device, which to choose from; None: all.

        Returns:
            (q, m) scores in units of the query's scale, -inf for none, and rows, -1 for none.
        """
        if k > SLOTS:
            return None
        count = len(queries)
        bucket = next(size for size in _BUCKETS if size >= count)
        with self._buffers(bucket) as buffers:
            buffers.asked.numpy()[:count, : queries.shape[1]] = queries
            buffers.asked.numpy()[count:] = 0
            buffers.slack.numpy()[:count] = slack
            buffers.given_there.copy_(buffers.given, non_blocking=True)
            launch = self._launches[bucket]
            self._first_pass(launch, buffers, bucket, mask)
            self._second_pass(launch, buffers, count, k, mask)
            buffers.found.copy_(buffers.found_there, non_blocking=True)
            if buffers.done is not None:
                buffers.done.record()
                buffers.done.synchronize()
            numbers, rows, scores = (part.numpy()[:count] for part in buffers.parts(buffers.found))
            width = max(1, int(numbers.max(initial=0)))
            if width > buffers.room:
                return None
            there = np.arange(width) < numbers[:, None]
            return (
                np.where(there, scores[:, :width].view(np.float32), np.float32(-np.inf)),
                np.where(there, rows[:, :width], -1).astype(np.int64),
            )

    def facts(self) -> dict[str, str]:
        """How each number of queries is launched, and the milliseconds of its first pass where they were measured."""
        return {
            str(bucket): f"{launch}" + (f" {1000 * times[launch]:.3f} ms" if launch in times else "")
            for bucket, launch in self._launches.items()
            for times in (self.measured.get(bucket, {}),)
        }

    @contextlib.contextmanager
    def _buffers(self, bucket: int) -> Any:  # noqa: ANN401  # an iterator
        free = self._free[bucket]
        try:
            buffers = free.pop()
        except IndexError:
            buffers = _Buffers(self._torch, self._rows, bucket)
        try:
            yield buffers
        finally:
            free.append(buffers)

    def _usual(self, bucket: int) -> Launch:
        return next(launch for launch in LAUNCHES if self._fits(launch, bucket))

    def _fits(self, launch: Launch, bucket: int) -> bool:
        if launch.way == "words":
            return bucket <= _FEW
        depth = self._rows.shape[1]
        block = launch.block or depth
        return depth % block == 0 and block == _power(block)

    def _first_pass(self, launch: Launch, buffers: _Buffers, bucket: int, mask: Any) -> None:  # noqa: ANN401
        from facefleet.gallery.index import peaks

        tile = self._tile(launch)
        tiles = len(self._rows) // tile
        queries = max(bucket, _LEAST_PRODUCT) if launch.way == "products" else bucket
        if buffers.best.numel() < queries * tiles:
            buffers.best = self._torch.empty(queries * tiles, device=self._rows.device)
        grid = (min(tiles, launch.resident * self._processors) if launch.resident else tiles,)
        keep = self._scales if mask is None else mask
        depth = self._rows.shape[1]
        if launch.way == "words":
            asked, rows = self._words(buffers.asked_there), self._words(self._rows)
            width = depth // 4 if self._bytes else depth
            peaks.peaks_of_words[grid](
                asked, rows, self._scales, keep, buffers.best, self._count, tiles, DEPTH=width, WIDTH=_power(width),
                QUERIES=bucket, TILE=tile, STAGES=launch.stages, BYTES=self._bytes, DP4A=self._rows.is_cuda,
                MASKED=mask is not None, num_warps=launch.warps,
            )  # fmt: skip
            return
        peaks.peaks_of_products[grid](
            buffers.asked_there, self._rows, self._scales, keep, buffers.best, self._count,
            tiles, DEPTH=depth, BLOCK=launch.block or depth, QUERIES=queries, TILE=tile,
            FLATTEN=bool(launch.resident and launch.block), BYTES=self._bytes, MASKED=mask is not None,
            num_warps=launch.warps, num_stages=launch.stages,
        )  # fmt: skip

    def _second_pass(self, launch: Launch, buffers: _Buffers, count: int, k: int, mask: Any) -> None:  # noqa: ANN401
        from facefleet.gallery.index import peaks

        tile = self._tile(launch)
        tiles = len(self._rows) // tile
        counter, rows, scores = buffers.parts(buffers.found_there)
        peaks.limits[(count,)](
            buffers.best, buffers.slack_there, buffers.limit, counter, tiles, k, SLOTS=SLOTS, LINES=_LINES, num_warps=8
        )
        width = self._rows.shape[1] // 4 if self._bytes else self._rows.shape[1]
        peaks.collect[(-(-tiles // _GROUP), count)](
            self._words(buffers.asked_there), self._words(self._rows), self._scales,
            self._scales if mask is None else mask, buffers.best, buffers.limit, counter, rows,
            scores.view(self._torch.float32), self._count, tiles, buffers.room, DEPTH=width, WIDTH=_power(width),
            TILE=tile, GROUP=_GROUP, BYTES=self._bytes, DP4A=self._rows.is_cuda, MASKED=mask is not None, num_warps=4,
        )  # fmt: skip

    def _tile(self, launch: Launch) -> int:
        """Rows of a tile: fewer where a row is longer than 512 bytes, so that as many bytes are under way."""
        if launch.way == "products":
            return launch.tile
        bytes_ = self._rows.shape[1] * self._rows.element_size()
        return max(8, launch.tile * 512 // max(512, _power(bytes_)))

    def _words(self, tensor: Any) -> Any:  # noqa: ANN401  # tensors
        return tensor.view(self._torch.int32) if self._bytes else tensor

    def _times(self, bucket: int, launches: list[Launch]) -> dict[Launch, float]:
        """Seconds of the first pass, for each launch that works and agrees with the first."""
        torch = self._torch
        times: dict[Launch, float] = {}
        wanted = None
        with self._buffers(bucket) as buffers:
            few = np.random.default_rng(0).permutation(self._count)[:bucket]
            asked = self._rows[torch.from_numpy(np.sort(few)).to(self._rows.device)].cpu()
            buffers.asked[: len(asked)] = asked
            buffers.given_there.copy_(buffers.given)
            for launch in launches:
                try:
                    self._first_pass(launch, buffers, bucket, None)
                    tiles = len(self._rows) // self._tile(launch)
                    best = buffers.best[: bucket * tiles].view(bucket, -1, LARGEST_TILE // self._tile(launch))
                    found = best.amax(dim=2)
                    if wanted is None:
                        wanted = found
                    if not torch.allclose(found, wanted, rtol=1e-5, atol=1e-5):
                        _log.warning("%s gives another answer: left out", launch)
                        continue
                    times[launch] = self._timed(launch, buffers, bucket)
                except Exception as error:  # a compiler or a driver that does not like it
                    _log.info("%s does not work here: %s", launch, str(error).splitlines()[:1])
        return times

    def _timed(self, launch: Launch, buffers: _Buffers, bucket: int) -> float:
        """Median seconds of the first pass."""
        events = [self._torch.cuda.Event(enable_timing=True) for _ in range(2 * _TIMED)]
        for number in range(_TIMED):
            events[2 * number].record()
            self._first_pass(launch, buffers, bucket, None)
            events[2 * number + 1].record()
        events[-1].synchronize()
        return float(np.median([a.elapsed_time(b) for a, b in zip(events[::2], events[1::2], strict=True)])) / 1000


def _power(number: int) -> int:
    """The least power of two that is no less."""
    return 1 << (number - 1).bit_length()
