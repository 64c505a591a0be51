"""The parity gate: whether an engine answers as ONNX Runtime on the CPU does, whatever stands beside a picture.

Owns the checks, their thresholds, the reasons for a refusal and the report. Runs in the calling thread. Knows two
functions from pictures to outputs, and nothing of what is behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

import numpy as np

from facefleet.errors import BackendError, ParityError
from facefleet.types import F32Array, U8Array

Run: TypeAlias = Callable[[U8Array], Sequence[F32Array]]


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What still counts as the same answer.

    Attributes:
        cosine_min: Least cosine between a row and its reference.
        cosine_mean: Least mean of those cosines.
        relative_max: Largest difference, relative to the largest value of the output in the reference.
    """

    cosine_min: float
    cosine_mean: float
    relative_max: float


THRESHOLDS = {
    "fp32": Thresholds(0.99999, 0.99999, 2e-3),  # sums in another order, kernels of another kind
    "fp16": Thresholds(0.999, 0.9995, 5e-2),  # 11 bits of 24
    "bf16": Thresholds(0.98, 0.995, 0.25),  # 8 bits of 24
    "int8": Thresholds(0.95, 0.98, 0.5),  # the accuracy guard decides beyond that
}
"""By precision. The accuracy guard is stricter where an accuracy is known; this finds engines that are wrong."""

_LEAST_RANGE = 0.05  # scores of a stride without a face are all near zero: a share of that would be noise
_PLACE = 0.01  # of the range: how far an answer may move with its place in the batch, in any precision


@dataclass(frozen=True, slots=True)
class Comparison:
    """One output at one batch size.

    Attributes:
        output: Its name.
        batch: Pictures in the batch.
        max_abs: Largest difference.
        relative: The same, relative to the largest value in the reference.
        cosine_min: Least cosine of a row.
        cosine_mean: Mean cosine.
    """

    output: str
    batch: int
    max_abs: float
    relative: float
    cosine_min: float
    cosine_mean: float


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an engine is refused.

    Attributes:
        code: ``run_failed``, ``rows_missing``, ``not_finite``, ``overflow``, ``constant``, ``rows_swapped``,
            ``rows_mixed``, ``identical_rows_differ``, ``order_matters`` or ``inaccurate``.
        batch: At which batch size.
        text: What was seen, and where.
    """

    code: str
    batch: int
    text: str


@dataclass(frozen=True, slots=True)
class ParityReport:
    """What the gate saw.

    Attributes:
        passed: Whether the engine may be published.
        precision: Which thresholds were applied.
        pictures: How many different pictures were used.
        source: Where they are from.
        batches: Batch sizes that were run.
        comparisons: Every output at every batch size.
        refusals: Empty if passed.
    """

    passed: bool
    precision: str
    pictures: int
    source: str
    batches: tuple[int, ...]
    comparisons: tuple[Comparison, ...] = field(default=())
    refusals: tuple[Refusal, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain values."""
        return asdict(self)

    def summary(self) -> str:
        """One screen of text: the worst row of every output, and the reasons."""
        lines = [
            f"parity {'passed' if self.passed else 'REFUSED'}: {self.precision}, batches "
            f"{', '.join(map(str, self.batches))}, {self.pictures} {self.source}"
        ]
        for name in dict.fromkeys(each.output for each in self.comparisons):
            rows = [each for each in self.comparisons if each.output == name]
            least, mean = min(row.cosine_min for row in rows), min(row.cosine_mean for row in rows)
            most, share = max(row.max_abs for row in rows), max(row.relative for row in rows)
            lines.append(
                f"  {name:16} cosine >= {least:.6f}, mean {mean:.6f}, difference {most:.2e} ({share:.1e} of its range)"
            )
        lines += [f"  refused at batch {each.batch}: {each.code}: {each.text}" for each in self.refusals]
        return "\n".join(lines)

    def require(self, what: str) -> None:
        """Let it pass or not.

        Raises:
            ParityError: It did not pass; the text has the first reason.
        """
        if not self.passed:
            first = self.refusals[0]
            raise ParityError(
                f"{what} answers differently from ONNX Runtime at batch {first.batch}: {first.code}: {first.text}",
                hint="it was not published; look at parity.json, choose a higher precision or another backend",
            )


