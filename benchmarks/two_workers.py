"""`facefleet extract` on one pinned worker process, and on two, in turns: how much the second one brings.

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
from pathlib import Path


def photos_of(data: Path, count: int, folder: Path) -> Path:
    """A folder with `count` photos, as links to those of the data folder."""
    found = sorted([*data.glob("identity/**/*.jpg"), *data.glob("detection/**/*.jpg")])
    folder.mkdir()
    for number in range(count):
        source = found[number % len(found)]
        (folder / f"{number:06d}.jpg").symlink_to(source)
    return folder


def extract(photos: Path, output: Path, devices: str) -> float:
    """Photos a second, without the time in which the models are loaded."""
    command = [
        str(Path(sys.executable).with_name("facefleet")),
        "extract",
        str(photos),
        "-o",
        str(output),
        "--devices",
        devices,
    ]
    done = subprocess.run(
        [*command, "--summary", "-", "--overwrite"], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    summary = json.loads(done.stdout)
    return float(summary["processed"] / summary["seconds"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--photos", type=int, default=800)
    options = parser.parse_args()
    first, second = sorted(os.sched_getaffinity(0))[:2]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        photos = photos_of(Path(os.environ["FACEFLEET_DATA"]), options.photos, folder / "photos")
        rates: dict[str, list[float]] = {}
        for _ in range(options.rounds):
            for devices in (f"cpu:{first}", f"cpu:{first},{second}", "cpu"):
                rates.setdefault(devices, []).append(extract(photos, folder / "faces.parquet", devices))
    one, two, here = (statistics.median(values) for values in rates.values())
    for devices, values in rates.items():
        print(f"{devices:10s} {statistics.median(values):7.1f} photos/s  ({', '.join(f'{v:.1f}' for v in values)})")
    print(f"two workers: {two / one:.2f} times one; {two / here:.2f} times this process on both processors")


if __name__ == "__main__":
    main()
