"""The few CUDA calls that execution needs, through NVIDIA's `cuda.bindings`; a protocol, so that tests can fake it."""

from __future__ import annotations

from typing import Any, Protocol

from facefleet.backends.faults import device_error
from facefleet.errors import BackendUnavailableError


class Cuda(Protocol):
    """Memory, streams and graphs of one device. Addresses and handles are integers or opaque objects."""

    def activate(self) -> None:
        """Make this device the one of the calling thread; CUDA keeps that by the thread."""

    def alloc(self, size: int) -> int:
        """Device memory of `size` bytes."""

    def free(self, address: int) -> None:
        """Give it back."""

    def stream(self) -> Any:  # noqa: ANN401  # opaque
        """A new stream; ``int(stream)`` is its handle."""

    def destroy(self, stream: Any) -> None:  # noqa: ANN401
        """End a stream."""

    def copy_in(self, address: int, source: int, size: int, stream: Any) -> None:  # noqa: ANN401
        """Copy from the host, in the order of the stream."""

    def copy_out(self, target: int, address: int, size: int, stream: Any) -> None:  # noqa: ANN401
        """Copy to the host, in the order of the stream."""

    def synchronize(self, stream: Any) -> None:  # noqa: ANN401
        """Wait until everything in the stream is done."""

    def begin_capture(self, stream: Any) -> None:  # noqa: ANN401
        """Record what is put into the stream instead of running it."""

    def end_capture(self, stream: Any) -> Any:  # noqa: ANN401
        """The recording, ready to be launched; None where something in it cannot be recorded."""

    def destroy_graph(self, graph: Any) -> None:  # noqa: ANN401
        """Give a recording back."""

    def launch(self, graph: Any, stream: Any) -> None:  # noqa: ANN401
        """Run a recording."""


class CudaRuntime:
    """The CUDA runtime; see `Cuda`.

    Args:
        device: Number of the device.

    Raises:
        BackendUnavailableError: `cuda.bindings` or the device is missing.
    """

    def __init__(self, device: int = 0) -> None:
        try:
            from cuda.bindings import runtime
        except ImportError as error:
            raise BackendUnavailableError(
                "cuda.bindings is not installed", hint='pip install "facefleet[tensorrt]"'
            ) from error
        self._cuda = runtime
        code, count = runtime.cudaGetDeviceCount()
        if code != runtime.cudaError_t.cudaSuccess or device >= count:
            raise BackendUnavailableError(f"there is no CUDA device {device}", hint="see nvidia-smi")
        self._device = device
        self.activate()

    def activate(self) -> None:
        """See `Cuda`."""
        self._done(self._cuda.cudaSetDevice(self._device))

    def alloc(self, size: int) -> int:
        """See `Cuda`."""
        return int(self._done(self._cuda.cudaMalloc(max(size, 1)))[0])

    def free(self, address: int) -> None:
        """See `Cuda`."""
        self._done(self._cuda.cudaFree(address))

    def stream(self) -> Any:  # noqa: ANN401
        """See `Cuda`."""
        return self._done(self._cuda.cudaStreamCreateWithFlags(self._cuda.cudaStreamNonBlocking))[0]

    def destroy(self, stream: Any) -> None:  # noqa: ANN401
        """See `Cuda`."""
        self._done(self._cuda.cudaStreamDestroy(stream))

    def copy_in(self, address: int, source: int, size: int, stream: Any) -> None:  # noqa: ANN401
        """See `Cuda`."""
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._done(self._cuda.cudaMemcpyAsync(address, source, size, kind, stream))

    def copy_out(self, target: int, address: int, size: int, stream: Any) -> None:  # noqa: ANN401
        """See `Cuda`."""
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._done(self._cuda.cudaMemcpyAsync(target, address, size, kind, stream))

    def synchronize(self, stream: Any) -> None:  # noqa: ANN401
        """See `Cuda`."""
        self._done(self._cuda.cudaStreamSynchronize(stream))

    def begin_capture(self, stream: Any) -> None:  # noqa: ANN401
        """See `Cuda`."""
        mode = self._cuda.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self._done(self._cuda.cudaStreamBeginCapture(stream, mode))

    def end_capture(self, stream: Any) -> Any:  # noqa: ANN401
        """See `Cuda`."""
        success = self._cuda.cudaError_t.cudaSuccess
        code, graph = self._cuda.cudaStreamEndCapture(stream)
        if code != success:
            self._cuda.cudaGetLastError()  # else the next launch would be blamed for it
            return None
        code, ready = self._cuda.cudaGraphInstantiate(graph, 0)
        self._done(self._cuda.cudaGraphDestroy(graph))
        if code != success:
            self._cuda.cudaGetLastError()
            return None
        return ready

    def destroy_graph(self, graph: Any) -> None:  # noqa: ANN401
        """See `Cuda`."""
        self._done(self._cuda.cudaGraphExecDestroy(graph))

    def launch(self, graph: Any, stream: Any) -> None:  # noqa: ANN401
        """See `Cuda`."""
        self._done(self._cuda.cudaGraphLaunch(graph, stream))

    def _done(self, result: tuple[Any, ...]) -> tuple[Any, ...]:
        code, *rest = result
        if code != self._cuda.cudaError_t.cudaSuccess:
            raise device_error("TensorRT", code=int(code), message=code.name)
        return tuple(rest)
