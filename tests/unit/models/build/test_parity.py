"""The gate refuses what is wrong, and says what kind of wrong it is."""

from __future__ import annotations

import json

import numpy as np
import pytest

from facefleet.errors import InferenceError, ParityError
from facefleet.models.build.parity import compare

WEIGHTS = np.random.default_rng(0).normal(0, 1, (12, 8)).astype(np.float32)
PICTURES = np.random.default_rng(1).integers(0, 256, (8, 2, 2, 3)).astype(np.uint8)


def vectors(pictures):
    """(n, 8): an embedder."""
    return (pictures.reshape(len(pictures), 12).astype(np.float32) - 127.5) / 127.5 @ WEIGHTS


def cells(pictures):
    """(n, 4, 3): the head of a detector."""
    return pictures.reshape(len(pictures), 4, 3).astype(np.float32) / 255


def gate(candidate, *, reference=vectors, batches=(1, 2, 8), precision="fp32"):
    return compare(
        lambda x: (reference(x),),
        lambda x: (candidate(x),),
        PICTURES,
        names=["output"],
        batches=batches,
        precision=precision,
        source="random pictures",
    )


def swap(x):
    out = vectors(x)
    return out[[1, 0, *range(2, len(out))]] if len(out) > 1 else out


def shift(x):
    return np.roll(vectors(x), 1, axis=0)


def interleave(x):
    out = cells(x)
    return np.ascontiguousarray(out.transpose(1, 0, 2)).reshape(out.shape)


def overflow(x):
    with np.errstate(over="ignore"):
        return (vectors(x) * 5e4).astype(np.float16).astype(np.float32) / 5e4


def nan_in_one_row(x):
    out = vectors(x)
    out[-1, 3] = np.nan
    return out


def neighbors(x):
    return vectors(x) + 0.01 * np.arange(len(x))[:, None].astype(np.float32)


def fails(x):
    if len(x) > 2:
        raise InferenceError("Reshape_7 does not take a batch of 8")
    return vectors(x)


@pytest.mark.parametrize(
    ("code", "broken", "reference"),
    [
        ("rows_mixed", interleave, cells),
        ("rows_missing", lambda x: vectors(x)[:1], vectors),
        ("rows_missing", lambda x: vectors(x)[:, :4], vectors),
        ("rows_swapped", swap, vectors),
        ("rows_swapped", shift, vectors),
        ("not_finite", nan_in_one_row, vectors),
        ("overflow", overflow, vectors),
        ("constant", lambda x: np.repeat(vectors(PICTURES[:1]), len(x), axis=0), vectors),
        ("inaccurate", lambda x: vectors(x) + 0.5, vectors),
        ("run_failed", fails, vectors),
    ],
)
def test_a_broken_engine_is_refused_with_the_right_reason(code, broken, reference):
    report = gate(broken, reference=reference)
    assert not report.passed
    assert code in {refusal.code for refusal in report.refusals}, report.summary()
    with pytest.raises(ParityError, match=report.refusals[0].code):
        report.require("engine")
    assert code in report.summary()


def test_the_same_picture_twice_must_get_one_answer():
    def drifting(x):
        out = vectors(x)
        out[-1] *= 1.3 if len(x) > 2 else 1
        return out

    limits = gate(drifting, precision="int8")
    assert "identical_rows_differ" in {refusal.code for refusal in limits.refusals}, limits.summary()


def test_an_answer_that_depends_on_the_order_is_refused():
    calls = []

    def later_calls_differ(x):
        calls.append(len(x))
        return vectors(x) + (0.4 if len(calls) > 4 else 0)

    report = gate(later_calls_differ)
    assert [refusal.code for refusal in report.refusals] == ["order_matters"]


def test_an_answer_that_depends_on_the_place_in_the_batch_is_refused():
    assert not gate(neighbors).passed


def test_a_right_engine_passes_and_its_report_is_plain_json():
    report = gate(lambda x: vectors(x) + 1e-6)
    assert report.passed
    assert report.batches == (1, 2, 8)
    assert [each.batch for each in report.comparisons] == [1, 2, 8]
    assert all(0 < each.max_abs < 1e-5 and each.cosine_min > 0.99999 for each in report.comparisons)
    assert json.loads(json.dumps(report.to_json()))["passed"] is True
    report.require("engine")


def test_lower_precision_has_wider_limits_but_not_for_what_is_wrong():
    coarse = gate(lambda x: vectors(x).astype(np.float16).astype(np.float32), precision="fp16")
    assert coarse.passed
    assert not gate(lambda x: vectors(x).astype(np.float16).astype(np.float32) + 0.02, precision="fp32").passed
    assert not gate(swap, precision="int8").passed
