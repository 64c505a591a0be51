"""The real batcher and a controller on devices whose service times are made up, under a clock of the simulation's own.

Everything follows from a seed; nothing waits for real time.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from facefleet.batching import Batcher, BatchPolicy
from facefleet.batching.adaptive import Controller, ModelBased
from facefleet.batching.halving import HalvingRule
from facefleet.batching.latency import LatencyCurve

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Device:
    """A kind of device.

    Attributes:
        name: What to call it.
        buckets: Sizes that run without padding.
        seconds: Size -> usual seconds.
        target_s: The p99 to hold on it.
        best: The bucket whose capacity counts as 1.
        count: How many of them.
    """

    name: str
    buckets: tuple[int, ...]
    seconds: Callable[[int], float]
    target_s: float
    best: int
    count: int = 2

    @property
    def rate(self) -> float:
        """Items a second of all of them in batches of `best`."""
        return self.count * self.best / self.seconds(self.best)


DEVICES = {
    "overhead": Device("overhead", (1, 2, 4, 8, 16, 32, 64), lambda size: 0.008 + 0.001 * size, 0.1, 32),
    "gpu": Device("gpu", (1, 2, 4, 8, 16, 32, 64, 128), lambda size: max(0.01, 0.01 * size / 16), 0.06, 32),
    "cpu": Device("cpu", (1, 2, 4, 8, 16), lambda size: 0.0002 + 0.005 * size, 0.08, 8),
}
JITTER = 0.08
"""Standard deviation of the log of service times."""


@dataclass(frozen=True)
class Load:
    """Arrivals and what happens to the devices.

    Attributes:
        name: What to call it.
        shape: Share of the time that passed -> rate in units of the devices' capacity, at a time in seconds.
        seconds: How long.
        slower: Time -> how many times slower the devices are.
        bound: Most items that wait; more are turned away.
    """

    name: str
    shape: Callable[[float, float], float]
    seconds: float
    slower: Callable[[float, float], float] = lambda _now, _end: 1.0
    bound: int = 2000

    def arrivals(self, rate: float, seed: int) -> Floats:
        """Times of a Poisson process of this intensity, by thinning (Lewis and Shedler 1979)."""
        rng = np.random.default_rng(seed)
        top = max(self.shape(now, self.seconds) for now in np.linspace(0, self.seconds, 2000)) * rate
        times = np.cumsum(rng.exponential(1 / top, int(top * self.seconds * 1.2) + 200))
        times = times[times < self.seconds]
        keep = rng.random(len(times)) * top < np.array([self.shape(t, self.seconds) for t in times]) * rate
        return np.asarray(times[keep], dtype=np.float64)


def on_off(high: float, low: float, on_s: float, off_s: float) -> Callable[[float, float], float]:
    """Bursts of `on_s` seconds."""
    return lambda now, _end: high if now % (on_s + off_s) < on_s else low


def loads(seconds: float) -> dict[str, Load]:
    """The loads that are compared, so many seconds of each."""
    found = [
        Load("poisson 0.3", lambda _now, _end: 0.3, seconds),
        Load("poisson 0.6", lambda _now, _end: 0.6, seconds),
        Load("poisson 0.8", lambda _now, _end: 0.8, seconds),
        Load("poisson 0.9", lambda _now, _end: 0.9, seconds),
        Load("poisson 0.95", lambda _now, _end: 0.95, seconds),
        Load("bursty", on_off(0.85, 0.05, 0.6, 1.2), seconds),
        Load("bursty, over", on_off(1.15, 0.05, 0.3, 1.2), seconds),
        Load("ramp", lambda now, end: 0.1 + 0.75 * now / end, seconds),
        Load("ramp, over", lambda now, end: 0.2 + 1.2 * now / end, seconds),
        Load("drift", lambda _now, _end: 0.4, seconds, lambda now, end: 1.6 if now > end / 2 else 1.0),
    ]
    return {load.name: load for load in found}


def random_case(number: int, seconds: float) -> tuple[Device, Load]:
    """Devices, their count, target and load drawn with a seed: settings that nobody chose the constants for."""
    draw = random.Random(number)
    device = DEVICES[draw.choice(list(DEVICES))]
    count = draw.choice([1, 2] if device.name == "gpu" else [1, 2, 4])
    device = replace(device, count=count, target_s=device.target_s * draw.choice([0.7, 1.0, 1.5]))
    kind = draw.choice(["poisson", "bursty", "ramp", "drift"])
    if kind == "poisson":
        level = draw.uniform(0.2, 0.97)
        return device, Load(f"poisson {level:.2f}", lambda _now, _end: level, seconds)
    if kind == "bursty":
        high, on_s, off_s = draw.uniform(0.5, 1.5), draw.uniform(0.1, 1.0), draw.uniform(0.3, 2.0)
        return device, Load(f"bursty {high:.2f}, {on_s:.2f}/{off_s:.2f} s", on_off(high, 0.05, on_s, off_s), seconds)
    if kind == "ramp":
        last = draw.uniform(0.3, 1.0)
        return device, Load(f"ramp to {last:.2f}", lambda now, end: 0.05 + (last - 0.05) * now / end, seconds)
    level, slower = draw.uniform(0.2, 0.6), draw.uniform(0.6, 1.7)
    drift = Load(
        f"drift {level:.2f} x{slower:.2f}",
        lambda _now, _end: level,
        seconds,
        lambda now, end: slower if now > end / 2 else 1.0,
    )
    return device, drift


@dataclass
class Result:
    """What came of a run.

    Attributes:
        latencies_s: Of every answered item, in the order of answers.
        answered_at: When.
        seconds: How long items arrived.
        refused: Items turned away.
        busy_s: Device seconds.
        policies: When the policy changed: time, bound, delay.
    """

    latencies_s: list[float] = field(default_factory=list)
    answered_at: list[float] = field(default_factory=list)
    seconds: float = 0.0
    refused: int = 0
    busy_s: float = 0.0
    policies: list[tuple[float, int, float]] = field(default_factory=list)

    def quantile_s(self, quantile: float) -> float:
        """Latency that this share of the items does not exceed."""
        return float(np.quantile(self.latencies_s, quantile)) if self.latencies_s else math.inf

    @property
    def p99_s(self) -> float:
        """Over the whole run, its start included."""
        return self.quantile_s(0.99)

    @property
    def throughput(self) -> float:
        """Items a second, answered while items arrived."""
        return sum(at <= self.seconds for at in self.answered_at) / self.seconds

    @property
    def item_ms(self) -> float:
        """Device milliseconds an item."""
        return 1e3 * self.busy_s / max(len(self.latencies_s), 1)


class Fixed:
    """A policy that stays."""

    def __init__(self, policy: BatchPolicy) -> None:
        self._policy = policy

    def observe_arrivals(self, count: int, now: float) -> None:
        """Nothing to learn."""

    def observe_batch(self, size: int, service_s: float, latencies_s: object, now: float) -> None:
        """Nothing to learn."""

    def policy(self, now: float, *, pending: int = 0) -> BatchPolicy:
        """The same."""
        del now, pending
        return self._policy


def fixed(device: Device, max_batch: int, delay_s: float) -> Fixed:
    """A fixed setting."""
    return Fixed(BatchPolicy(max_batch, delay_s, preferred=device.buckets))


def halving(device: Device) -> HalvingRule:
    """The article's rule, started in the middle."""
    start = BatchPolicy(min(8, device.buckets[-1]), 0.005, preferred=device.buckets)
    return HalvingRule(start, target_s=device.target_s, max_batch=device.buckets[-1])


