"""Controllers of the batch against the best fixed setting found by search, in simulation: a table and plots.

Arrivals, service times and jitter follow from a seed, time is the simulation's own: the table is the same on every
machine. What the search for the best setting knows (the load that is to come), the controllers do not.

    python benchmarks/adaptive.py [--seconds 20] [--seed 0] [--plots FOLDER] [--random 80] [--processes 2]
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from adaptive_simulation import (
    DEVICES,
    Device,
    Load,
    Result,
    best_fixed,
    fixed,
    halving,
    loads,
    model_based,
    random_case,
    simulate,
)

TIMELINES = [("overhead", "bursty"), ("overhead", "ramp, over"), ("overhead", "drift"), ("gpu", "bursty, over")]


@dataclass(frozen=True)
class Row:
    """One load on one kind of device.

    Attributes:
        device: Its name.
        count: How many.
        target_s: The p99 to hold.
        load: Its name.
        setting: The best fixed bound and delay.
        holds: Whether it holds the target.
        best: What it does.
        rule: What the halving rule does.
        model: What the model-based controller does.
    """

    device: str
    count: int
    target_s: float
    load: str
    setting: tuple[int, float]
    holds: bool
    best: Result
    rule: Result
    model: Result

    @property
    def met(self) -> bool:
        """Whether the model-based controller does what it must."""
        late = self.holds and self.model.p99_s > 1.1 * self.target_s
        return not late and self.model.throughput >= 0.95 * self.best.throughput


def compare(device_name: str, load_name: str, seconds: float, seed: int) -> Row:
    """Search the best fixed setting, and run both controllers."""
    return _compare(DEVICES[device_name], loads(seconds)[load_name], seed)


def compare_random(number: int, seconds: float) -> Row:
    """The same for a drawn case; the search tries no delays, to be quick."""
    return _compare(*random_case(number, seconds), number, delays=(0.0,))


def _compare(device: Device, load: Load, seed: int, delays: tuple[float, ...] = (0.0, 0.1, 0.2, 0.4)) -> Row:
    setting, best, holds = best_fixed(device, load, seed, delays=delays)
    rule = simulate(device, load, halving(device), seed)
    model = simulate(device, load, model_based(device, seed), seed)
    return Row(device.name, device.count, device.target_s, load.name, setting, holds, best, rule, model)


def table(rows: list[Row]) -> str:
    """As text; milliseconds, items a second, device milliseconds an item."""
    lines = [
        f"{'':40s}|  best fixed                              |  halving rule              |  model-based",
        f"{'devices, target':15s}{'load':>25s}"
        f"|{'batch, delay':>14s}{'p50':>6s}{'p99':>7s}{'items/s':>8s}{'dev':>6s}"
        f" |{'p50':>6s}{'p99':>8s}{'items/s':>8s}{'dev':>6s}"
        f"|{'p50':>5s}{'p99':>7s}{'items/s':>8s}{'of best':>8s}{'dev':>6s}",
    ]
    for row in rows:
        size, delay_s = row.setting
        held = "" if row.holds else "  no fixed setting holds it"
        lines.append(
            f"{row.count} {row.device:8s}{1e3 * row.target_s:5.0f}{row.load:>25s}"
            f"|{size:5d}, {1e3 * delay_s:4.1f} ms{_numbers(row.best)}"
            f" |{_numbers(row.rule, 8)}|{_numbers(row.model, 7, 5, row.best)}{held}{'' if row.met else '  MISSED'}"
        )
    return "\n".join(lines)


def summary(rows: list[Row]) -> str:
    """The worst of all rows, in a few lines."""
    held = [row for row in rows if row.holds]
    return (
        f"{len(rows)} loads, {len(held)} of them held by some fixed setting; of these "
        f"{sum(row.model.p99_s <= 1.1 * row.target_s for row in held)} held within 10 % model-based, "
        f"{sum(row.rule.p99_s <= 1.1 * row.target_s for row in held)} by the halving rule; the worst p99 over target "
        f"{max(row.model.p99_s / row.target_s for row in held):.2f} and "
        f"{max(row.rule.p99_s / row.target_s for row in held):.2f};\n"
        f"throughput over that of the best fixed setting, all loads: at least "
        f"{min(row.model.throughput / row.best.throughput for row in rows):.1%} and "
        f"{min(row.rule.throughput / row.best.throughput for row in rows):.1%}."
    )


def _numbers(result: Result, wide: int = 7, narrow: int = 6, best: Result | None = None) -> str:
    share = f"{result.throughput / best.throughput:8.1%}" if best else ""
    return (
        f"{1e3 * result.quantile_s(0.5):{narrow}.0f}{1e3 * result.p99_s:{wide}.0f}{result.throughput:8.0f}{share}"
        f"{result.item_ms:6.2f}"
    )


def plot_timeline(device: Device, load: Load, seed: int, file: Path) -> None:
    """Arrivals, bound, delay and latency over time, of both controllers."""
    pyplot = _pyplot()
    runs = {
        "halving rule": ("tab:orange", simulate(device, load, halving(device), seed)),
        "model-based": ("tab:blue", simulate(device, load, model_based(device, seed), seed)),
    }
    figure, (arrivals, bound, delay, latency) = pyplot.subplots(4, 1, sharex=True, figsize=(11, 9))
    counts, edges = np.histogram(load.arrivals(device.rate, seed), bins=int(load.seconds * 10))
    arrivals.stairs(counts * 10, edges, color="0.4")
    arrivals.axhline(device.rate, color="0.7", linestyle=":")
    arrivals.set_ylabel("arrivals a second\n(dotted: capacity)")
    for name, (color, result) in runs.items():
        times = [at for at, _, _ in result.policies] + [load.seconds]
        sizes = [size for _, size, _ in result.policies]
        delays = [1e3 * delay_s for _, _, delay_s in result.policies]
        bound.step(times, [*sizes, sizes[-1]], where="post", color=color, label=name)
        delay.step(times, [*delays, delays[-1]], where="post", color=color)
        at, latencies = np.array(result.answered_at), np.array(result.latencies_s)
        centers = np.arange(0.125, load.seconds, 0.25)
        places = [(at > center - 0.125) & (at <= center + 0.125) for center in centers]
        p99 = [1e3 * np.quantile(latencies[place], 0.99) if place.any() else np.nan for place in places]
        latency.plot(centers, p99, color=color, marker=".")
    bound.set_yscale("log", base=2)
    bound.set_ylabel("max_batch")
    bound.legend()
    delay.set_ylabel("max_delay (ms)")
    latency.axhline(1e3 * device.target_s, color="tab:red", linestyle="--", label="target")
    latency.set_yscale("log")
    latency.set_ylabel("p99 of 0.25 s (ms)")
    latency.legend()
    latency.set_xlabel("s")
    figure.suptitle(f"{device.name}, {load.name}: {device.count} devices")
    figure.tight_layout()
    figure.savefig(file, dpi=80)
    pyplot.close(figure)


def plot_tradeoff(device: Device, seconds: float, seed: int, file: Path) -> None:
    """The p99 against the throughput as a Poisson load rises: controllers and fixed settings."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(9, 6))
    levels = (0.1, 0.3, 0.5, 0.65, 0.8, 0.9, 0.97, 1.05)
    for size in device.buckets[:: 2 if len(device.buckets) > 5 else 1]:
        runs = [simulate(device, _poisson(level, seconds), fixed(device, size, 0.0), seed) for level in levels]
        _curve(axes, runs, f"fixed: {size}, no delay", color="0.6", linestyle=":", marker=f"${size}$")
    runs = [simulate(device, _poisson(level, seconds), halving(device), seed) for level in levels]
    _curve(axes, runs, "halving rule", color="tab:orange", marker="o")
    runs = [simulate(device, _poisson(level, seconds), model_based(device, seed), seed) for level in levels]
    _curve(axes, runs, "model-based", color="tab:blue", marker="o")
    axes.axhline(1e3 * device.target_s, color="tab:red", linestyle="--", label="target")
    axes.set_yscale("log")
    axes.set_xlabel("answered a second")
    axes.set_ylabel("p99 (ms)")
    axes.set_title(f"{device.name}: Poisson load from {levels[0]} to {levels[-1]} of capacity")
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(file, dpi=80)
    pyplot.close(figure)


