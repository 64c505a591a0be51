"""What the HTTP server under FastAPI costs: uvicorn with h11, with httptools, and granian; the same application.

    python benchmarks/server_fronts.py [--rounds 3]     # pip install httptools granian for the other two

The application reads a body of 140 kB and answers three faces as JSON; sixteen clients in closed loops on the same
processors, each server in a process of its own, in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import socket
import statistics
import subprocess
import sys
import time
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response

SERVERS = {
    "uvicorn, h11": ["uvicorn", "--http", "h11", "--no-access-log", "--log-level", "error"],
    "uvicorn, httptools": ["uvicorn", "--http", "httptools", "--no-access-log", "--log-level", "error"],
    "granian": ["granian", "--interface", "asgi", "--workers", "1", "--no-ws", "--log-level", "error"],
}
NEEDS = {"uvicorn, httptools": "httptools", "granian": "granian"}
app = FastAPI()
_FACE = {"box": [1.5, 2.5, 3.5, 4.5], "score": 0.9, "embedding": [0.0123456] * 128}


@app.post("/v1/faces")
async def faces(request: Request) -> Response:
    await request.body()
    return Response(json.dumps({"faces": [_FACE] * 3}), media_type="application/json")


def measure(command: list[str], seconds: float) -> float:
    """Answers a second."""
    from facefleet.bench.load.connection import Target
    from facefleet.bench.load.generator import Generator

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = [sys.executable, "-m", *command, "--host", "127.0.0.1", "--port", str(port), "server_fronts:app"]
    process = subprocess.Popen(arguments, cwd=__file__.rpartition("/")[0] or ".")
    try:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                with socket.create_connection(("127.0.0.1", port), 1):
                    break
            except OSError:
                time.sleep(0.1)

        async def go() -> Any:  # noqa: ANN401  # Sent
            target = Target.of(f"http://127.0.0.1:{port}/v1/faces")
            body, kind = [bytes(140_000)], {"Content-Type": "application/octet-stream"}
            return await Generator(target, body, [0], kind).closed(16, seconds)

        asyncio.run(go())
        sent = asyncio.run(go())
        return float(len(sent.latencies_s) / sent.seconds)
    finally:
        process.terminate()
        process.wait(30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    present = [name for name in SERVERS if name not in NEEDS or importlib.util.find_spec(NEEDS[name])]
    rates: dict[str, list[float]] = {name: [] for name in present}
    for _ in range(options.rounds):
        for name in present:
            rates[name].append(measure(SERVERS[name], options.seconds))
    base = rates["uvicorn, h11"]
    for name, values in rates.items():
        ratio = statistics.median(a / b for a, b in zip(values, base, strict=True))
        print(f"{name:20} {statistics.median(values):8.0f} requests/s {ratio:6.2f}")
    print(json.dumps(rates))


if __name__ == "__main__":
    main()