def compare(
    reference: Run,
    candidate: Run,
    pictures: U8Array,
    *,
    names: Sequence[str],
    batches: Sequence[int],
    precision: str,
    source: str,
) -> ParityReport:
    """Hold an engine against the reference.

    Every batch has different pictures and, from three on, the first one once more at its end; the largest is also run
    in another order.

    Args:
        reference: Runs (1, h, w, 3) uint8 RGB; trusted.
        candidate: Runs (n, h, w, 3) for every n of `batches`.
        pictures: (n, h, w, 3) uint8 RGB, all different, at least two.
        names: Names of the outputs.
        batches: Batch sizes, e.g. 1, 2, opt, max.
        precision: Key of `THRESHOLDS`.
        source: What the pictures are, for the report, e.g. ``photos``.
    """
    sizes = tuple(sorted(set(batches)))
    want = [reference(picture[None]) for picture in pictures[: sizes[-1]]]
    gate = _Gate(names, THRESHOLDS[precision], [np.stack(rows)[:, 0] for rows in zip(*want, strict=True)])
    for size in sizes:
        index = np.arange(size) % len(pictures[: sizes[-1]])
        if size > 2:
            index[-1] = index[0]
        gate.check(candidate, pictures, index)
    if sizes[-1] > 1 and not gate.refusals:
        gate.permuted(candidate, pictures, np.arange(sizes[-1]) % len(pictures[: sizes[-1]]))
    return ParityReport(
        passed=not gate.refusals,
        precision=precision,
        pictures=len(want),
        source=source,
        batches=sizes,
        comparisons=tuple(gate.comparisons),
        refusals=tuple(gate.refusals),
    )


def together(reports: Sequence[ParityReport]) -> ParityReport:
    """Reports of one engine on several sets of pictures as one."""
    first = reports[0]
    return ParityReport(
        passed=all(each.passed for each in reports),
        precision=first.precision,
        pictures=sum(each.pictures for each in reports),
        source=first.source,
        batches=tuple(sorted({size for each in reports for size in each.batches})),
        comparisons=tuple(row for each in reports for row in each.comparisons),
        refusals=tuple(row for each in reports for row in each.refusals),
    )


