"""A machine that configurations can be tried on without one: threads, batches and photos under a clock of its own."""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass

from facefleet.batching import LatencyCurve
from facefleet.bench.tune.forecast import Costs
from facefleet.bench.tune.search import Measured
from facefleet.bench.tune.space import Choice, Layout, Space

THREADS = 4
FACES = (1, 4)
PHOTOS = 500
HOST_S = 0.004
_FIXED_S = {"fp32": (0.002, 0.002), "fast": (0.0012, 0.0012)}
_ITEM_S = {"fp32": (0.006, 0.004), "fast": (0.003, 0.002)}

SPACE = Space(
    layouts=[Layout("cpu", "auto", 1), Layout("cpu", "auto", 2), Layout("cpu", "auto", 4)],
    precisions=["fast", "fp32"],
    detects=(1, 4),
    embeds=(1, 4, 16),
    delays_ms=(0.0, 20.0),
    in_flights=(2, 4, 8, 16, 32),
)


def batch_s(stage: int, size: int, precision: str) -> float:
    """Seconds of a batch on one thread."""
    return _FIXED_S[precision][stage] + _ITEM_S[precision][stage] * size**0.92


def costs() -> dict[str, Costs]:
    """What the warm-up would have measured."""
    found = {}
    for precision in SPACE.precisions:
        curves = []
        for stage, bounds in enumerate((SPACE.detects, SPACE.embeds)):
            curve = LatencyCurve(bounds)
            for size in bounds:
                curve.seed(size, batch_s(stage, size, precision))
            curves.append(curve)
        found[precision] = Costs(curves[0], curves[1], HOST_S, sum(FACES) / len(FACES))
    return found


@dataclass(slots=True)
class _Photo:
    began: float
    faces: int


class Machine:
    """Runs one configuration after the other; every run has noise of its own.

    Args:
        seed: Of the noise: the machine as a whole is 3 % faster or slower a run, single batches by 10 %.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.runs = 0

    def measure(self, choice: Choice) -> Measured:
        """A closed loop of so many photos."""
        self.runs += 1
        return simulate(choice, self._random)


def simulate(choice: Choice, noise: random.Random, photos: int = PHOTOS) -> Measured:
    """Photos through host work, detection and embedding, on threads that networks share."""
    mood = math.exp(noise.gauss(0, 0.03))
    wide = max(1, THREADS // choice.layout.instances)  # threads a run of a network takes
    speed = wide**0.8  # they do not share work evenly
    free, now, done, started = THREADS, 0.0, 0, 0
    host: list[_Photo] = []
    detect: list[tuple[float, _Photo]] = []
    embed: list[tuple[float, _Photo]] = []
    left: dict[int, int] = {}
    events: list[tuple[float, int, str, list[_Photo], int]] = []
    latencies: list[float] = []
    count = 0

    def begin(at: float) -> None:
        nonlocal started
        host.append(_Photo(at, FACES[started % len(FACES)]))
        started += 1

    def push(kind: str, group: list[_Photo], seconds: float, threads: int) -> None:
        nonlocal free, count
        free -= threads
        count += 1
        seconds *= mood * math.exp(noise.gauss(0, 0.1))
        heapq.heappush(events, (now + seconds, count, kind, group, threads))

    def ready(queue: list[tuple[float, _Photo]], bound: int) -> bool:
        if not queue:
            return False
        more = bool(host) or bool(events)
        return len(queue) >= bound or not more or now - queue[0][0] >= choice.delay_ms / 1000

    def take(queue: list[tuple[float, _Photo]], bound: int) -> list[_Photo]:
        group = [photo for _, photo in queue[:bound]]
        del queue[:bound]
        return group

    for _ in range(choice.in_flight):
        begin(0.0)
    while done < photos:
        while free:
            if free >= wide and ready(embed, choice.embed):
                group = take(embed, choice.embed)
                push("embed", group, batch_s(1, len(group), choice.precision) / speed, wide)
            elif free >= wide and ready(detect, choice.detect):
                group = take(detect, choice.detect)
                push("detect", group, batch_s(0, len(group), choice.precision) / speed, wide)
            elif host:
                push("host", [host.pop(0)], HOST_S, 1)
            else:
                break
        if not events:
            now += 0.001
            continue
        due = min((queue[0][0] + choice.delay_ms / 1000 for queue in (detect, embed) if queue), default=math.inf)
        if free >= wide and now < due < events[0][0]:
            now = due
            continue
        now, _, kind, group, threads = heapq.heappop(events)
        free += threads
        for photo in group:
            if kind == "host":
                detect.append((now, photo))
            elif kind == "detect":
                left[id(photo)] = photo.faces
                embed += [(now, photo)] * photo.faces
            else:
                left[id(photo)] -= 1
                if not left[id(photo)]:
                    latencies.append(now - photo.began)
                    done += 1
                    begin(now)
    ordered = sorted(latencies)
    return Measured(done / now, ordered[len(ordered) // 2], ordered[int(0.99 * len(ordered))], 2**30, now)
