"""How throughput grows with devices: the dispatcher as it is, on devices whose service times are made up.

Time is the simulation's own, so that 64 devices need none. The feeder is one thread that spends `feeder_s` on every
item, as `benchmarks/scheduler_overhead.py` measures it for the real one.

    python benchmarks/scaling.py [--feeder-us 40]
"""

from __future__ import annotations

import argparse
import heapq
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from facefleet.batching import BatchPolicy, LinearTime
from facefleet.workers.dispatch import Dispatcher
from facefleet.workers.placement import Placement, Rebalance, StageCosts, stage_parallel
from facefleet.workers.work import Batch, Payload, Work

Service = Callable[[str, float], float]
"""Stage and cost of a batch -> seconds."""


@dataclass
class Simulation:
    """Devices, a feeder and the real dispatcher, under a clock of its own.

    Attributes:
        dispatcher: The real one.
        service: Name of a device -> its service time.
        feeder_s: Seconds the feeder spends on an item.
        backlog: Items that the feeder keeps waiting.
        faces: Embedding works that a detected item becomes; 0: none.
    """

    dispatcher: Dispatcher
    service: Mapping[str, Service]
    feeder_s: float
    backlog: int
    faces: int = 0
    now: float = 0.0
    done: dict[str, int] = field(default_factory=dict)
    times: dict[str, LinearTime] = field(default_factory=dict)
    finished_at: list[float] = field(default_factory=list)
    _events: list[tuple[float, int, str, Batch | None]] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _held: dict[str, list[Batch]] = field(default_factory=dict)
    _open: dict[int, list[int]] = field(default_factory=dict)

    def run(self, first: str, until: float) -> None:
        """Feed the first stage for so many seconds."""
        self._at(self.now, "feed", None)
        while self._events and self._events[0][0] <= until:
            self.now, _, kind, batch = heapq.heappop(self._events)
            if kind == "feed":
                if self.dispatcher.waiting(first) < self.backlog:
                    self.dispatcher.submit(Work(first, Payload(None), _ignore), self.now)
                    self._at(self.now + self.feeder_s, "feed", None)
                else:
                    self._at(self.now + 10 * self.feeder_s, "feed", None)
            elif kind == "wake":
                pass
            elif batch is not None:
                self._finish(batch)
            self._send()
        self._events = [event for event in self._events if event[2] == "batch"]
        self.now = until

    def _send(self) -> None:
        for batch in self.dispatcher.dispatch(self.now):
            held = self._held.setdefault(batch.worker, [])
            held.append(batch)
            if len(held) <= self.dispatcher.seats[batch.worker].instances:
                self._begin(batch)
        wake = self.dispatcher.wake_at()
        if wake is not None and wake > self.now:
            self._at(wake, "wake", None)

    def _begin(self, batch: Batch) -> None:
        cost = sum(work.cost for work in batch.works)
        stage = batch.works[0].stage
        seconds = self.service[batch.worker](stage, cost)
        self.times.setdefault(stage, LinearTime()).add(cost, seconds)
        self._at(self.now + seconds, "batch", batch)

    def _finish(self, batch: Batch) -> None:
        for work in batch.works:
            assert self.dispatcher.finished(batch.worker, batch.number, work.number) is work
            self.done[work.stage] = self.done.get(work.stage, 0) + 1
            if work.stage == "detect" and self.faces:
                left = [self.faces]
                for _ in range(self.faces):
                    self.dispatcher.submit(Work("embed", Payload(left), _ignore), self.now)
            elif work.stage == "embed":
                work.payload.meta[0] -= 1
                if not work.payload.meta[0]:
                    self.finished_at.append(self.now)
            else:
                self.finished_at.append(self.now)
        held = self._held[batch.worker]
        held.remove(batch)
        seat = self.dispatcher.seats.get(batch.worker)
        if seat is not None and len(held) >= seat.instances:
            self._begin(held[seat.instances - 1])

    def _at(self, when: float, kind: str, batch: Batch | None) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), kind, batch))


def _ignore(_: object) -> None:
    return


def service(fixed_s: float, item_s: float, slower: float = 1.0) -> Service:
    """A fixed time a batch and one an item."""
    return lambda _stage, cost: slower * (fixed_s + item_s * cost)


