"""`facefleet extract` on one pinned worker process, and on two, in turns: how much the second one brings.

The bound of it is what two jobs that know nothing of each other bring, each pinned to a processor of its own:
processors that share caches, memory and power are slower together.

FACEFLEET_DATA=... python benchmarks/two_workers.py [--rounds 3] [--photos 800]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from operator import truediv
from pathlib import Path


def photos_of(data: Path, count: int, folder: Path) -> Path:
    """A folder with `count` photos, as links to those of the data folder."""
    found = sorted([*data.glob("identity/**/*.jpg"), *data.glob("detection/**/*.jpg")])
    folder.mkdir()
    for number in range(count):
        source = found[number % len(found)]
        (folder / f"{number:06d}.jpg").symlink_to(source)
    return folder


def start(photos: Path, output: Path, devices: str) -> subprocess.Popen[bytes]:
    """A job that tells its summary."""
    command = [
        str(Path(sys.executable).with_name("facefleet")),
        "extract",
        str(photos),
        "-o",
        str(output),
        "--devices",
        devices,
    ]
    arguments = [*command, "--summary", "-", "--overwrite"]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def rate(job: subprocess.Popen[bytes]) -> float:
    """Photos a second of a job when it has ended, without the time in which the models are loaded."""
    output, _ = job.communicate()
    if job.returncode:
        raise SystemExit(f"{job.args!r} ended with {job.returncode}")
    summary = json.loads(output)
    return float(summary["processed"] / summary["seconds"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--photos", type=int, default=800)
    options = parser.parse_args()
    first, second = sorted(os.sched_getaffinity(0))[:2]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        photos = photos_of(Path(os.environ["FACEFLEET_DATA"]), options.photos, folder / "photos")
        one, two = f"cpu:{first}", f"cpu:{second}"
        both = f"cpu:{first},{second}"
        rates: dict[str, list[float]] = {}
        for _ in range(options.rounds):
            for devices in (one, both, "cpu"):
                rates.setdefault(devices, []).append(rate(start(photos, folder / "faces.parquet", devices)))
            jobs = [start(photos, folder / f"faces{number}.parquet", name) for number, name in enumerate((one, two))]
            rates.setdefault("apart", []).append(sum(rate(job) for job in jobs))
    for name, values in rates.items():
        print(f"{name:10s} {statistics.median(values):7.1f} photos/s  ({', '.join(f'{v:.1f}' for v in values)})")
    times = {name: statistics.median(map(truediv, values, rates[one])) for name, values in rates.items()}
    print(
        f"times one worker, medians of the rounds' ratios: two workers {times[both]:.2f}, one process on both", end=" "
    )
    print(f"processors {times['cpu']:.2f}, two jobs that know nothing of each other {times['apart']:.2f}")


if __name__ == "__main__":
    main()
