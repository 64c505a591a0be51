"""Runtimes for networks: tensors in, tensors out, no faces. Each backend stands alone; `registry` chooses one."""

from facefleet.backends.base import InputContract, Runner, RunnerOptions
from facefleet.backends.registry import BACKENDS, Choice, choose, create_runner, device_names

__all__ = ["BACKENDS", "Choice", "InputContract", "Runner", "RunnerOptions", "choose", "create_runner", "device_names"]
