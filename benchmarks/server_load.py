"""The server under load, beside `facefleet extract` and beside what users write: the same photos, the same networks.

    FACEFLEET_DATA=... python benchmarks/server_load.py [--rounds 3] [--pack opencv] [--peer-python PYTHON]
        [--profile FILE --p99-ms 250 [--drawn 1,4]]

Rounds go through all contenders in turn: `extract` on a folder of the photos; the server with 16 and 64 clients in
closed loops; the same server with a batch of at most one; insightface behind FastAPI and uvicorn, as its users write
it (`--peer-python` has both installed; without it this contender is left out). Ratios are of one round, the figure is
their median. The clients run on the same processors as the server and are part of its cost. The default networks are
SCRFD-500m and MobileFaceNet, which insightface can run too; `--pack` names another pack, for facefleet alone.

With a profile of `facefleet tune`, the server that it sets is also asked at 80 % of the rate of closed loops with
`--users` clients, at random moments, and its p99 is held against the target; nothing but the profile sets its queue. A
profile belongs to its pack and to photos like those it was made with: give the same `--pack`, and tune with
`--photos identity --photos detection`, or ask for the drawn photos of `tune` by `--drawn`. `--only-profile` leaves
everything else out. A refused request or a p99 above the target ends it with exit code 1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

USERS = (16, 64)
RAW = {"Content-Type": "application/octet-stream"}


class Serving:
    """`facefleet serve` as a process of its own.

    Args:
        folder: For its log.
        options: Of the command.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        number = len(list(folder.glob("server-*.log")))
        self._log = folder / f"server-{number}.log"
        script = Path(sys.executable).with_name("facefleet")
        ports = ["--port", "0", "--ops-port", "0", "--grpc-port", "-1"]
        with self._log.open("w") as log:
            self.process = subprocess.Popen([str(script), "serve", *ports, *options], stdout=log, stderr=log)

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _said(self, pattern: str) -> str:
        until = time.monotonic() + 300
        while time.monotonic() < until and self.process.poll() is None:
            found = re.search(pattern, self._log.read_text())
            if found:
                return found[1]
            time.sleep(0.05)
        raise SystemExit(f"the server did not start:\n{self._log.read_text()}")

    @property
    def url(self) -> str:
        """Of the front, once it is ready."""
        return "http://" + self._said(r"ready: http (\S+)")

    @property
    def ops(self) -> str:
        """Of the operator's lane."""
        return "http://" + self._said(r"health and metrics (\S+)")

    def batches(self) -> dict[str, float]:
        """Batches of the embedder so far, by upper bound, cumulative; and ``sum``, the faces in them."""
        time.sleep(1.2)  # workers tell what they did with their heartbeat
        with urlopen(f"{self.ops}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        found = re.findall(r'facefleet_stage_batch_size_bucket\{le="(\S+?)",stage="embed"\} (\S+)', text)
        total = re.findall(r'facefleet_stage_batch_size_sum\{stage="embed"\} (\S+)', text)
        return {bound: float(count) for bound, count in found} | {"sum": float(total[0]) if total else 0.0}


def closed(url: str, bodies: list[bytes], users: int, seconds: float) -> Any:  # noqa: ANN401  # Sent, imported late
    """A closed loop over the photos in their order."""
    from facefleet.bench.load.connection import Target
    from facefleet.bench.load.generator import Generator

    async def go() -> Any:  # noqa: ANN401
        generator = Generator(Target.of(url), bodies, range(len(bodies)), RAW, timeout_s=60.0)
        return await generator.closed(users, seconds)

    sent = asyncio.run(go())
    if sent.failed:
        raise SystemExit(f"{url}: {dict(sent.statuses)}: requests failed")
    return sent


def extract(folder: Path, output: Path, options: list[str]) -> float:
    """Photos a second of the command, without the time in which it loads the models."""
    script = Path(sys.executable).with_name("facefleet")
    command = [str(script), "extract", str(folder), "-o", str(output), "--overwrite", "--summary", "-", *options]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}")
    return float(json.loads(done.stdout[done.stdout.index("{") :])["images_per_s"])


