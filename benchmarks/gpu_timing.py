"""Timing work of a CUDA device: recorded graphs by events, calls by the clock, and the limits of the card."""

from __future__ import annotations

import itertools
import statistics
import time
from typing import Any


def limits() -> dict[str, float]:
    """TFLOP/s of a 16-bit matrix product of 8192, after a rest and kept up, and TB/s of a copy, read and write."""
    import torch

    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.half) for _ in range(2))
    product = torch.empty_like(a)
    source = torch.ones(1 << 30, device="cuda")
    target = torch.empty_like(source)
    rested, kept = replay_ms(*captured(lambda: torch.mm(a, b, out=product)))
    copy, _ = replay_ms(*captured(lambda: torch.mul(source, 2, out=target)))
    return {
        "tflops": 2e-9 * 8192**3 / kept,
        "tflops_rested": 2e-9 * 8192**3 / rested,
        "tbytes_per_s": 8 * (1 << 30) / copy / 1e9,
    }


def captured(work: Any) -> tuple[Any, Any]:  # noqa: ANN401
    """A CUDA graph of `work`, and its stream."""
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), torch.inference_mode():
        for _ in range(3):
            work()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            work()
    return graph, stream


def replay_ms(graph: Any, stream: Any, least_s: float = 0.7) -> tuple[float, float]:  # noqa: ANN401
    """Median milliseconds of a replay, by events: of the first ones after a rest, and kept up.

    A card at its power limit lowers its clock within milliseconds: the two differ where the device is really busy.
    """
    import torch

    def timed(count: int) -> list[float]:
        with torch.cuda.stream(stream):
            marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
            for mark in marks[:-1]:
                mark.record()
                graph.replay()
            marks[-1].record()
        stream.synchronize()
        return [a.elapsed_time(b) for a, b in itertools.pairwise(marks)]

    timed(3)
    bursts = []
    for _ in range(3):
        time.sleep(0.3)
        bursts += timed(5)
    times: list[float] = []
    started = time.perf_counter()
    while time.perf_counter() - started < least_s:
        times += timed(20)
    return statistics.median(bursts), statistics.median(times[len(times) // 2 :])


def device_state() -> dict[str, int]:
    """Clock in MHz, power in W and what holds the clock down (NVML's bits), now; empty without NVML."""
    found = _nvml()
    if found is None:
        return {}
    pynvml, handle = found
    return {
        "sm_mhz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
        "power_w": pynvml.nvmlDeviceGetPowerUsage(handle) // 1000,
        "limit_w": pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) // 1000,
        "held_by": pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
    }


def call_ms(work: Any, least_s: float = 0.5) -> float:  # noqa: ANN401
    for _ in range(3):
        work()
    times: list[float] = []
    started = time.perf_counter()
    while time.perf_counter() - started < least_s:
        before = time.perf_counter()
        work()
        times.append(time.perf_counter() - before)
    return 1e3 * statistics.median(times)


def device_ms(work: Any, turns: int = 20) -> float:  # noqa: ANN401
    """Median milliseconds of something launched again and again, by events."""
    import torch

    for _ in range(3):
        work()
    torch.cuda.synchronize()
    times: list[float] = []
    for _ in range(turns):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        work()
        last.record()
        torch.cuda.synchronize()
        times.append(first.elapsed_time(last))
    return statistics.median(times)


def utilization() -> int | None:
    """Per cent of the last moments in which the device ran something, by NVML; None without it."""
    found = _nvml()
    return None if found is None else int(found[0].nvmlDeviceGetUtilizationRates(found[1]).gpu)


def used_bytes() -> int | None:
    """Memory of the device in use by anybody, by NVML; None without it."""
    found = _nvml()
    return None if found is None else int(found[0].nvmlDeviceGetMemoryInfo(found[1]).used)


def _nvml() -> tuple[Any, Any] | None:
    """nvidia-ml-py and the first device; None without a driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except ImportError:
        return None
    except pynvml.NVMLError:
        return None
    return pynvml, pynvml.nvmlDeviceGetHandleByIndex(0)
