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
        same_rate: Capacities, and latencies where all are too long, this close are held to be equal.
        stress: The arrivals may become so much denser than those of the window.
        saving: A longer delay or another bound must save this share of the device's time.
        settle: Windows of `period_s` between two changes that are not urgent.
        period_s: Between two forecasts.
        recent_s: The rate of this moment is that of so many seconds.
    """

    aim: float = 0.85
    window_s: float = 20.0
    delays: tuple[float, ...] = (0.0, 0.1, 0.2, 0.4)
    same_rate: float = 0.05
    stress: float = 0.05
    saving: float = 0.1
    settle: int = 3
    period_s: float = 0.5
    recent_s: float = 2.0


class ModelBased:
    """Chooses bound and delay from a forecast: known service times, and the arrivals of the last seconds replayed.

    Of the choices whose forecast p99 is within the target, it takes those that keep it there if arrivals become
    denser (where none does, the one that stands most of that); of these the one that spends the least device time an
    item (a delay fills batches, and a device that runs fewer batches has time for other stages); of these the fastest
    under that stress. Where none is within the target, it takes the fastest of those that serve what arrives. In
    overload, when the queue alone outlasts the target, load is the cause and not batch size, and it takes the
    greatest capacity.

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
                self._trace.counts(now),
                self._trace.bin_s,
                [delay * self.target_s for delay in self.tuning.delays],
                stress=self.tuning.stress,
            )
            self._next_look = now
        if now >= self._next_look:
            self._next_look = now + self.target_s / 2
            self._choose(now, pending)
        return self._policy

    def _choose(self, now: float, pending: int) -> None:
        forecasts = [self._corrected(forecast, pending) for forecast in self._forecasts]
        moment = _Moment(
            now,
            pending,
            self._trace.rate(now, self.tuning.recent_s),
            self._trace.least_rate(now, self.tuning.recent_s),
        )
        if self._overloaded:  # until somebody could answer in time what comes now
            self._overloaded = min(self._behind_s(forecast, pending) for forecast in forecasts) > self.target_s
        else:
            self._overloaded = pending / max(forecast.rate for forecast in forecasts) > self.target_s
        best = self._best(forecasts, moment)
        current = self._find(forecasts)
        if current is not None and self._keeps(current, best, moment):
            best = current
        if current is None or not _same(best, current):
            self._changed = now
            self._measured_s = 0.0
            self._latency.clear()
            self._policy = replace(self._base, max_batch=best.max_batch, max_delay_s=best.max_delay_s)
        self._choice = best

    def _best(self, forecasts: Sequence[Forecast], moment: _Moment) -> Forecast:
        """The choice of this moment, were there no earlier one."""
        fit = [forecast for forecast in forecasts if forecast.p99_s <= self._limit_s]
        fit = [forecast for forecast in fit if forecast.rate >= moment.demand] or fit
        if not fit:
            return self._most(forecasts, moment) if self._overloaded else self._fastest(forecasts, moment)
        best = self._hardiest([forecast for forecast in fit if not forecast.max_delay_s] or fit)
        safe = [forecast for forecast in fit if forecast.risk_s <= self._limit_s]
        least_item_s = min((forecast.item_s for forecast in safe), default=math.inf)
        if least_item_s > best.item_s * (1 - self.tuning.saving):
            return best
        return self._hardiest([one for one in safe if one.item_s <= least_item_s * (1 + self.tuning.saving)])

    def _hardiest(self, forecasts: Sequence[Forecast]) -> Forecast:
        """The fastest under stress of those that stand it; where none does, what stands the most of it."""
        safe = [forecast for forecast in forecasts if forecast.risk_s <= self._limit_s]
        if safe:
            return min(safe, key=lambda forecast: (forecast.risk_s, -forecast.rate))
        return max(forecasts, key=lambda forecast: (self._stands(forecast), forecast.rate))

    def _stands(self, forecast: Forecast) -> float:
        """The share of the stress, up to 1, with which a forecast within the target is still within it."""
        if forecast.risk_s <= self._limit_s:
            return 1.0
        return (self._limit_s - forecast.p99_s) / (forecast.risk_s - forecast.p99_s)

    def _most(self, forecasts: Sequence[Forecast], moment: _Moment) -> Forecast:
        """In overload: the most capacity.

        A bound that is too slow for the target by itself helps only with a queue that is longer than its own batches
        would make it.
        """
        helpful = [
            forecast
            for forecast in forecasts
            if forecast.floor_s <= self.target_s or moment.pending > moment.demand * forecast.floor_s
        ]
        most = max(forecast.rate for forecast in helpful or forecasts) * (1 - self.tuning.same_rate)
        enough = [forecast for forecast in helpful or forecasts if forecast.rate >= most]
        return min(enough, key=lambda forecast: (forecast.max_delay_s, forecast.floor_s))

    def _fastest(self, forecasts: Sequence[Forecast], moment: _Moment) -> Forecast:
        """Where nothing is within the target: the fastest that is surely not outrun, and could ever hold the target."""
        most = max(forecast.rate for forecast in forecasts) * (1 - self.tuning.same_rate)
        enough = [forecast for forecast in forecasts if forecast.rate >= min(moment.sure, most)]
        enough = [forecast for forecast in enough if forecast.floor_s <= self.target_s] or enough
        least = min(forecast.p99_s for forecast in enough) * (1 + self.tuning.same_rate)
        near = [forecast for forecast in enough if forecast.p99_s <= least]
        return min(near, key=lambda forecast: (forecast.max_delay_s, forecast.floor_s))

    def _keeps(self, current: Forecast, best: Forecast, moment: _Moment) -> bool:
        """Whether the present choice stays."""
        same = best.rate * (1 - self.tuning.same_rate)
        if current.p99_s > self._limit_s:
            if current.rate < (same if self._overloaded else min(moment.sure, best.rate)):
                return False
            return self._overloaded or _burden_s(current) <= _burden_s(best) * (1 + self.tuning.saving)
        if current.rate < min(moment.demand, same):
            return False
        if moment.now < self._changed + self.tuning.settle * self.tuning.period_s:
            return True
        cheaper = best.item_s < current.item_s * (1 - self.tuning.saving)
        faster = best.risk_s < current.risk_s * (1 - self.tuning.saving)
        more, less = self._stands(best), self._stands(current)
        return not (more > less + self.tuning.saving or (more >= less and (cheaper or faster)))

    @property
    def _limit_s(self) -> float:
        return self.tuning.aim * self.target_s

    def _corrected(self, forecast: Forecast, pending: int) -> Forecast:
        """With what it was off by, not above what was measured, not below what the queue of this moment means."""
        p99_s = forecast.p99_s * self._off
        if self._measured_s and self._choice is not None and _same(forecast, self._choice):
            p99_s = min(p99_s, self._measured_s)
        p99_s = max(p99_s, self._behind_s(forecast, pending))
        return replace(forecast, p99_s=p99_s, risk_s=max(p99_s, forecast.risk_s * self._off))

    def _behind_s(self, forecast: Forecast, pending: int) -> float:
        """What an item takes that comes behind so many."""
        ahead = pending // forecast.max_batch * forecast.max_batch
        return ahead / forecast.rate + forecast.floor_s / self.curve.spread()

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


@dataclass(frozen=True, slots=True)
class _Moment:
    """What is going on.

    Attributes:
        now: The time.
        pending: Items that wait.
        demand: Arrivals a second, lately.
        sure: What they are at least, chance taken off.
    """

    now: float
    pending: int
    demand: float
    sure: float


def _burden_s(forecast: Forecast) -> float:
    """Of a choice that is too slow: with and without stress, where something is known of the arrivals."""
    return forecast.p99_s + (forecast.risk_s if forecast.risk_s < math.inf else forecast.p99_s)


def _same(one: Forecast, other: Forecast) -> bool:
    return (one.max_batch, one.max_delay_s) == (other.max_batch, other.max_delay_s)