def model_based(device: Device, seed: int = 0) -> ModelBased:
    """Warmed up: each bucket ran nine times, as jittery as later."""
    rng = np.random.default_rng(1000 + seed)
    curve = LatencyCurve(device.buckets)
    for bucket in reversed(device.buckets):
        runs = device.seconds(bucket) * np.exp(rng.normal(0, JITTER, 9))
        curve.seed(bucket, float(np.median(runs)))
    return ModelBased(curve, target_s=device.target_s, devices=device.count)


def simulate(device: Device, load: Load, controller: Controller, seed: int = 0) -> Result:
    """Run a load to its end, and until its last item is answered.

    More items are always on their way, so delays are waited out.
    """
    arrivals = [float(at) for at in load.arrivals(device.rate, seed)] + [math.inf]
    jitter = np.exp(np.random.default_rng(seed + 1).normal(0, JITTER, len(arrivals)))
    result = Result(seconds=load.seconds)
    batcher: Batcher[float] = Batcher(controller.policy(0.0))
    running: list[tuple[float, int, float, list[float]]] = []
    idle, started, place = device.count, 0, 0
    while True:
        wake = batcher.wake_at() if idle else None
        now = min(arrivals[place], running[0][0] if running else math.inf, math.inf if wake is None else wake)
        if now == math.inf:
            return result
        while running and running[0][0] <= now:
            _, _, service_s, batch = heapq.heappop(running)
            idle += 1
            latencies = [now - at for at in batch]
            result.latencies_s += latencies
            result.answered_at += [now] * len(batch)
            controller.observe_batch(len(batch), service_s, latencies, now)
        if arrivals[place] <= now:
            place += 1
            controller.observe_arrivals(1, now)
            if len(batcher) < load.bound:
                batcher.add(now, now=now)
            else:
                result.refused += 1
        policy = controller.policy(now, pending=len(batcher))
        if policy != batcher.policy:
            batcher.policy = policy
        if not result.policies or result.policies[-1][1:] != (policy.max_batch, policy.max_delay_s):
            result.policies.append((now, policy.max_batch, policy.max_delay_s))
        while idle and (batch := batcher.take(now, expecting=now < load.seconds)):
            service_s = device.seconds(policy.padded(len(batch))) * float(jitter[started])
            service_s *= load.slower(now, load.seconds)
            heapq.heappush(running, (now + service_s, started, service_s, batch))
            started += 1
            idle -= 1
            result.busy_s += service_s


def best_fixed(
    device: Device, load: Load, seed: int = 0, *, delays: tuple[float, ...] = (0.0, 0.1, 0.2, 0.4)
) -> tuple[tuple[int, float], Result, bool]:
    """The best fixed setting: bound and delay, what it does, and whether it holds the target.

    Of those that hold the target, or of all where none does, the greatest throughput; within half a percent of it,
    the least p99.

    Args:
        device: The devices.
        load: The load.
        seed: Of arrivals and jitter.
        delays: In targets.
    """
    tried = {
        (size, delay * device.target_s): simulate(device, load, fixed(device, size, delay * device.target_s), seed)
        for size in device.buckets
        for delay in (delays if size > 1 else (0.0,))
    }
    return pick_best(tried, device.target_s)


def pick_best(tried: dict[tuple[int, float], Result], target_s: float) -> tuple[tuple[int, float], Result, bool]:
    """See `best_fixed`."""
    holding = {setting: result for setting, result in tried.items() if result.p99_s <= target_s}
    pool = holding or tried
    most = max(result.throughput for result in pool.values())
    near = [setting for setting, result in pool.items() if result.throughput >= 0.995 * most]
    setting = min(near, key=lambda one: pool[one].p99_s)
    return setting, pool[setting], bool(holding)
