"""Exact search on a CUDA device, written in PyTorch; the same code runs on the CPU for tests.

Vectors lie on the device in fp32, fp16, or int8 with one scale a row, so that a query reads 4, 2 or 1 bytes a number.
Scores are made chunk by chunk and reduced to the best before the next chunk, so that memory does not grow with the
number of vectors. Low precision only preselects: more candidates than asked for are handed back, and the index scores
them again from the float32 vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from facefleet.errors import BackendUnavailableError, ConfigError, OutOfMemoryError
from facefleet.gallery.index.base import Segment
from facefleet.gallery.index.flat import refuse_options
from facefleet.types import BoolArray, F32Array

_OPTIONS = ("precision", "device")
_PRECISIONS = ("fp32", "fp16", "int8")
_SCORES = 1 << 27  # of a chunk: 512 MiB in fp32, and no less than a launch is worth
_ROWS_OF_8 = 8  # what integer matrix products want
_QUERIES_OF = 32
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
        padded = -n % _ROWS_OF_8, (-d % _ROWS_OF_8 if precision == "int8" else 0)
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
        return cls(torch, rows, scales, n, precision)

    def search(self, queries: F32Array, k: int, keep: BoolArray | None) -> tuple[F32Array, NDArray[np.int64]]:
        """See `Segment.search`; up to four times as many candidates as asked for, in low precision."""
        torch, device = self._torch, self._rows.device
        k = min(k * _CANDIDATES[self._precision], self._count)
        wanted = len(queries)
        with torch.inference_mode():
            given = torch.from_numpy(np.ascontiguousarray(queries)).to(device)
            mask = None if keep is None else torch.from_numpy(keep).to(device)
            query, scale = self._query(given)
            best_scores = torch.full((wanted, 0), -np.inf, device=device)
            best_rows = torch.zeros((wanted, 0), dtype=torch.int64, device=device)
            step = max(_ROWS_OF_8, _SCORES // max(1, len(query)) // _ROWS_OF_8 * _ROWS_OF_8)
            for start in range(0, self._count, step):
                scores = self._scores(query, scale, start, step)[:wanted, : self._count - start]
                if mask is not None:
                    scores = scores.masked_fill(~mask[start : start + step], -np.inf)
                found, rows = scores.topk(min(k, scores.shape[1]), dim=1)
                best_scores = torch.cat([best_scores, found], dim=1)
                best_rows = torch.cat([best_rows, rows + start], dim=1)
                best_scores, order = best_scores.topk(min(k, best_scores.shape[1]), dim=1)
                best_rows = best_rows.gather(1, order)
            best_rows = best_rows.masked_fill(torch.isneginf(best_scores), -1)
            return best_scores.float().cpu().numpy(), best_rows.cpu().numpy()

    def _query(self, queries: Any) -> tuple[Any, Any]:  # noqa: ANN401  # tensors
        """Queries as the rows are, with their scales."""
        torch = self._torch
        if self._scales is None:
            return queries.to(self._rows.dtype), None
        values, scales = _quantized(torch, queries)
        shape = (len(queries) + -len(queries) % _QUERIES_OF, self._rows.shape[1])
        padded = torch.zeros(shape, dtype=torch.int8, device=queries.device)
        padded[: len(queries), : queries.shape[1]] = values
        return padded, scales

    def _scores(self, query: Any, scale: Any, start: int, step: int) -> Any:  # noqa: ANN401  # tensors
        rows = self._rows[start : start + step]
        if self._scales is None:
            return (query @ rows.T).float()
        products = self._torch._int_mm(query, rows.T)[: len(scale)]  # the only integer product there is
        return products.float() * scale[:, None] * self._scales[None, start : start + step]

    def facts(self) -> dict[str, object]:
        """See `Segment.facts`."""
        return {"precision": self._precision, "device": str(self._rows.device), "rows": self._count}


def _quantized(torch: Any, vectors: Any) -> tuple[Any, Any]:  # noqa: ANN401  # torch and tensors
    """(n, d) int8 and (n,) scales: the largest number of each row becomes 127."""
    scales = vectors.abs().amax(dim=1).clamp_min(1e-12) / 127
    return (vectors / scales[:, None]).round().to(torch.int8), scales


def _torch() -> Any:  # noqa: ANN401  # torch is an extra
    try:
        import torch
    except ImportError as error:
        raise BackendUnavailableError("PyTorch is not installed", hint='pip install "facefleet[torch]"') from error
    return torch