def _curve(axes: Any, runs: list[Result], label: str, **style: str) -> None:  # noqa: ANN401 - matplotlib's
    axes.plot([run.throughput for run in runs], [1e3 * run.p99_s for run in runs], label=label, **style)


def _poisson(level: float, seconds: float) -> Load:
    return Load(f"poisson {level}", lambda _now, _end: level, seconds)


def _pyplot() -> Any:  # noqa: ANN401 - matplotlib's
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise SystemExit('plots need matplotlib: pip install "facefleet[bench]"') from error
    mpl.use("Agg")
    from matplotlib import pyplot

    return pyplot


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--random", type=int, default=0, help="so many drawn cases in place of the table's")
    parser.add_argument("--plots", type=Path)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    started = time.perf_counter()
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        if options.random:
            numbers = range(options.seed, options.seed + options.random)
            found = [pool.submit(compare_random, number, options.seconds) for number in numbers]
        else:
            cases = [(device, load) for device in DEVICES for load in loads(options.seconds)]
            found = [pool.submit(compare, device, load, options.seconds, options.seed) for device, load in cases]
        rows = [future.result() for future in found]
    print(table(rows))
    print(summary(rows), f"{time.perf_counter() - started:.0f} s")
    if options.plots:
        options.plots.mkdir(parents=True, exist_ok=True)
        for name, load in TIMELINES:
            file = options.plots / f"time-{name}-{load.replace(', ', '-').replace(' ', '-')}.png"
            plot_timeline(DEVICES[name], loads(options.seconds)[load], options.seed, file)
        for device in DEVICES.values():
            plot_tradeoff(device, options.seconds, options.seed, options.plots / f"tradeoff-{device.name}.png")


if __name__ == "__main__":
    main()