def serve_peer(data: Path, folder: Path) -> None:
    """FastAPI and insightface: what its users write, with the analysis in FastAPI's pool of threads."""
    import cv2
    import numpy as np
    import uvicorn
    from fastapi import FastAPI, Request
    from fastapi.concurrency import run_in_threadpool
    from insightface.app import FaceAnalysis

    from vs_insightface import DETECTOR

    models = folder / "models" / "peer"
    models.mkdir(parents=True, exist_ok=True)
    for source in (f"scrfd/{DETECTOR}.onnx", "mobilefacenet_diandianti/mobilefacenet.onnx"):
        (models / Path(source).name).symlink_to(data / "models" / source)
    analysis = FaceAnalysis(name="peer", root=str(folder), providers=["CPUExecutionProvider"])
    analysis.prepare(ctx_id=-1, det_size=(640, 640))
    app = FastAPI()

    def analyze(body: bytes) -> dict[str, Any]:
        image = cv2.imdecode(np.frombuffer(body, np.uint8), cv2.IMREAD_COLOR)
        return {
            "faces": [
                {
                    "box": face.bbox.tolist(),
                    "landmarks": face.kps.tolist(),
                    "score": float(face.det_score),
                    "embedding": face.normed_embedding.tolist(),
                }
                for face in analysis.get(image)
            ]
        }

    async def faces(request: Request) -> dict[str, Any]:
        return await run_in_threadpool(analyze, await request.body())

    faces.__annotations__["request"] = Request  # it is imported here, where FastAPI does not look for it
    app.post("/faces")(faces)
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ["PEER_PORT"]), log_level="warning")


