"""Three times what the server can do, for a minute: what it refuses, what it keeps, and how soon it is well again.

    FACEFLEET_DATA=... python benchmarks/server_overload.py [--times 3] [--seconds 60] [--timeout-ms 2000]

Capacity is what 16 clients get in a closed loop; then requests come at random moments at three times that rate, each
with a deadline. Meanwhile another process asks for health, on the front and on the operator's lane, ten times a second,
and the memory of the server and its engine processes is read. Everything runs on the same processors, so the overload
takes processors from the server too. Ends with exit code 1 where one of these does not hold: every request answered by
200, 429 or 503; those with 200 within their deadline; health within 100 ms (p99; the slowest is shown); memory in the
last quarter no more than 10 % above the first; at least 90 % of the capacity in the third and fourth second after it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil

from server_load import RAW, Serving, closed


def probe(urls: list[str], until: float) -> None:
    """Ask for health ten times a second; prints the seconds of each answer as JSON."""
    found: dict[str, list[float]] = {url: [] for url in urls}
    while time.time() < until:
        for url in urls:
            started = time.perf_counter()
            with urlopen(url, timeout=30) as answer:
                answer.read()
            found[url].append(time.perf_counter() - started)
        time.sleep(0.1)
    print(json.dumps(list(found.values())))


class Memory(threading.Thread):
    """Bytes that a process and its children hold, read twice a second.

    Args:
        pid: The process.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._process = psutil.Process(pid)
        self.bytes: list[int] = []
        self.ended = threading.Event()

    def run(self) -> None:
        """Until `ended`."""
        while not self.ended.wait(0.5):
            family = [self._process, *self._process.children(recursive=True)]
            self.bytes.append(sum(each.memory_info().rss for each in family))


async def overload(url: str, bodies: list[bytes], due: list[float], timeout_ms: float) -> Any:  # noqa: ANN401
    from facefleet.bench.load.connection import Target
    from facefleet.bench.load.generator import Generator

    headers = {**RAW, "x-timeout-ms": f"{timeout_ms:g}"}
    generator = Generator(Target.of(url), bodies, range(len(bodies)), headers, connections=512, timeout_s=15.0)
    return await generator.open(due)


def rate_of(sent: Any) -> float:  # noqa: ANN401  # Sent
    return float(len(sent.latencies_s) / sent.seconds)


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    from data_packs import write_pack
    from facefleet.bench.load.schedule import poisson
    from facefleet.bench.stats import latencies
    from vs_insightface import DETECTOR, photos

    data = Path(os.environ["FACEFLEET_DATA"]).resolve()
    pack = options.pack or str(write_pack(folder, data, DETECTOR, "mobilefacenet_half"))
    paths = photos(data)
    random.Random(1).shuffle(paths)
    bodies = [path.read_bytes() for path in paths]
    with Serving(folder, "--pack", pack) as server:
        url = f"{server.url}/v1/faces"
        closed(url, bodies, 16, 3.0)
        capacity = rate_of(closed(url, bodies, 16, 6.0))
        due = poisson(options.times * capacity, options.seconds)
        health = [f"{server.url}/v1/health/live", f"{server.ops}/v1/health/live"]
        command = [sys.executable, __file__, "--probe", *health, "--until", str(time.time() + options.seconds)]
        prober = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        memory = Memory(server.process.pid)
        memory.start()
        sent = asyncio.run(overload(url, bodies, due, options.timeout_ms))
        memory.ended.set()
        first = rate_of(closed(url, bodies, 16, 2.0))
        after = rate_of(closed(url, bodies, 16, 2.0))
        later = rate_of(closed(url, bodies, 16, 6.0))
        front, lane = (latencies(each) for each in json.loads(prober.communicate()[0]))
    quarter = max(len(memory.bytes) // 4, 1)
    mean = [sum(part) / len(part) for part in (memory.bytes[:quarter], memory.bytes[-quarter:])]
    accepted = latencies(sent.services_s)
    return {
        "capacity_per_s": capacity,
        "offered_per_s": options.times * capacity,
        "planned": sent.planned,
        "statuses": dict(sorted(sent.statuses.items())),
        "accepted_per_s": rate_of(sent),
        "accepted_p50_ms": 1000 * accepted.p50,
        "accepted_max_ms": 1000 * accepted.max,
        "health_front_p99_ms": 1000 * front.p99,
        "health_front_max_ms": 1000 * front.max,
        "health_lane_p99_ms": 1000 * lane.p99,
        "health_lane_max_ms": 1000 * lane.max,
        "memory_first_quarter_mib": mean[0] / 2**20,
        "memory_last_quarter_mib": mean[1] / 2**20,
        "memory_most_mib": max(memory.bytes) / 2**20,
        "after_0_2s_of_capacity": first / capacity,
        "after_2_4s_of_capacity": after / capacity,
        "after_4_10s_of_capacity": later / capacity,
    }


def failures(found: dict[str, Any], timeout_ms: float) -> list[str]:
    """What does not hold."""
    checks = {
        "requests without an answer, or with another status": set(found["statuses"]) <= {200, 429, 503}
        and sum(found["statuses"].values()) == found["planned"],
        "answers after their deadline": found["accepted_max_ms"] <= timeout_ms,
        "health of the front above 100 ms": found["health_front_p99_ms"] <= 100,
        "health of the lane above 100 ms": found["health_lane_p99_ms"] <= 100,
        "memory grows": found["memory_last_quarter_mib"] <= 1.1 * found["memory_first_quarter_mib"],
        "not at full speed after 2 s": found["after_2_4s_of_capacity"] >= 0.9,
    }
    return [name for name, holds in checks.items() if not holds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=float, default=3.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--timeout-ms", type=float, default=2000.0)
    parser.add_argument("--pack", default="")
    parser.add_argument("--probe", nargs="*", default=[], help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, default=0.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.probe:
        probe(options.probe, options.until)
        return
    with tempfile.TemporaryDirectory() as folder:
        found = measure(options, Path(folder))
    for key, value in found.items():
        print(f"{key:28} {value:.2f}" if isinstance(value, float) else f"{key:28} {value}")
    failed = failures(found, options.timeout_ms)
    print(f"does not hold: {', '.join(failed)}" if failed else "all held")
    print(json.dumps(found))
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