class _Gate:
    """Collects what is seen; `reference` has the rows of every picture for every output."""

    def __init__(self, names: Sequence[str], limits: Thresholds, reference: list[F32Array]) -> None:
        self._names, self._limits, self._reference = names, limits, reference
        self.comparisons: list[Comparison] = []
        self.refusals: list[Refusal] = []

    def check(self, candidate: Run, pictures: U8Array, index: Any) -> None:  # noqa: ANN401  # integers
        """One batch."""
        got = self._run(candidate, pictures, index)
        for name, rows, reference in zip(self._names, got or (), self._reference, strict=bool(got)):
            refusal = self._output(name, rows, reference, index)
            if refusal is not None:
                self.refusals.append(Refusal(refusal[0], len(index), f"{name}: {refusal[1]}"))

    def permuted(self, candidate: Run, pictures: U8Array, index: Any) -> None:  # noqa: ANN401  # integers
        """The same batch in another order must give the same rows in that order."""
        turned = np.roll(index[::-1], 1)
        first, second = self._run(candidate, pictures, index), self._run(candidate, pictures, turned)
        if first is None or second is None:
            return
        for name, a, b in zip(self._names, first, second, strict=True):
            scale = max(float(np.abs(a).max(initial=0)), _LEAST_RANGE)
            moved = float(np.abs(np.roll(a[::-1], 1, axis=0) - b).max(initial=0)) / scale
            if not moved <= min(self._limits.relative_max, _PLACE):
                text = f"{name}: rows move by {moved:.1e} of their range when the batch is in another order"
                self.refusals.append(Refusal("order_matters", len(index), text))

    def _run(self, candidate: Run, pictures: U8Array, index: Any) -> Sequence[F32Array] | None:  # noqa: ANN401
        size = len(index)
        try:
            got = candidate(pictures[index])
        except BackendError as error:
            self.refusals.append(Refusal("run_failed", size, error.message))
            return None
        if len(got) != len(self._names):
            text = f"{len(got)} outputs, the reference has {len(self._names)}"
            self.refusals.append(Refusal("rows_missing", size, text))
            return None
        return got

    def _output(self, name: str, rows: F32Array, reference: F32Array, index: Any) -> tuple[str, str] | None:  # noqa: ANN401
        """Why this output is refused, if it is."""
        size, want = len(index), reference[index]
        if rows.ndim != want.ndim or len(rows) != size or rows[0].size != want[0].size:
            return "rows_missing", f"shape {rows.shape} for {size} pictures, the reference has {want.shape}"
        got = rows.reshape(size, -1).astype(np.float64)
        flat = want.reshape(size, -1).astype(np.float64)
        if not np.isfinite(got).all():
            bad = np.flatnonzero(~np.isfinite(got).all(axis=1)).tolist()
            code = "overflow" if np.isinf(got).any() else "not_finite"
            return code, f"{'infinite' if code == 'overflow' else 'NaN'} values in rows {bad[:8]}"
        scale = max(float(np.abs(flat).max(initial=0)), _LEAST_RANGE)
        difference = np.abs(got - flat).max(axis=1, initial=0)
        cosines = _cosines(got, flat)
        worst = float(difference.max())
        self.comparisons.append(
            Comparison(name, size, worst, worst / scale, float(cosines.min()), float(cosines.mean()))
        )
        if size > 1 and np.ptp(got, axis=0).max() <= 1e-6 * scale < np.ptp(flat, axis=0).max():
            return "constant", "every picture gets the same answer"
        good = (difference <= self._limits.relative_max * scale) & (cosines >= self._limits.cosine_min)
        if not good.all() or cosines.mean() < self._limits.cosine_mean:
            return self._diagnose(got, flat, good, scale, cosines)
        if size > 2 and float(np.abs(got[0] - got[-1]).max()) > min(self._limits.relative_max, _PLACE) * scale:
            return "identical_rows_differ", "the same picture twice in one batch gets two answers"
        return None

    def _diagnose(self, got: Any, want: Any, good: Any, scale: float, cosines: Any) -> tuple[str, str]:  # noqa: ANN401
        """What kind of wrong an output is."""
        close = self._limits.relative_max * scale
        failed = np.flatnonzero(~good).tolist()
        for row in failed:
            other = int(np.abs(want - got[row]).max(axis=1).argmin())
            if (
                other != row
                and np.abs(want[other] - got[row]).max() <= close
                and np.abs(want[other] - want[row]).max() > close
            ):
                return "rows_swapped", f"row {row} has the answer of picture {other}"
        most = float(np.abs(got - want).max())
        if len(got) > 1 and np.abs(np.sort(got, axis=None) - np.sort(want, axis=None)).max() <= min(close, 0.1 * most):
            return "rows_mixed", f"rows {failed[:8]} have values of several pictures: the head is not made for batches"
        return "inaccurate", (
            f"{len(failed)} of {len(got)} rows: cosine {float(cosines.min()):.5f} (mean {float(cosines.mean()):.5f}), "
            f"difference {most / scale:.1e} of the range"
        )


def _cosines(a: Any, b: Any) -> Any:  # noqa: ANN401  # (n, k) float64 in, (n,) out
    """Cosine of each row with its reference `b`; 1 where that is next to nothing, so that the difference decides."""
    dots = np.einsum("nk,nk->n", a, b)
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return np.where(np.abs(b).max(axis=1, initial=0) < _LEAST_RANGE, 1.0, dots / np.maximum(norms, 1e-30))
