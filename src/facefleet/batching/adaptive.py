"""A controller that moves `max_batch` and `max_delay_s` of a batcher to hold a latency target.

Owns what was seen of arrivals and batches, and the choice. Refuses clocks, locks and batchers: the caller hands in
times (of one clock that never goes back), tells what happened, and puts the policy that comes out into its batcher.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from facefleet.batching.arrivals import ArrivalTrace
from facefleet.batching.forecast import Forecast, Forecaster
from facefleet.batching.halving import RecentLatency, check_target
from facefleet.batching.latency import LatencyCurve
from facefleet.batching.policy import BatchPolicy

_BINS = 12
"""Bins of arrivals in a target: queues shorter than one are not seen."""


_LEAST_MEASURED = 200
"""A p99 of fewer items says little."""


class Controller(Protocol):
    """What a batcher's owner calls."""

    def observe_arrivals(self, count: int, now: float) -> None:
        """So many items came, accepted or not."""

    def observe_batch(self, size: int, service_s: float, latencies_s: Sequence[float], now: float) -> None:
        """A batch ended.

        Args:
            size: Its items.
            service_s: Seconds on the device.
            latencies_s: Of each item, from its arrival to now.
            now: The time.
        """

    def policy(self, now: float, *, pending: int = 0) -> BatchPolicy:
        """The policy from now on.

        Args:
            now: The time.
            pending: Items that wait in the batcher.
        """


@dataclass(frozen=True, slots=True)
class Tuning:
    """Constants of `ModelBased`; times are in targets where they have no unit.

    Attributes:
        aim: The forecast p99 may be so much of the target.
        window_s: Arrivals are remembered so long; several periods of bursts should fit.
        delays: Delays that are tried.
        same_rate: Capacities this close are held to be equal,
        headroom: if each leaves at least this share of what the greatest leaves above the demand: queues grow with the
            inverse of that.
        saving: A longer delay or another bound must save this share of the device's time.
        settle: Windows of `period_s` between two changes that are not urgent.
        period_s: Between two forecasts.
        recent_s: The rate of this moment is that of so many seconds.
    """

    aim: float = 0.85
    window_s: float = 20.0
    delays: tuple[float, ...] = (0.0, 0.1, 0.2, 0.4)
    same_rate: float = 0.05
    headroom: float = 0.75
    saving: float = 0.1
    settle: int = 3
    period_s: float = 0.5
    recent_s: float = 2.0


