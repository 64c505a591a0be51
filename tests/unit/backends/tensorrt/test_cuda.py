"""The CUDA calls: what they answer where there is no device, and what is done with an answer."""

from __future__ import annotations

import enum

import pytest

from facefleet.backends.tensorrt.cuda import CudaRuntime
from facefleet.errors import BackendUnavailableError, DeviceLostError, InferenceError, OutOfMemoryError


class CODES(enum.IntEnum):
    """As cuda.bindings has them."""

    cudaSuccess = 0  # noqa: N815
    cudaErrorMemoryAllocation = 2  # noqa: N815
    cudaErrorIllegalAddress = 700  # noqa: N815
    cudaErrorStreamCaptureInvalidated = 901  # noqa: N815


class Answers:
    """`cuda.bindings.runtime`: every call succeeds, unless `wrong` has its name; calls are kept."""

    cudaError_t = CODES  # noqa: N815

    def __init__(self, **wrong):
        self.wrong, self.calls = wrong, []

    def __getattr__(self, name):
        def call(*values):
            self.calls.append(name)
            return (self.wrong.get(name, CODES.cudaSuccess), 7)

        return call


@pytest.fixture
def runtime():
    def made(**wrong):
        cuda = CudaRuntime.__new__(CudaRuntime)
        cuda._cuda, cuda._device = Answers(**wrong), 0
        return cuda

    return made


def test_no_device_or_no_bindings():
    """Also where there are devices: none has this number."""
    with pytest.raises(BackendUnavailableError, match=r"no CUDA device 4096|cuda.bindings is not installed"):
        CudaRuntime(4096)


def test_errors(runtime):
    with pytest.raises(OutOfMemoryError, match="no memory"):
        runtime(cudaMalloc=CODES.cudaErrorMemoryAllocation).alloc(5)
    with pytest.raises(InferenceError, match="cudaErrorStreamCaptureInvalidated"):
        runtime(cudaFree=CODES.cudaErrorStreamCaptureInvalidated).free(5)
    with pytest.raises(DeviceLostError, match="700"):
        runtime(cudaFree=CODES.cudaErrorIllegalAddress).free(5)


def test_a_recording_leaves_nothing_behind(runtime):
    cuda = runtime()
    assert cuda.end_capture(1) == 7
    cuda.destroy_graph(7)
    assert cuda._cuda.calls == [
        "cudaStreamEndCapture",
        "cudaGraphInstantiate",
        "cudaGraphDestroy",
        "cudaGraphExecDestroy",
    ]


@pytest.mark.parametrize("call", ["cudaStreamEndCapture", "cudaGraphInstantiate"])
def test_what_cannot_be_recorded_is_none_and_its_error_is_taken(runtime, call):
    cuda = runtime(**{call: CODES.cudaErrorStreamCaptureInvalidated})
    assert cuda.end_capture(1) is None
    assert cuda._cuda.calls[-1] == "cudaGetLastError"
    assert ("cudaGraphDestroy" in cuda._cuda.calls) == (call == "cudaGraphInstantiate")


def test_the_names_exist():
    runtime = pytest.importorskip("cuda.bindings.runtime", reason='pip install "facefleet[tensorrt]"')
    names = """GetDeviceCount SetDevice Malloc Free StreamCreateWithFlags StreamNonBlocking StreamDestroy MemcpyAsync
        MemcpyKind StreamSynchronize StreamCaptureMode StreamBeginCapture StreamEndCapture GraphInstantiate GraphDestroy
        GraphExecDestroy GraphLaunch GetLastError"""
    assert [name for name in names.split() if not hasattr(runtime, f"cuda{name}")] == []
