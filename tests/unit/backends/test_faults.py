"""Whose fault a failure of a device is."""

from __future__ import annotations

import pytest

from facefleet.backends.faults import FATAL, device_error
from facefleet.errors import DeviceLostError, InferenceError, OutOfMemoryError


@pytest.mark.parametrize(
    "message",
    [
        "CUDA error: an illegal memory access was encountered",
        "CUDA error: unspecified launch failure",
        "CUDA error: uncorrectable ECC error encountered",
        "CUDA error: device-side assert triggered",
        "CUDA error: misaligned address",
        "CUDA error: the launch timed out and was terminated",
        "CUDA error: all CUDA-capable devices are busy or unavailable",
    ],
)
def test_words_that_end_a_process(message: str) -> None:
    error = device_error("run", message=message)
    assert isinstance(error, DeviceLostError)
    assert error.retryable
    assert "CUDA error" in str(error)


@pytest.mark.parametrize("code", [700, 719, 214, 710])
def test_numbers_that_end_a_process(code: int) -> None:
    error = device_error("run", code=code)
    assert isinstance(error, DeviceLostError)
    assert str(code) in str(error)
    assert FATAL[code][0] in str(error)


@pytest.mark.parametrize(
    "message", ["CUDA out of memory. Tried to allocate 2 GiB", "std::bad_alloc", "Failed to alloc"]
)
def test_memory_is_the_batch_s(message: str) -> None:
    assert isinstance(device_error("run", message=message), OutOfMemoryError)
    assert isinstance(device_error("run", code=2), OutOfMemoryError)


def test_anything_else_is_one_run_s() -> None:
    error = device_error("torch failed on x", message="shapes do not fit")
    assert type(error) is InferenceError
    assert "shapes do not fit" in str(error)
    assert type(device_error("run", code=1)) is InferenceError
