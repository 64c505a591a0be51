"""Do streams that misbehave slow the healthy ones down?

GStreamer's RTSP server on the loopback interface, in a process of its own, encodes 25 frames a second for every
client. 24 healthy streams are watched alone, then together with 8 bad ones: two that end every 2 s, two that go
silent while the connection stays, two that change their resolution, two that are not there. One engine analyzes 5
frames a second of each. Prints the rates of the healthy streams, and one line of JSON; ends with 1 if the slowest
healthy stream fell below 90 % of what the slowest was alone.

    python benchmarks/video_streams.py [--seconds 60] [--good 24] [--fps 5]

Needs Debian's gir1.2-gst-rtsp-server-1.0, the good and ugly plugins of GStreamer 1.0, and python3-gi.
"""

from __future__ import annotations

import argparse
import json
import logging
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np

from facefleet import Engine, Settings
from facefleet.config import DetectSettings
from facefleet.jobs.video import VideoOptions, WatchResult, open_embedder, watch
from facefleet.sources.video import Sampling, StreamOptions

SERVER = Path(__file__).resolve().parents[1] / "tests/unit/sources/video/rtsp_server.py"
BAD = ("cut", "stall", "resize")
WARM_UP_S = 8.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def measured(addresses: list[str], engine: Any, embed: Any, fps: float, seconds: float) -> dict[str, Any]:  # noqa: ANN401
    """Watch; frames a second and dropped frames of every stream, from when all had time to open."""
    at: list[dict[str, tuple[int, int]]] = []
    stop = threading.Event()
    result: list[WatchResult] = []
    with tempfile.TemporaryDirectory() as folder:
        thread = threading.Thread(
            target=lambda: result.append(
                watch(
                    addresses,
                    Path(folder),
                    engine,
                    embed,
                    options=VideoOptions(sampling=Sampling(fps=fps)),
                    stream_options=StreamOptions(read_timeout_s=3, most_wait_s=2),
                    stop=stop,
                    tell=lambda statuses: at.append({s.name: (s.frames, s.dropped) for s in statuses}),
                )
            )
        )
        thread.start()
        thread.join(WARM_UP_S + seconds)
        stop.set()
        thread.join()
    first, last = at[1], at[-2]  # `tell` is called every 5 s, and once at the end
    span = 5.0 * (len(at) - 3)
    rates = {name: (last[name][0] - first[name][0]) / span for name in last}
    dropped = {name: last[name][1] - first[name][1] for name in last}
    failures = {status.name: status.failures for status in result[0].streams}
    return {"rates": rates, "dropped": dropped, "failures": failures, "span_s": span}


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--good", type=int, default=24)
    parser.add_argument("--fps", type=float, default=5)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    port = free_port()
    server = subprocess.Popen(
        ["/usr/bin/python3", str(SERVER), str(port)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert server.stdout is not None
        if server.stdout.readline().strip() != "ready":
            sys.exit("GStreamer's RTSP server does not run here")
        base = f"rtsp://127.0.0.1:{port}"
        good = [f"{base}/good/{number}" for number in range(options.good)]
        bad = [f"{base}/{name}?{number}" for name in BAD for number in range(2)]
        bad += [f"rtsp://127.0.0.1:{free_port()}/none" for _ in range(2)]
        settings = Settings(detect=DetectSettings(sizes=(160,)))
        with Engine(settings) as engine, open_embedder(settings) as embed:
            alone = measured(good, engine, embed, options.fps, options.seconds)
            together = measured(good + bad, engine, embed, options.fps, options.seconds)
    finally:
        server.kill()
        server.communicate()
    report: dict[str, Any] = {"streams": len(good) + len(bad), "bad": len(bad), "span_s": together["span_s"]}
    for name, each in (("alone", alone), ("together", together)):
        rates = [each["rates"][address] for address in good]
        report[name] = {
            "slowest": round(min(rates), 2),
            "median": round(float(np.median(rates)), 2),
            "dropped": sum(each["dropped"][address] for address in good),
            "failures": sum(each["failures"][address] for address in good),
        }
    report["failures_of_bad"] = [together["failures"][address] for address in bad]
    print(json.dumps(report))
    sys.exit(report["together"]["slowest"] < 0.9 * report["alone"]["slowest"])


if __name__ == "__main__":
    main()
