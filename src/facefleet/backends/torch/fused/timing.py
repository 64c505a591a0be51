"""How long a launch takes, from replays of a CUDA graph of many: what a captured network will see of it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import torch

from facefleet.backends.torch.fused.triton_conv import Launch


def seconds_each(launches: Sequence[Launch], *, repeats: int = 5) -> float:
    """Median seconds of a launch.

    Args:
        launches: Captured one after another; the same work on different numbers, so that no cache holds them all.
        repeats: Replays that are timed.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for launch in launches[:2]:  # what is loaded at a first run is loaded
            launch()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Not `torch.cuda.graph`, which collects garbage and empties the cache at every use: nothing is allocated here.
        graph.capture_begin()
        try:
            for launch in launches:
                launch()
        finally:
            graph.capture_end()
        graph.replay()
        times: list[float] = []
        for _ in range(repeats):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record(stream)
            graph.replay()
            end.record(stream)
            end.synchronize()
            times.append(start.elapsed_time(end) / 1000)
    return statistics.median(times) / len(launches)
