"""Which failure of a device is whose fault: the batch's, the memory's, or the end of this process' use of the device.

Owns the table of CUDA's errors after which a context answers nothing but errors (CUDA Runtime API, "Error handling":
errors that leave the process in an inconsistent state). Knows numbers and words only, so that no CUDA is needed.
"""

from __future__ import annotations

from facefleet.errors import BackendError, DeviceLostError, InferenceError, OutOfMemoryError

FATAL = {
    46: ("DevicesUnavailable", "busy or unavailable"),
    100: ("NoDevice", "no cuda-capable device"),
    214: ("ECCUncorrectable", "uncorrectable ecc error"),
    220: ("NvlinkUncorrectable", "uncorrectable nvlink error"),
    700: ("IllegalAddress", "illegal memory access"),
    702: ("LaunchTimeout", "launch timed out"),
    709: ("ContextIsDestroyed", "context is destroyed"),
    710: ("Assert", "device-side assert"),
    714: ("HardwareStackError", "hardware stack error"),
    715: ("IllegalInstruction", "illegal instruction"),
    716: ("MisalignedAddress", "misaligned address"),
    717: ("InvalidAddressSpace", "operation not supported on global/shared address space"),
    718: ("InvalidPc", "invalid program counter"),
    719: ("LaunchFailure", "unspecified launch failure"),
}
"""Number of a CUDA error -> its name without ``cudaError``, and words of its message."""
_OUT_OF_MEMORY = 2
_HINT = "a new process may use it again; see nvidia-smi and the system log (Xid) if it comes back"


def device_error(what: str, *, code: int | None = None, message: str = "") -> BackendError:
    """The error that a failure of a device is.

    Args:
        what: What was done, for the message.
        code: CUDA's number, where it is known.
        message: What the library said; decides where the number is not known.

    Returns:
        `DeviceLostError`, `OutOfMemoryError` or `InferenceError`, to be raised.
    """
    text = message.lower()
    if code is None:
        code = next((number for number, (_, words) in FATAL.items() if words in text), None)
    if code in FATAL:
        name = FATAL[code][0]
        return DeviceLostError(f"{what}: CUDA error {code} ({name}): the device is lost to this process", hint=_HINT)
    if code == _OUT_OF_MEMORY or "out of memory" in text or "alloc" in text:
        return OutOfMemoryError(f"{what}: no memory is left ({message or 'CUDA error 2'})", hint="use a smaller batch")
    return InferenceError(f"{what}: {message or f'CUDA error {code}'}")
