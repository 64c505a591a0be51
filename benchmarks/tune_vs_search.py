"""`facefleet tune` against measuring everything on the same grid, and how many measurements that saves.

    python benchmarks/tune_vs_search.py [--targets-ms 60 120 250] [--rounds 3] [--html tune.html]

The whole grid is measured in rounds, each in another order, with an engine per setting; the truth is the median of the
rounds. The tuner then sees, at every look at a configuration, the next of that configuration's real measurements, and
is judged by the truth.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
from collections import Counter
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

from facefleet import Engine, Settings
from facefleet.bench.drive import closed_loop
from facefleet.bench.page import chart_section, page
from facefleet.bench.stats import latencies
from facefleet.bench.svg import Chart, Series
from facefleet.bench.tune.forecast import forecast
from facefleet.bench.tune.search import Forecast, Measured, pareto, search
from facefleet.bench.tune.space import Choice, Layout, Space
from facefleet.bench.tune.trial import drawn_photos
from facefleet.bench.tune.tune import measured_costs, with_choice
from facefleet.config import available_threads, this_machine
from facefleet.types import EncodedImage, Faces, Outcome

Seen = dict[Choice, list[Measured]]
THREADS = available_threads()
FACES = (1, 4)


def grid(precisions: tuple[str, ...]) -> Space:
    return Space(
        layouts=[Layout("cpu", "auto", count) for count in sorted({1, THREADS})],
        precisions=precisions,
        detects=(1, 4),
        embeds=(1, 4, 16),
        delays_ms=(0.0,),
        in_flights=[THREADS * factor for factor in (1, 2, 4, 8, 16)],
    )


def measure_all(space: Space, settings: Settings, photos: tuple[bytes, ...], rounds: int, seconds: float) -> Seen:
    """Configuration -> its measurements, a round each."""
    images = [EncodedImage(data, f"photo {index}") for index, data in enumerate(photos)]
    groups: dict[Choice, list[Choice]] = {}
    for choice in space.choices():
        groups.setdefault(replace(choice, in_flight=max(space.in_flights)), []).append(choice)
    found: dict[Choice, list[Measured]] = {choice: [] for choice in space.choices()}
    order = random.Random(1)
    for number in range(rounds):
        for done, head in enumerate(order.sample(list(groups), len(groups))):
            tuned = with_choice(settings, head, THREADS)
            with Engine(replace(tuned, runtime=replace(tuned.runtime, status=False))) as engine:

                def submit(index: int, engine: Engine = engine) -> Future[Outcome[Faces]]:
                    return engine.submit(images[index % len(images)])

                closed_loop(submit, in_flight=4, seconds=0.0, warmup=len(images))
                for choice in order.sample(groups[head], len(groups[head])):
                    driven = closed_loop(submit, in_flight=choice.in_flight, seconds=seconds)
                    seen = latencies(driven.latencies_s)
                    found[choice].append(Measured(driven.images_per_s, seen.p50, seen.p99, 0, driven.seconds))
            print(f"\rround {number + 1}/{rounds}, {done + 1}/{len(groups)} engines ", end="", flush=True)
    print()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--targets-ms", nargs="*", type=float, default=[])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.2)
    parser.add_argument("--share", type=float, default=0.3)
    parser.add_argument("--precisions", nargs="*", default=["auto", "fp32"])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--html", type=Path)
    arguments = parser.parse_args()
    machine, load = this_machine(), os.getloadavg()[0]
    settings = Settings()
    space = grid(tuple(arguments.precisions))
    photos = drawn_photos(FACES)
    costs = measured_costs(settings, space, photos, sum(FACES) / len(FACES))
    started = time.perf_counter()
    seen = measure_all(space, settings, photos, arguments.rounds, arguments.seconds)
    took = time.perf_counter() - started
    rate = {choice: statistics.median(each.images_per_s for each in shots) for choice, shots in seen.items()}
    p99 = {choice: statistics.median(each.p99_s for each in shots) for choice, shots in seen.items()}
    noise = statistics.median(
        (max(each.images_per_s for each in shots) - min(each.images_per_s for each in shots)) / rate[choice]
        for choice, shots in seen.items()
    )
    targets = [value / 1000 for value in arguments.targets_ms] or [
        sorted(p99.values())[int(share * len(p99))] for share in (0.15, 0.4, 0.75)
    ]
    budget = int(arguments.share * len(seen))
    print(f"{machine.cpu}, {machine.threads} threads, load {load:.2f} before")
    print(
        f"{len(seen)} configurations, {arguments.rounds} rounds of {arguments.seconds} s in {took:.0f} s; "
        f"spread of a configuration's rounds: median {100 * noise:.1f} %"
    )

    def expected(choice: Choice) -> Forecast:
        return forecast(choice, costs, threads=THREADS, accelerated=False)

    charts, rows = [], []
    for target in targets:
        looks: Counter[Choice] = Counter()

        def measured(choice: Choice, looks: Counter[Choice] = looks) -> Measured:
            looks[choice] += 1
            return seen[choice][(looks[choice] - 1) % len(seen[choice])]

        held = [choice for choice in seen if p99[choice] <= target]
        best = max(held, key=lambda choice: rate[choice])
        found = search(list(seen), expected, measured, target_s=target, budget=budget)
        blind = max(seen, key=lambda choice: expected(choice).images_per_s * (expected(choice).p99_s <= target))
        assert found.best is not None, "the tuner found nothing that holds the target"
        mine = found.best.choice
        share = rate[mine] / rate[best] if p99[mine] <= target else 0.0
        used = found.measurements / len(seen)
        print(
            f"p99 {1000 * target:.0f} ms: {100 * share:.1f} % of the best with {100 * used:.0f} % of the measurements"
        )
        print(f"  exhaustive {rate[best]:7.1f}/s, p99 {1000 * p99[best]:6.1f} ms: {best.key}")
        print(f"  tuned      {rate[mine]:7.1f}/s, p99 {1000 * p99[mine]:6.1f} ms: {mine.key}")
        print(f"  forecast   {rate[blind]:7.1f}/s, p99 {1000 * p99[blind]:6.1f} ms: {blind.key}")
        rows.append(
            {"target_ms": 1000 * target, "share": share, "measurements": used, "best": best.key, "tuned": mine.key}
        )
        charts.append(
            Chart(
                f"p99 {1000 * target:.0f} ms: {100 * share:.1f} % with {100 * used:.0f} % of the measurements",
                "p99, ms",
                "images/s",
                [
                    Series("not measured", [(1000 * p99[c], rate[c]) for c in seen if not looks[c]], "points", color=7),
                    Series("measured by the tuner", [(1000 * p99[c], rate[c]) for c in looks], "points", color=0),
                    Series(
                        "Pareto front of these", [(1000 * t.p99_s, t.images_per_s) for t in pareto(found.tried)], "step"
                    ),
                    Series("chosen", [(1000 * p99[mine], rate[mine])], "points", color=1),
                    Series("best", [(1000 * p99[best], rate[best])], "points", color=5),
                    Series("", [(1000 * target, 0.0), (1000 * target, max(rate.values()))], "roof"),
                ],
                log_x=True,
            )
        )
    if arguments.html:
        arguments.html.write_text(
            page("facefleet tune against search", [machine.cpu], [chart_section("Targets", charts)])
        )
    if arguments.json:
        table = [
            {"key": c.key, "images_per_s": [m.images_per_s for m in s], "p99_s": [m.p99_s for m in s]}
            for c, s in seen.items()
        ]
        arguments.json.write_text(json.dumps({"machine": machine.as_json(), "targets": rows, "grid": table}))


if __name__ == "__main__":
    main()
