"""From an ONNX graph to a TensorRT plan.

Owns the builder's configuration and the checks before it. Networks are strongly typed in every version: precision is
what the graph says. Runs in the calling thread; without a GPU where the compute capabilities are named (RTX).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from facefleet.backends.tensorrt.binding import Binding, load_binding
from facefleet.errors import BackendError, BackendUnavailableError, ConfigError, GraphError, ProfileError

_log = logging.getLogger(__name__)

Shape = tuple[int, ...]
Shapes = tuple[Shape, Shape, Shape]
"""(min, opt, max)."""
POOLS = {
    "workspace": "WORKSPACE",
    "dla_managed_sram": "DLA_MANAGED_SRAM",
    "dla_local_dram": "DLA_LOCAL_DRAM",
    "dla_global_dram": "DLA_GLOBAL_DRAM",
    "tactic_dram": "TACTIC_DRAM",
    "tactic_shared_memory": "TACTIC_SHARED_MEMORY",
}
"""Memory pools by the names that trtexec gives them."""


@dataclass(frozen=True, slots=True)
class TensorRtOptions:
    """How to build.

    Attributes:
        profiles: Optimization profiles: for each, input name -> (min, opt, max) shape.
        pools: Memory pool -> bytes; see `POOLS`.
        timing_cache: File of tactic timings, read and written; None: none. TensorRT-RTX times nothing.
        detailed: Whether layer names and shapes are kept in the plan, for inspection and timelines.
        hardware_compatible: Whether the plan runs on every GPU of Ampere and later (TensorRT), somewhat slower.
        compute_capabilities: Targets of TensorRT-RTX, e.g. ((8, 6), (8, 9)); empty: the GPU of this machine.
        level: Optimization level 0 to 5; None: the builder's own.
    """

    profiles: tuple[Mapping[str, Shapes], ...]
    pools: Mapping[str, int] = field(default_factory=dict)
    timing_cache: Path | None = None
    detailed: bool = False
    hardware_compatible: bool = False
    compute_capabilities: tuple[tuple[int, int], ...] = ()
    level: int | None = None


def build_plan(model: Path | bytes, options: TensorRtOptions, binding: Binding | None = None) -> bytes:
    """Build.

    Args:
        model: ONNX file, or its content where the weights are inside.
        options: How.
        binding: TensorRT; found by itself.

    Returns:
        The serialized engine.

    Raises:
        GraphError: The parser refuses a node; it is named.
        ProfileError: A profile contradicts itself or the network; it says which dimension.
        ConfigError: An option is unknown, or TensorRT refuses its value.
        BackendError: The builder failed.
        BackendUnavailableError: TensorRT is not installed, or cannot build on this machine.
    """
    trt = binding or load_binding()
    name = model.name if isinstance(model, Path) else "the graph"
    trt.errors()  # those of earlier builds
    builder = _builder(trt)
    network = builder.create_network(_flags(trt))
    parser = trt.module.OnnxParser(network, trt.logger)
    if not (parser.parse_from_file(str(model)) if isinstance(model, Path) else parser.parse(model)):
        raise GraphError(f"{name}: TensorRT {trt.version} refuses {_parser_errors(parser)}", hint=_hint(parser))
    if not network.num_inputs or not network.num_outputs:
        raise GraphError(f"{name}: not an ONNX file, or an empty graph", hint="check the file")
    config = builder.create_builder_config()
    _configure(trt, config, options)
    inputs = {network.get_input(i).name: tuple(network.get_input(i).shape) for i in range(network.num_inputs)}
    check_profiles(inputs, options.profiles)
    for shapes in options.profiles:
        _add_profile(trt, builder, config, shapes)
    cache = _timing_cache(trt, config, options.timing_cache)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise BackendError(f"TensorRT {trt.version} could not build {name}: {trt.errors() or 'no reason given'}")
    if cache is not None and options.timing_cache is not None:
        _write(options.timing_cache, bytes(cache.serialize()))
    return bytes(plan)


def check_profiles(inputs: Mapping[str, Shape], profiles: tuple[Mapping[str, Shapes], ...]) -> None:
    """Hold profiles against the inputs of a network, -1 being a free dimension.

    Raises:
        ProfileError: An input has no shapes, there is no such input, or a dimension is wrong.
    """
    if not profiles and any(size < 0 for shape in inputs.values() for size in shape):
        raise ProfileError(f"the network has free dimensions {dict(inputs)}", hint="give min, opt and max shapes")
    for number, profile in enumerate(profiles):
        where = f"profile {number}" if len(profiles) > 1 else "profile"
        if unknown := profile.keys() - inputs.keys():
            raise ProfileError(f"{where}: there is no input {min(unknown)!r}", hint=f"inputs are {', '.join(inputs)}")
        for name, shape in inputs.items():
            if name not in profile:
                raise ProfileError(f"{where}: input {name} has no shapes", hint=f"its dimensions are {shape}")
            _check_shapes(where, name, shape, profile[name])


def _check_shapes(where: str, name: str, shape: Shape, wanted: Shapes) -> None:
    for which, given in zip(("min", "opt", "max"), wanted, strict=True):
        if len(given) != len(shape):
            raise ProfileError(
                f"{where}: {which} of {name} has {len(given)} dimensions", hint=f"it has {len(shape)}: {shape}"
            )
    for axis, size in enumerate(shape):
        low, usual, high = (each[axis] for each in wanted)
        if size >= 0 and (low, usual, high) != (size, size, size):
            raise ProfileError(
                f"{where}: dimension {axis} of {name} is {low}/{usual}/{high}, the network's is fixed at {size}",
                hint=f"use {size}",
            )
        right = sorted((low, usual, high))
        if [low, usual, high] != right or low < 1:
            raise ProfileError(
                f"{where}: dimension {axis} of {name} has min {low}, opt {usual}, max {high}",
                hint=f"1 <= min <= opt <= max must hold, e.g. {', '.join(str(max(each, 1)) for each in right)}",
            )


def _builder(trt: Binding) -> Any:  # noqa: ANN401  # an IBuilder
    try:
        return trt.module.Builder(trt.logger)
    except (TypeError, RuntimeError) as error:  # the binding's way to say that there is none
        raise BackendUnavailableError(
            f"TensorRT {trt.version} has no builder here: {trt.errors() or error}",
            hint="TensorRT builds on a machine with a GPU only; TensorRT-RTX on any",
        ) from error


def _add_profile(trt: Binding, builder: Any, config: Any, shapes: Mapping[str, Shapes]) -> None:  # noqa: ANN401
    profile = builder.create_optimization_profile()
    try:
        for name, (least, usual, most) in shapes.items():
            profile.set_shape(name, least, usual, most)
    except ValueError as error:
        raise ProfileError(f"TensorRT refuses the profile {dict(shapes)}: {error}") from error
    if not profile or config.add_optimization_profile(profile) < 0:
        raise ProfileError(f"TensorRT refuses the profile {dict(shapes)}: {trt.errors() or 'no reason given'}")


def _flags(trt: Binding) -> int:
    """Strongly typed where that is a choice; TensorRT 11 knows nothing else."""
    flag = getattr(trt.module.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    return 0 if flag is None else 1 << int(flag)


def _configure(trt: Binding, config: Any, options: TensorRtOptions) -> None:  # noqa: ANN401  # an IBuilderConfig
    for name, size in options.pools.items():
        kind = getattr(trt.module.MemoryPoolType, POOLS.get(name, ""), None)
        if kind is None or size < 0:
            raise ConfigError(f"memory pool {name}={size}", hint=f"pools are {', '.join(POOLS)}; sizes are bytes")
        config.set_memory_pool_limit(kind, size)
        if config.get_memory_pool_limit(kind) != size:  # a size that is refused is only logged
            raise ConfigError(
                f"TensorRT refuses memory pool {name}={size}: {trt.errors() or 'no reason given'}",
                hint="leave it out, or give another size",
            )
    verbosity = trt.module.ProfilingVerbosity
    config.profiling_verbosity = verbosity.DETAILED if options.detailed else verbosity.LAYER_NAMES_ONLY
    if options.level is not None:
        if not 0 <= options.level <= 5:
            raise ConfigError(f"optimization level {options.level}", hint="use 0 to 5")
        config.builder_optimization_level = options.level
    if options.hardware_compatible:
        if trt.rtx:
            raise ConfigError("hardware compatibility with TensorRT-RTX", hint="name its compute capabilities instead")
        config.hardware_compatibility_level = trt.module.HardwareCompatibilityLevel.AMPERE_PLUS
    if options.compute_capabilities:
        _target(trt, config, options.compute_capabilities)


def _target(trt: Binding, config: Any, capabilities: tuple[tuple[int, int], ...]) -> None:  # noqa: ANN401
    if not trt.rtx:
        raise ConfigError(
            "compute capabilities with TensorRT", hint="it builds for the GPU of this machine; use hardware_compatible"
        )
    config.num_compute_capabilities = len(capabilities)
    for index, (major, minor) in enumerate(capabilities):
        capability = getattr(trt.module.ComputeCapability, f"SM{major}{minor}", None)
        if capability is None:
            known = [each for each in dir(trt.module.ComputeCapability) if each.startswith("SM")]
            raise ConfigError(
                f"compute capability {major}.{minor} is none of TensorRT-RTX {trt.version}",
                hint=f"known: {', '.join(known)}",
            )
        if not config.set_compute_capability(capability, index):
            raise BackendError(f"TensorRT-RTX refuses compute capability {major}.{minor}: {trt.errors()}")


def _timing_cache(trt: Binding, config: Any, path: Path | None) -> Any:  # noqa: ANN401  # an ITimingCache
    """The cache in use; TensorRT-RTX has none."""
    if path is None or trt.rtx:
        return None
    for content in (path.read_bytes() if path.is_file() else b"", b""):
        cache = config.create_timing_cache(content)
        if cache is not None and config.set_timing_cache(cache, ignore_mismatch=False):
            return cache
        if content:
            _log.warning("%s is of another version or device: timed anew", path)
    raise BackendError(f"TensorRT {trt.version} takes no timing cache: {trt.errors() or 'no reason given'}")


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all: builds may share the file."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_bytes(content)
    part.replace(path)


def _parser_errors(parser: Any) -> str:  # noqa: ANN401  # an OnnxParser
    found = []
    for index in range(min(parser.num_errors, 3)):
        error = parser.get_error(index)
        node, operator = (str(getattr(error, name, lambda: "")()) for name in ("node_name", "node_operator"))
        found.append(f"{operator or 'a node'} {node or error.node()}: {error.desc()}")
    return "; ".join(found) or "it, without a reason"


def _hint(parser: Any) -> str:  # noqa: ANN401
    texts = " ".join(parser.get_error(index).desc() for index in range(parser.num_errors))
    if "zero" in texts.lower() and "point" in texts.lower():
        return "its weights have zero points: fold them first with `facefleet convert`"
    return "convert the graph first with `facefleet convert`, or export it with other operators"