def data_parallel_rate(slowness: list[float], *, feeder_s: float, seconds: float = 5.0) -> float:
    """Items a second of devices that are so many times slower than one of 16 ms a batch of 8."""
    policy = BatchPolicy(8, 0.005)
    dispatcher = Dispatcher({"photo": policy})
    names = [f"gpu:{i}" for i in range(len(slowness))]
    for name in names:
        dispatcher.seat(name, "photo", instances=1, depth=2)
    services = {name: service(0.008, 0.001, slower=factor) for name, factor in zip(names, slowness, strict=True)}
    simulation = Simulation(dispatcher, services, feeder_s, backlog=32 * len(names))
    simulation.run("photo", seconds)
    return _rate(simulation, seconds)


def _rate(simulation: Simulation, seconds: float, start: float = 0.2) -> float:
    """Items a second after the first fifth."""
    begin = start * seconds
    return sum(at > begin for at in simulation.finished_at) / (seconds - begin)


DETECT_S, EMBED_FIXED_S, EMBED_S = 0.004, 0.001, 0.0006


def _stage_service(stage: str, cost: float) -> float:
    return DETECT_S * cost if stage == "detect" else EMBED_FIXED_S + EMBED_S * cost


def stage_simulation(placement: Placement, faces: int, *, feeder_s: float = 4e-5) -> Simulation:
    """Devices that detect or embed, for photos of so many faces."""
    policies = {"detect": BatchPolicy(1, 0.0), "embed": BatchPolicy(32, 0.05)}
    dispatcher = Dispatcher(policies, upstream={"embed": "detect"})
    devices = placement.detect + placement.embed
    for number in range(devices):
        dispatcher.seat(f"gpu:{number}", placement.stage_of(number), instances=1, depth=2)
    services = {f"gpu:{number}": _stage_service for number in range(devices)}
    return Simulation(dispatcher, services, feeder_s, backlog=16 * devices, faces=faces)


def stage_rate(placement: Placement, faces: int, seconds: float = 4.0) -> float:
    """Photos a second of a split that stays; work that piles up between the stages is not counted."""
    simulation = stage_simulation(placement, faces)
    _hold_back(simulation, seconds)
    return _rate(simulation, seconds)


def _hold_back(simulation: Simulation, seconds: float, step: float = 0.02) -> None:
    """Feed as a bounded pipeline does: no new photo while too many faces wait."""
    backlog = simulation.backlog
    while simulation.now < seconds - 1e-9:
        simulation.backlog = 0 if simulation.dispatcher.waiting("embed") > 64 * backlog // 16 else backlog
        simulation.run("detect", min(simulation.now + step, seconds))


def automatic_split(devices: int, faces: int) -> Placement:
    """What `Rebalance` comes to, from measured costs alone, starting with half of the devices each."""
    placement = stage_parallel(devices, StageCosts(1.0, 1.0, 1.0))
    balance = Rebalance(placement)
    for _ in range(12):
        simulation = stage_simulation(balance.placement, faces)
        _hold_back(simulation, 1.0)
        detect, embed = simulation.times["detect"], simulation.times["embed"]
        balance.look(StageCosts(detect.item_s(1), embed.item_s(32), embed.items / detect.items))
    return balance.placement


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--feeder-us", type=float, default=40.0)
    feeder_s = parser.parse_args().feeder_us * 1e-6
    single = data_parallel_rate([1.0], feeder_s=feeder_s)
    print(f"one device: {single:.0f} items/s; the feeder alone: {1 / feeder_s:.0f} items/s")
    print("devices   items/s   of linear")
    for devices in (1, 2, 4, 8, 16, 32, 48, 64):
        rate = data_parallel_rate([1.0] * devices, feeder_s=feeder_s)
        limit = "  (the feeder is the limit)" if rate > 0.9 / feeder_s else ""
        print(f"{devices:7d} {rate:9.0f} {rate / (devices * single):10.1%}{limit}")
    mixed = data_parallel_rate([1.0] * 7 + [4.0], feeder_s=feeder_s)
    print(f"eight devices, one 4 times slower: {mixed:.0f} items/s, {mixed / (7.25 * single):.1%} of the ideal")
    print("eight devices, stage-parallel: faces   automatic            best by search")
    for faces in (1, 4, 20):
        rates = {split: stage_rate(Placement(split, 8 - split), faces) for split in range(1, 8)}
        best = max(rates, key=lambda split: rates[split])
        auto = automatic_split(8, faces).detect
        print(
            f"{faces:36d}   {auto}+{8 - auto} {rates[auto]:8.0f}/s      {best}+{8 - best} {rates[best]:8.0f}/s"
            f"   {rates[auto] / rates[best]:.1%}"
        )


if __name__ == "__main__":
    main()
