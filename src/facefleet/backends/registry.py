"""Which backend and precision to run on, and how to make a runner of it.

Owns the choice and says why. Heavy libraries are imported by the creators only.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from facefleet.backends.base import InputContract, Runner, RunnerOptions
from facefleet.config.settings import RuntimeSettings
from facefleet.errors import BackendUnavailableError, ConfigError


def _openvino(model: Path, contract: InputContract, options: RunnerOptions) -> Runner:
    from facefleet.backends.openvino import OpenVinoRunner

    return OpenVinoRunner(model, contract, options)


def _onnxruntime(model: Path, contract: InputContract, options: RunnerOptions) -> Runner:
    from facefleet.backends.onnxruntime import OnnxRuntimeRunner

    return OnnxRuntimeRunner(model, contract, options)


def _torch(model: Path, contract: InputContract, options: RunnerOptions) -> Runner:
    try:
        from facefleet.backends.torch.runner import TorchRunner
    except ImportError as error:
        raise BackendUnavailableError("torch is not installed", hint='pip install "facefleet[torch]"') from error
    return TorchRunner(model, contract, options)


def _tensorrt(model: Path, contract: InputContract, options: RunnerOptions) -> Runner:
    from facefleet.backends.tensorrt.run import TensorRtRunner

    return TensorRtRunner(model, contract, options)


BACKENDS: dict[str, Callable[[Path, InputContract, RunnerOptions], Runner]] = {
    "openvino": _openvino,
    "onnxruntime": _onnxruntime,
    "torch": _torch,
}
"""Creators by name, the preferred one first: what pictures are run on without anything being built before."""
BUILT: dict[str, Callable[[Path, InputContract, RunnerOptions], Runner]] = {**BACKENDS, "tensorrt": _tensorrt}
"""All creators; TensorRT runs only what was built for a profile."""
_INSTALL = {"torch": 'pip install "facefleet[torch]"'}


@dataclass(frozen=True, slots=True)
class Choice:
    """What to run on.

    Attributes:
        backend: Key of `BACKENDS`.
        device: ``cpu`` or ``cuda[:N]``.
        precision: The fastest precision allowed; ``bf16`` is still subject to the accuracy guard where `guarded`.
        guarded: Whether the precision was left to facefleet, so that a failed guard falls back to fp32.
        reason: Why, for the log.
    """

    backend: str
    device: str
    precision: Literal["fp32", "bf16", "fp16", "int8"]
    guarded: bool
    reason: str


def device_names(devices: str) -> tuple[str, ...]:
    """The devices that a setting names: ``cpu`` and ``auto`` are one, ``cuda`` is every GPU that is seen.

    Returns:
        ``cpu``, or names with a number each: ``cpu:0``, ``cuda:1``.

    Raises:
        BackendUnavailableError: ``cuda`` without PyTorch, or without a GPU.
        ConfigError: One is named twice, or a processor that this process may not use.
    """
    kind, _, numbers = devices.partition(":")
    if kind in ("auto", "cpu") and not numbers:
        return ("cpu",)
    wanted = [int(number) for number in numbers.split(",")] if numbers else list(range(_cuda_devices()))
    if len(set(wanted)) != len(wanted):
        raise ConfigError(f"runtime.devices={devices}: a device is named twice")
    if kind == "cpu" and hasattr(os, "sched_getaffinity"):
        allowed = os.sched_getaffinity(0)
        if missing := sorted(set(wanted) - allowed):
            raise ConfigError(
                f"runtime.devices={devices}: this process may not use processor {missing[0]}",
                hint=f"it may use {', '.join(map(str, sorted(allowed)))}",
            )
    return tuple(f"{kind}:{number}" for number in wanted)


def _cuda_devices() -> int:
    try:
        import torch
    except ImportError as error:
        raise BackendUnavailableError("torch is not installed", hint=_INSTALL["torch"]) from error
    count = int(torch.cuda.device_count())
    if not count:
        raise BackendUnavailableError("PyTorch sees no CUDA device", hint="see `facefleet doctor`, or devices=cpu")
    return count


def choose(settings: RuntimeSettings) -> Choice:
    """Settle backend, device and precision.

    Raises:
        BackendUnavailableError: What is asked for by name is not here; the message names what to install.
        ConfigError: Backend and precision contradict each other.
    """
    device = "cpu" if settings.devices == "auto" else settings.devices
    if device.startswith("cuda"):
        return _choose_cuda(settings, device)
    backend, reason = _backend(settings.backend)
    if settings.precision == "fp32":
        return Choice(backend, device, "fp32", False, f"{reason}; fp32 as asked for")
    if settings.precision == "int8":
        if not settings.engines:
            raise ConfigError(
                "runtime.precision=int8 without runtime.engines", hint="build with --precision int8 and name the folder"
            )
        return Choice(backend, device, "int8", False, f"{reason}; int8 as asked for")
    if settings.precision == "fp16":
        raise ConfigError("runtime.precision=fp16 on the CPU", hint="fp16 needs a CUDA device; use bf16, fp32 or auto")
    bf16 = backend == "openvino" and _cpu_has_bf16()
    if settings.precision == "bf16":
        if backend not in ("openvino", "torch"):
            raise ConfigError(
                f"runtime.precision=bf16 with runtime.backend={backend}",
                hint="openvino and torch run bf16; or use fp32",
            )
        require_bf16()
        return Choice(backend, device, "bf16", False, f"{reason}; bf16 as asked for")
    if bf16:
        return Choice(backend, device, "bf16", True, f"{reason}; the CPU has bf16, subject to the accuracy guard")
    return Choice(backend, device, "fp32", False, f"{reason}; fp32, no bf16 here")


def _choose_cuda(settings: RuntimeSettings, device: str) -> Choice:
    if settings.backend not in ("auto", "torch"):
        raise ConfigError(f"runtime.devices={device} with runtime.backend={settings.backend}", hint="use backend=torch")
    _backend("torch")
    reason = f"torch runs on {device}"
    if settings.precision == "int8":
        raise ConfigError(f"runtime.precision=int8 on {device}", hint="int8 runs on the CPU; use fp16 or auto")
    if settings.precision == "auto":
        return Choice("torch", device, "fp16", True, f"{reason}; fp16, subject to the accuracy guard")
    return Choice("torch", device, settings.precision, False, f"{reason}; {settings.precision} as asked for")


def _backend(wanted: str) -> tuple[str, str]:
    installed = [name for name in BACKENDS if importlib.util.find_spec(name) is not None]
    if wanted == "auto":
        if not installed:
            raise BackendUnavailableError("no backend is installed", hint='pip install "facefleet" again')
        return installed[0], f"{installed[0]} is the fastest backend installed"
    if wanted not in BACKENDS:
        raise ConfigError(f"runtime.backend={wanted!r}", hint=f"choose one of auto, {', '.join(BACKENDS)}")
    if wanted not in installed:
        raise BackendUnavailableError(
            f"backend {wanted} is not installed", hint=_INSTALL.get(wanted, f"pip install {wanted}")
        )
    return wanted, f"{wanted} as asked for"


def require_bf16() -> None:
    """Nothing where the CPU has bf16 instructions.

    Raises:
        BackendUnavailableError: It has none.
    """
    if not _cpu_has_bf16():
        raise BackendUnavailableError("this CPU has no bf16 instructions", hint="use precision=fp32 or auto")


def _cpu_has_bf16() -> bool:
    from facefleet.backends.openvino import capabilities

    return "BF16" in capabilities()


def create_runner(backend: str, model: Path, contract: InputContract, options: RunnerOptions) -> Runner:
    """A runner that is not open yet.

    Args:
        backend: Key of `BUILT`.
        model: Prepared ONNX file.
        contract: Its input.
        options: How to run.
    """
    return BUILT[backend](model, contract, options)
