"""Exact search on a CUDA device: fused kernels where Triton is installed, else PyTorch, which also runs on the CPU.

Vectors lie on the device in fp32, fp16, or int8 with one scale a row, so that a query reads 4, 2 or 1 bytes a number.
Low precision only preselects: more candidates than asked for are handed back, and the index scores them again from the
float32 vectors. With the kernels (`device_search`) these are all rows whose score is so near that rounding may have
put them in the wrong order. In PyTorch scores are made chunk by chunk and reduced before the next chunk, and there are
a fixed number of candidates; in int8 only the best score of each tile of rows is kept, and the k best tiles are looked
through.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from facefleet.errors import BackendUnavailableError, ConfigError, OutOfMemoryError
from facefleet.gallery.index.base import MARGIN, Segment
from facefleet.gallery.index.device_search import LARGEST_TILE, MOST_QUERIES, DeviceSearch
from facefleet.gallery.index.flat import refuse_options
from facefleet.types import BoolArray, F32Array

_OPTIONS = ("precision", "device")
_PRECISIONS = ("fp32", "fp16", "int8")
_SCORES = 1 << 27  # of a chunk: 512 MiB in fp32, and no less than a launch is worth
_TILE = 128
_QUERIES_OF = 32  # integer matrix products want more than 16
_BLOCK = 64  # the depth of rows is a multiple of it
_DEVIATIONS = 8.0
"""How many standard deviations rounding to int8 may be off: its errors are uniform, so that less than one score in
1e13 is further off."""
_CANDIDATES = {"fp32": 1, "fp16": 2, "int8": 4}


class FlatCudaSegment(Segment):
    """See this module."""

    kind: ClassVar[str] = "flat-cuda"
    exact = True

    def __init__(self, torch: Any, rows: Any, scales: Any, count: int, precision: str) -> None:  # noqa: ANN401  # torch
        self._torch = torch
        self._rows = rows
        self._scales = scales
        self._count = count
        self._precision = precision
        self._mask: tuple[BoolArray | None, Any] = (None, None)
        self._coarsest = 0.0 if scales is None else float(scales.max())
        self.fused: DeviceSearch | None = None
        if rows.is_cuda and importlib.util.find_spec("triton") is not None:
            self.fused = DeviceSearch(torch, rows, scales, count)
            self.margin = 0  # the slack does what it is for

    @classmethod
    def build(cls, vectors: F32Array, options: Mapping[str, Any]) -> Self:
        """See `Segment.build`.

        Options: ``precision`` (fp32, fp16, int8; fp16), ``device`` (cuda, cuda:N, or cpu for trying it; cuda).

        Raises:
            OutOfMemoryError: The device has no room for the vectors.
        """
        refuse_options(cls.kind, options, _OPTIONS)
        precision = str(options.get("precision", "fp16"))
        if precision not in _PRECISIONS:
            raise ConfigError(f"index option precision={precision!r}", hint=f"choose one of {', '.join(_PRECISIONS)}")
        torch = _torch()
        device = str(options.get("device", "cuda"))
        if device != "cpu" and not torch.cuda.is_available():
            raise BackendUnavailableError(f"index option device={device!r}: no CUDA device", hint="use index flat")
        n, d = vectors.shape
        padded = -n % LARGEST_TILE, -d % _BLOCK
        kind = {"fp32": torch.float32, "fp16": torch.float16, "int8": torch.int8}[precision]
        try:
            rows = torch.zeros((n + padded[0], d + padded[1]), dtype=kind, device=device)
            scales = torch.zeros(n + padded[0], device=device) if precision == "int8" else None
            step = 1 << 18
            for start in range(0, n, step):
                some = torch.from_numpy(np.array(vectors[start : start + step])).to(device)
                if scales is None:
                    rows[start : start + len(some), :d] = some.to(kind)
                else:
                    rows[start : start + len(some), :d], scales[start : start + len(some)] = _quantized(torch, some)
        except torch.OutOfMemoryError as error:
            raise OutOfMemoryError(
                f"{n} x {d} vectors in {precision} do not fit on {device}", hint="use precision=int8, or index flat"
            ) from error
        made = cls(torch, rows, scales, n, precision)
        if made.fused is not None:
            made.fused.measure()
        return made

    def search(self, queries: F32Array, k: int, keep: BoolArray | None) -> tuple[F32Array, NDArray[np.int64]]:
        """See `Segment.search`; up to four times as many candidates as asked for, in low precision."""
        torch = self._torch
        with torch.inference_mode():
            mask = self._masked(keep)
            parts = []
            for start in range(0, len(queries), MOST_QUERIES):
                some = queries[start : start + MOST_QUERIES]
                found = None if self.fused is None else self._fused(some, k, mask)
                parts.append(self._in_torch(some, k, mask) if found is None else found)
        width = max((part[0].shape[1] for part in parts), default=0)
        scores = np.full((len(queries), width), -np.inf, np.float32)
        rows = np.full((len(queries), width), -1, np.int64)
        for number, part in enumerate(parts):
            place = slice(number * MOST_QUERIES, number * MOST_QUERIES + len(part[0]))
            scores[place, : part[0].shape[1]], rows[place, : part[1].shape[1]] = part
        return scores, rows

    def _masked(self, keep: BoolArray | None) -> Any:  # noqa: ANN401  # a tensor
        """The rows to choose from, on the device; the latest stay there, for the next search in the same state."""
        if keep is None:
            return None
        latest, there = self._mask
        if latest is not keep:
            there = self._torch.from_numpy(keep).to(self._rows.device)
            self._mask = keep, there
        return there

    def _fused(self, queries: F32Array, k: int, mask: Any) -> tuple[F32Array, NDArray[np.int64]] | None:  # noqa: ANN401
        """What the kernels find; None where they do not do for it."""
        assert self.fused is not None
        if self._precision == "int8":
            scales = np.maximum(np.abs(queries).max(axis=1), 1e-12) / 127
            values: NDArray[Any] = np.rint(queries / scales[:, None]).astype(np.int8)
            deviation = np.sqrt((scales**2 + self._coarsest**2) / 12)
            slack = _DEVIATIONS * np.sqrt(2) * deviation + 1e-6
        else:
            values = queries.astype(np.float16) if self._precision == "fp16" else queries
            scales = np.ones(len(queries), np.float32)
            # Two scores, each with both vectors rounded by half a unit at most, and as many additions as numbers.
            rounded = 2.0**-11 if self._precision == "fp16" else 0.0
            slack = np.full(len(queries), 4 * rounded + 4 * queries.shape[1] * 2.0**-24)
        found = self.fused.search(values, (slack / scales).astype(np.float32), k, mask)
        return None if found is None else (found[0] * scales[:, None].astype(np.float32), found[1])

    def _in_torch(self, queries: F32Array, k: int, mask: Any) -> tuple[F32Array, NDArray[np.int64]]:  # noqa: ANN401
        torch = self._torch
        k = min((k + MARGIN - self.margin) * _CANDIDATES[self._precision], self._count)
        given = torch.from_numpy(np.ascontiguousarray(queries)).to(self._rows.device)
        given = torch.nn.functional.pad(given, (0, self._rows.shape[1] - given.shape[1]))
        scores, rows = (self._among_all if self._scales is None else self._among_peaks)(given, k, mask)
        rows = rows.masked_fill(torch.isneginf(scores), -1)
        return scores.float().cpu().numpy(), rows.cpu().numpy()

    def _among_all(self, queries: Any, k: int, mask: Any) -> tuple[Any, Any]:  # noqa: ANN401  # tensors
        torch, device = self._torch, self._rows.device
        query = queries.to(self._rows.dtype)
        best_scores = torch.full((len(query), 0), -np.inf, device=device)
        best_rows = torch.zeros((len(query), 0), dtype=torch.int64, device=device)
        step = max(_TILE, _SCORES // len(query) // _TILE * _TILE)
        for start in range(0, self._count, step):
            scores = (query @ self._rows[start : start + step].T).float()[:, : self._count - start]
            if mask is not None:
                scores = scores.masked_fill(~mask[start : start + step], -np.inf)
            found, rows = scores.topk(min(k, scores.shape[1]), dim=1)
            best_scores = torch.cat([best_scores, found], dim=1)
            best_rows = torch.cat([best_rows, rows + start], dim=1)
            best_scores, order = best_scores.topk(min(k, best_scores.shape[1]), dim=1)
            best_rows = best_rows.gather(1, order)
        return best_scores, best_rows

    def _among_peaks(self, queries: Any, k: int, mask: Any) -> tuple[Any, Any]:  # noqa: ANN401  # tensors
        torch, count, depth = self._torch, len(queries), self._rows.shape[1]
        values, scales = _quantized(torch, queries)
        query = torch.zeros((_padded(count), depth), dtype=torch.int8, device=queries.device)
        query[:count, : values.shape[1]] = values
        best = self._peaks(query, mask)[:count]
        tiles = best.topk(min(k, best.shape[1]), dim=1).indices
        rows = (tiles[:, :, None] * _TILE + torch.arange(_TILE, device=tiles.device)).flatten(1)
        near = self._rows[rows].float()  # products of bytes are whole numbers that float32 holds
        scores = (near @ query[:count, :, None].float())[..., 0] * self._scales[rows] * scales[:, None]
        live = rows < self._count
        if mask is not None:
            live &= mask[rows.clamp(max=self._count - 1)]
        found, order = scores.masked_fill(~live, -np.inf).topk(k, dim=1)
        return found, rows.gather(1, order)

    def _peaks(self, query: Any, mask: Any) -> Any:  # noqa: ANN401  # tensors
        """(q, tiles) the best score in each tile of rows, less the scale of the query."""
        torch = self._torch
        parts = []
        step = max(_TILE, _SCORES // len(query) // _TILE * _TILE)
        for start in range(0, len(self._rows), step):
            rows = self._rows[start : start + step]
            scores = torch._int_mm(query, rows.T).float() * self._scales[None, start : start + step]
            live = torch.arange(start, start + len(rows), device=query.device) < self._count
            if mask is not None:
                live[: self._count - start] &= mask[start : start + step]
            parts.append(scores.masked_fill(~live, -np.inf).view(len(query), -1, _TILE).amax(dim=2))
        return torch.cat(parts, dim=1)

    def facts(self) -> dict[str, object]:
        """See `Segment.facts`."""
        facts: dict[str, object] = {
            "precision": self._precision,
            "device": str(self._rows.device),
            "rows": self._count,
        }
        if self.fused is not None:
            facts["launches"] = self.fused.facts()
        return facts


def _quantized(torch: Any, vectors: Any) -> tuple[Any, Any]:  # noqa: ANN401  # torch and tensors
    """(n, d) int8 and (n,) scales: the largest number of each row becomes 127."""
    scales = vectors.abs().amax(dim=1).clamp_min(1e-12) / 127
    return (vectors / scales[:, None]).round().to(torch.int8), scales


def _padded(queries: int) -> int:
    """A power of two that is no less, and what integer matrix products want."""
    return max(_QUERIES_OF, 1 << (queries - 1).bit_length())


def _torch() -> Any:  # noqa: ANN401  # torch is an extra
    try:
        import torch
    except ImportError as error:
        raise BackendUnavailableError("PyTorch is not installed", hint='pip install "facefleet[torch]"') from error
    return torch