@contextmanager
def peer_server(python: str, folder: Path) -> Iterator[str]:
    """The URL of `serve_peer` in a process of its own, under another interpreter."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [python, __file__, "--as-peer", "--folder", str(folder)]
    with (folder / "peer.log").open("w") as log:
        process = subprocess.Popen(command, env={**os.environ, "PEER_PORT": str(port)}, stdout=log, stderr=log)
    try:
        until = time.monotonic() + 120
        while time.monotonic() < until and process.poll() is None:
            try:
                with socket.create_connection(("127.0.0.1", port), 1):
                    break
            except OSError:
                time.sleep(0.1)
        else:
            raise SystemExit(f"the peer did not start:\n{(folder / 'peer.log').read_text()}")
        yield f"http://127.0.0.1:{port}/faces"
    finally:
        process.terminate()
        process.wait(30)


def p99_at_80(url: str, bodies: list[bytes], seconds: float, users: int) -> dict[str, Any]:
    """Capacity with as many clients as a device takes photos, then p99 at random arrivals of 80 % of it."""
    from facefleet.bench.load.connection import Target
    from facefleet.bench.load.generator import Generator
    from facefleet.bench.load.schedule import poisson
    from facefleet.bench.stats import latencies

    sent = closed(url, bodies, users, seconds)
    capacity = len(sent.latencies_s) / sent.seconds

    async def go() -> Any:  # noqa: ANN401
        generator = Generator(Target.of(url), bodies, range(len(bodies)), RAW, timeout_s=60.0)
        return await generator.open(poisson(0.8 * capacity, 3 * seconds))

    sent = asyncio.run(go())
    found = latencies(sent.latencies_s)
    return {
        "clients": users,
        "capacity_per_s": capacity,
        "offered_per_s": 0.8 * capacity,
        "answers_per_s": len(sent.latencies_s) / sent.seconds,
        "statuses": dict(sent.statuses),
        "refused": sent.failed / sent.planned,
        "p50_ms": 1000 * found.p50,
        "p99_ms": 1000 * found.p99,
    }


def histogram(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """Batches between two looks, by upper bound, and the mean."""
    counts = {bound: after[bound] - before.get(bound, 0.0) for bound in after}
    faces, total = counts.pop("sum"), counts.get("+Inf", 0.0)
    plain, below = {}, 0.0
    for bound, count in counts.items():
        if count > below:
            plain[f"<={float(bound):g}"] = count - below
        below = count
    return {"mean": round(faces / total, 2) if total else 0.0, **plain}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--pack", default="")
    parser.add_argument("--photos", type=int, default=600, help="of a run of extract; the photos repeat")
    parser.add_argument("--lfw", action="store_true", help="photos of one face each, where only clients can be merged")
    parser.add_argument("--drawn", default="", help="photos as `facefleet tune --faces-per-image` draws them, e.g. 1,4")
    parser.add_argument("--peer-python", default="")
    parser.add_argument("--profile", default="")
    parser.add_argument("--p99-ms", type=float, default=0.0)
    parser.add_argument("--users", type=int, default=8, help="of the closed loop at the server with the profile")
    parser.add_argument("--only-profile", action="store_true")
    parser.add_argument("--set", action="append", default=[], help="setting of extract and of all servers")
    parser.add_argument("--as-peer", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    data = Path(os.environ["FACEFLEET_DATA"]).resolve()
    if options.as_peer:
        serve_peer(data, options.folder)
        return
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        figures = measure(options, data, folder, stack)
    if "rates" in figures:
        report(figures)
    print(json.dumps(figures))
    found = figures.get("at_80_percent")
    raise SystemExit(found is not None and bool(found["refused"] or found["p99_ms"] > options.p99_ms > 0))


def drawn(folder: Path, faces: str) -> list[Path]:
    """The photos that `facefleet tune` draws, as files."""
    from facefleet.bench.tune.trial import drawn_photos

    paths = []
    for number, data in enumerate(drawn_photos([int(each) for each in faces.split(",")])):
        paths.append(folder / f"drawn-{number:02d}.jpg")
        paths[-1].write_bytes(data)
    return paths


def measure(options: argparse.Namespace, data: Path, folder: Path, stack: ExitStack) -> dict[str, Any]:
    from data_packs import write_pack
    from vs_insightface import DETECTOR, photos

    pack = options.pack or str(write_pack(folder, data, DETECTOR, "mobilefacenet_half"))
    paths = sorted(data.glob("lfw/**/*.jpg"))[:: 7701 // 200][:200] if options.lfw else photos(data)
    if options.drawn:
        paths = drawn(folder, options.drawn)
    random.Random(1).shuffle(paths)
    bodies = [path.read_bytes() for path in paths]
    many = folder / "photos"
    many.mkdir()
    for number in range(options.photos):
        (many / f"{number:05d}.jpg").symlink_to(paths[number % len(paths)])
    common = ["--pack", pack, *(part for each in options.set for part in ("--set", each))]
    if options.only_profile:
        return profiled(options, folder, common, bodies)
    servers = {
        "merged": stack.enter_context(Serving(folder, *common)),
        "batch 1": stack.enter_context(Serving(folder, *common, "--set", "batch.embed=1", "--set", "batch.detect=1")),
    }
    urls = {name: f"{each.url}/v1/faces" for name, each in servers.items()}
    if options.peer_python:
        urls["insightface + FastAPI"] = stack.enter_context(peer_server(options.peer_python, folder))
    for url in urls.values():
        closed(url, bodies, 4, 2.0)
    rates: dict[str, list[float]] = {"extract": []}
    batches: dict[str, dict[str, float]] = {}
    own_share = []
    for number in range(options.rounds):
        rates["extract"].append(extract(many, folder / "faces.parquet", common))
        for name, url in urls.items():
            for users in USERS if name == "merged" else USERS[:1]:
                key = f"{name}, {users} clients"
                look = name in servers and number == options.rounds - 1
                before = servers[name].batches() if look else {}
                clock = time.process_time()
                sent = closed(url, bodies, users, options.seconds)
                own_share.append((time.process_time() - clock) / sent.seconds)
                rates.setdefault(key, []).append(len(sent.latencies_s) / sent.seconds)
                if look:
                    batches[key] = histogram(before, servers[name].batches())
    before = servers["merged"].batches()
    closed(urls["merged"], bodies, 1, options.seconds)
    batches["merged, 1 client"] = histogram(before, servers["merged"].batches())
    figures: dict[str, Any] = {"pack": options.pack or "SCRFD-500m + MobileFaceNet", "photos": len(bodies)}
    figures |= {"rates": rates, "embedder_batches": batches, "clients_processors": statistics.median(own_share)}
    if options.profile:
        for server in servers.values():
            server.__exit__()
        figures |= profiled(options, folder, common, bodies)
    return figures


def profiled(options: argparse.Namespace, folder: Path, common: list[str], bodies: list[bytes]) -> dict[str, Any]:
    """The server with the profile, at 80 % of its capacity."""
    with Serving(folder, *common, "--profile", options.profile) as tuned:
        url = f"{tuned.url}/v1/faces"
        closed(url, bodies, 4, 2.0)
        found = p99_at_80(url, bodies, options.seconds, options.users)
    return {"at_80_percent": found | {"target_ms": options.p99_ms}}


def report(figures: dict[str, Any]) -> None:
    rates = figures["rates"]
    print(f"{figures['pack']}, {figures['photos']} photos; clients used {figures['clients_processors']:.2f} processors")
    for key, values in rates.items():
        ratio = statistics.median(a / b for a, b in zip(values, rates["extract"], strict=True))
        print(f"{key:36} {statistics.median(values):8.1f} photos/s {ratio:6.2f} of extract")
    one, merged = rates["batch 1, 16 clients"], rates["merged, 16 clients"]
    gain = statistics.median(a / b for a, b in zip(merged, one, strict=True))
    print(f"gain by batches: {gain:.2f} times")
    theirs = rates.get("insightface + FastAPI, 16 clients")
    if theirs:
        times = statistics.median(a / b for a, b in zip(merged, theirs, strict=True))
        print(f"against insightface + FastAPI: {times:.2f} times")
    for key, found in figures["embedder_batches"].items():
        print(f"embedder batches, {key}: {found}")
    if "at_80_percent" in figures:
        print(f"at 80 %: {figures['at_80_percent']}")


if __name__ == "__main__":
    main()
