"""kill -9 of the engine process under load: how long until answers come again, and at full speed; what clients see.

    FACEFLEET_DATA=... python benchmarks/server_recovery.py [--kills 5] [--devices cpu:0,1]

Sixteen clients ask in closed loops, each for a photo of its own whose answer is known from before. Shown for each kill:
seconds without an answer, seconds until half a second brought 90 % of the rate from before, and over all kills the
statuses; an answer that is not byte for byte the one from before, a lost connection or a status other than 200 and 503
ends it with exit code 1.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import psutil

from server_load import RAW, Serving

_CLIENTS = 16
_WINDOW_S = 0.5


class Clients:
    """Sixteen clients, until they are told to stop.

    Args:
        url: Of the server.
        bodies: A photo each.
    """

    def __init__(self, url: str, bodies: list[bytes]) -> None:
        self._url, self._bodies = url, bodies
        self.times: list[float] = []
        self.statuses: Counter[int] = Counter()
        self.wrong = 0
        self.stopped = False

    async def run(self) -> None:
        """Ask."""
        async with httpx.AsyncClient(timeout=60) as http:
            known = [(await self._post(http, body)).content for body in self._bodies]
            await asyncio.gather(*(self._one(http, *each) for each in zip(self._bodies, known, strict=True)))

    async def _post(self, http: httpx.AsyncClient, body: bytes) -> httpx.Response:
        return await http.post(self._url, content=body, headers=RAW)

    async def _one(self, http: httpx.AsyncClient, body: bytes, known: bytes) -> None:
        while not self.stopped:
            try:
                response = await self._post(http, body)
            except httpx.TransportError:
                self.statuses[0] += 1
                continue
            self.statuses[response.status_code] += 1
            if response.status_code == 200:
                self.times.append(time.monotonic())
                self.wrong += response.content != known
            else:
                await asyncio.sleep(0.05)

    def rate(self, since: float, until: float) -> float:
        """Answers a second in between."""
        return sum(since <= each < until for each in self.times) / (until - since)


async def measure(server: Serving, bodies: list[bytes], kills: int) -> dict[str, Any]:
    clients = Clients(f"{server.url}/v1/faces", bodies)
    asking = asyncio.create_task(clients.run())
    silent, full, rates = [], [], []
    for _ in range(kills):
        await asyncio.sleep(5.0)
        now = time.monotonic()
        rates.append(clients.rate(now - 3.0, now))
        engines = [
            each
            for each in psutil.Process(server.process.pid).children(recursive=True)
            if "resource_tracker" not in " ".join(each.cmdline())
        ]
        engines[0].kill()
        killed = time.monotonic()
        while time.monotonic() < killed + 120:
            await asyncio.sleep(0.05)
            now = time.monotonic()
            if now > killed + 1.0 + _WINDOW_S and clients.rate(now - _WINDOW_S, now) >= 0.9 * rates[-1]:
                break
        full.append(now - _WINDOW_S - killed)
        after = [each for each in clients.times if killed - 1.0 <= each <= now]
        silent.append(max(late - early for early, late in itertools.pairwise(after)))
    clients.stopped = True
    await asking
    return {
        "rate_before_per_s": statistics.median(rates),
        "silent_s": silent,
        "full_speed_s": full,
        "statuses": dict(clients.statuses),
        "wrong": clients.wrong,
    }


def main() -> None:
    from data_packs import write_pack
    from vs_insightface import DETECTOR, photos

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--devices", default="")
    options = parser.parse_args()
    data = Path(os.environ["FACEFLEET_DATA"]).resolve()
    bodies = [path.read_bytes() for path in photos(data)[:_CLIENTS]]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        command = ["--pack", str(write_pack(folder, data, DETECTOR, "mobilefacenet_half"))]
        command += ["--devices", options.devices] if options.devices else []
        with Serving(folder, *command) as server:
            found = asyncio.run(measure(server, bodies, options.kills))
    for key in ("silent_s", "full_speed_s"):
        print(f"{key}: median {statistics.median(found[key]):.2f}, most {max(found[key]):.2f}")
    print(json.dumps(found))
    raise SystemExit(bool(found["wrong"]) or not set(found["statuses"]) <= {200, 503})


if __name__ == "__main__":
    main()
