"""What to expect of a configuration, from latency curves and a short look at the other stages.

Pure. A closed loop obeys Little's law (Operations Research 9(3), 1961): photos inside = throughput x mean latency.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from facefleet.batching import LatencyCurve
from facefleet.bench.tune.search import Forecast
from facefleet.bench.tune.space import Choice

_TAIL = 1.7
"""p99 over the mean, before anything was measured."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What a photo costs.

    Attributes:
        detect: Seconds a batch, by size, one run at a time.
        embed: Likewise.
        host_s: Of reading, decoding and aligning a photo, on one processor.
        faces: In a photo.
    """

    detect: LatencyCurve
    embed: LatencyCurve
    host_s: float
    faces: float


def forecast(
    choice: Choice, costs: Mapping[str, Costs], *, threads: int, accelerated: bool, offered: float = 0.0
) -> Forecast:
    """What a configuration should do.

    Args:
        choice: It.
        costs: Precision -> what a photo costs in it.
        threads: Processors.
        accelerated: Whether networks run beside the processors, on a card, and not on them.
        offered: Photos a second that come whatever happens; 0: as many as are answered (a closed loop).
    """
    cost = costs[choice.precision]
    inside = choice.in_flight
    faces = max(cost.faces, 1e-3)
    detect = min(choice.detect, inside)
    embed = max(1.0, min(choice.embed, inside * faces))
    detect_s = cost.detect.seconds(detect) / detect
    embed_s = cost.embed.seconds(round(embed)) / embed * faces
    alone_s = cost.host_s + cost.detect.seconds(1) + cost.embed.seconds(round(min(choice.embed, faces) or 1))
    if accelerated:
        card_s = (detect_s + embed_s) / max(1, len(choice.layout.devices.split(",")))
        capacity = 1 / max(cost.host_s / threads, card_s)
    else:
        capacity = threads / (cost.host_s + detect_s + embed_s)
    waits = choice.delay_ms / 1000 if choice.embed > faces * 2 or choice.detect > 1 else 0.0
    if offered:
        load = min(offered / capacity, 0.999)
        return Forecast(capacity, _TAIL * (alone_s + waits) / (1 - load))
    by_latency = inside / (alone_s + 0.2 * waits)
    # Between the two bounds a real system lies a little below both.
    rate = 1 / (capacity**-3 + by_latency**-3) ** (1 / 3)
    return Forecast(rate, _TAIL * inside / rate)