class ModelBased:
    """Chooses bound and delay from a forecast: known service times, and the arrivals of the last seconds replayed.

    Of the choices whose forecast p99 is within the target, it takes those of the greatest capacity; of these the one
    that spends the least device time an item (a delay fills batches, and a device that runs fewer batches has time
    for other stages); of these the fastest. Where none is within the target, it takes the fastest of those that serve
    what arrives. In overload, when the queue alone outlasts the target, load is the cause and not batch size, and it
    takes the greatest capacity.

    A choice stays until another is better by a margin for a while; it is left at once when it misses the target and
    another does not. What was measured of it counts where the forecast is darker, and corrects the next forecasts.

    Args:
        curve: Seconds a bucket, seeded by the warm-up; this object keeps it up to date.
        target_s: The p99 to hold.
        devices: How many work on this queue; may be set at any time.
        base: Other fields of the policies that come out; its delay is what holds while nothing is known.
        tuning: Constants.
    """

    def __init__(
        self,
        curve: LatencyCurve,
        *,
        target_s: float,
        devices: int = 1,
        base: BatchPolicy | None = None,
        tuning: Tuning | None = None,
    ) -> None:
        check_target(target_s)
        if devices < 1:
            raise ValueError(f"no devices: {devices}")
        self.curve = curve
        self.target_s = target_s
        self.devices = devices
        self.tuning = tuning or Tuning()
        self._base = base or BatchPolicy(curve.buckets[0], 0.0, preferred=curve.buckets)
        self._policy = self._base
        self._trace = ArrivalTrace(target_s / _BINS, self.tuning.window_s)
        self._latency = RecentLatency(self.tuning.window_s)
        self._overloaded = False
        self._off = 1.0
        self._measured_s = 0.0
        self._forecasts: list[Forecast] = []
        self._choice: Forecast | None = None
        self._changed = -math.inf
        self._next_forecast = self._next_look = -math.inf

    def observe_arrivals(self, count: int, now: float) -> None:
        """Count them."""
        self._trace.add(count, now)

    def observe_batch(self, size: int, service_s: float, latencies_s: Sequence[float], now: float) -> None:
        """Learn the service time, and what the latency really is."""
        if service_s > 0:
            self.curve.observe(size, service_s)
        self._latency.add(latencies_s, now)

    def policy(self, now: float, *, pending: int = 0) -> BatchPolicy:
        """The choice; the window is replayed once a period, the queue looked at twice a target."""
        if not self.curve.known:
            return self._base
        if now >= self._next_forecast:
            self._next_forecast = now + self.tuning.period_s
            self._measure(now)
            self._forecasts = Forecaster(self.curve, self.devices).all(
                self._trace.counts(now), self._trace.bin_s, [delay * self.target_s for delay in self.tuning.delays]
            )
            self._next_look = now
        if now >= self._next_look:
            self._next_look = now + self.target_s / 2
            self._choose(now, pending)
        return self._policy

    def _choose(self, now: float, pending: int) -> None:
        forecasts = [self._corrected(forecast, pending) for forecast in self._forecasts]
        demand = self._trace.rate(now, self.tuning.recent_s)
        queue_s = pending / max(forecast.rate for forecast in forecasts)
        self._overloaded = queue_s > self.target_s * (0.25 if self._overloaded else 1.0)
        best = self._best(forecasts, demand)
        current = self._find(forecasts)
        if current is not None and self._keeps(current, best, now, demand):
            best = current
        if current is None or not _same(best, current):
            self._changed = now
            self._measured_s = 0.0
            self._latency.clear()
            self._policy = replace(self._base, max_batch=best.max_batch, max_delay_s=best.max_delay_s)
        self._choice = best

    def _best(self, forecasts: Sequence[Forecast], demand: float) -> Forecast:
        """The choice of this moment, were there no earlier one."""
        fit = [forecast for forecast in forecasts if forecast.p99_s <= self._limit_s]
        fit = [forecast for forecast in fit if forecast.rate >= demand] or fit
        if not fit:
            return self._fastest(forecasts, demand)
        most = max(forecast.rate for forecast in fit)
        fit = [forecast for forecast in fit if forecast.rate >= self._as_good(most, demand)]
        eager = [forecast for forecast in fit if not forecast.max_delay_s] or fit
        cheap = min(forecast.item_s for forecast in eager)
        least_item_s = min(forecast.item_s for forecast in fit)
        if least_item_s > cheap * (1 - self.tuning.saving):
            return min(eager, key=lambda forecast: (forecast.p99_s, forecast.floor_s))
        near = [forecast for forecast in fit if forecast.item_s <= least_item_s * (1 + self.tuning.saving)]
        return min(near, key=lambda forecast: (forecast.p99_s, forecast.floor_s))

    def _fastest(self, forecasts: Sequence[Forecast], demand: float) -> Forecast:
        """Where nothing is within the target: in overload the most capacity, else the fastest that is not outrun."""
        most = max(forecast.rate for forecast in forecasts) * (1 - self.tuning.same_rate)
        enough = [
            forecast for forecast in forecasts if forecast.rate >= (most if self._overloaded else min(demand, most))
        ]
        if self._overloaded:
            return min(enough, key=lambda forecast: (forecast.max_delay_s, forecast.floor_s))
        least = min(forecast.p99_s for forecast in enough) * (1 + self.tuning.same_rate)
        near = [forecast for forecast in enough if forecast.p99_s <= least]
        return min(near, key=lambda forecast: (forecast.max_delay_s, forecast.floor_s))

    def _keeps(self, current: Forecast, best: Forecast, now: float, demand: float) -> bool:
        """Whether the present choice stays."""
        late = current.p99_s > self._limit_s
        same = self._as_good(best.rate, demand)
        if current.rate < (same if late and self._overloaded else min(demand, same)):
            return False
        if late:
            return self._overloaded or current.p99_s <= best.p99_s * (1 + self.tuning.saving)
        if now < self._changed + self.tuning.settle * self.tuning.period_s:
            return True
        more = current.rate < same
        cheaper = best.item_s < current.item_s * (1 - self.tuning.saving)
        faster = best.p99_s < current.p99_s * (1 - self.tuning.saving) and best.item_s <= current.item_s * 1.02
        return not (more or cheaper or faster)

    def _as_good(self, most: float, demand: float) -> float:
        """The least rate that counts as equal to `most`."""
        return max(most * (1 - self.tuning.same_rate), min(demand, most) + self.tuning.headroom * max(most - demand, 0))

    @property
    def _limit_s(self) -> float:
        return self.tuning.aim * self.target_s

    def _corrected(self, forecast: Forecast, pending: int) -> Forecast:
        """With what it was off by, not above what was measured, not below what the queue of this moment means."""
        p99_s = forecast.p99_s * self._off
        if self._measured_s and self._choice is not None and _same(forecast, self._choice):
            p99_s = min(p99_s, self._measured_s)
        ahead = pending // forecast.max_batch * forecast.max_batch
        now_s = ahead / forecast.rate + forecast.floor_s / self.curve.spread()
        return replace(forecast, p99_s=max(p99_s, now_s))

    def _find(self, forecasts: Sequence[Forecast]) -> Forecast | None:
        """The present choice as it is forecast now."""
        choice = self._choice
        return next((found for found in forecasts if choice is not None and _same(found, choice)), None)

    def _measure(self, now: float) -> None:
        """The p99 of the choice, once it has been tried for a while.

        The correction moves a tenth of the way, in logs, to what the last forecast was off by.
        """
        seen = self._find(self._forecasts)
        self._measured_s = 0.0
        if seen is None or now < self._changed + 4 * self.tuning.period_s or len(self._latency) < _LEAST_MEASURED:
            return
        self._measured_s = self._latency.p99_s(now)
        if self._measured_s:
            ratio = self._measured_s / (seen.p99_s * self._off)
            self._off = min(max(self._off * ratio**0.1, 0.7), 2.0)


def _same(one: Forecast, other: Forecast) -> bool:
    return (one.max_batch, one.max_delay_s) == (other.max_batch, other.max_delay_s)
