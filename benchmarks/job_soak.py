"""A long job: is its memory flat, and does it survive kills with the same output?

    FACEFLEET_DATA=... python benchmarks/job_soak.py [--photos 10000] [--kills 10] [--suffix .parquet]

The pictures of identity/ and detection/ are repeated under different names (links). The job is the command
``facefleet extract`` in a process of its own, which this one watches: resident memory against inputs recorded in the
job's manifest. With ``--kills`` the same job is then done again, killed that often at random moments, and the digests
of both outputs are compared. Prints one line of JSON; exits with 1 if memory grew or the outputs differ.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path

from data_packs import data_folder
from facefleet.sources import Inputs

_SAMPLE_S = 0.25
_SETTLED = 1000
_ALLOWED = 1.05


@dataclass
class Watched:
    """A job as seen from outside."""

    seconds: float = 0.0
    code: int = 0
    recorded: int = 0
    samples: list[tuple[int, int]] = field(default_factory=list)  # inputs recorded, resident KiB

    def rss(self) -> dict[str, float]:
        """Resident memory in MiB once 1,000 inputs are recorded, the most after that, and their ratio."""
        settled = min(_SETTLED, self.recorded // 2)
        after = [kib for recorded, kib in self.samples if recorded >= settled]
        if not after:
            return {}
        tail = after[len(after) // 2 :]
        return {
            "rss_mib": round(after[0] / 1024, 1),
            "rss_max_after_mib": round(max(after) / 1024, 1),
            "rss_ratio": round(max(after) / after[0], 4),
            "rss_mean_of_last_half_mib": round(sum(tail) / len(tail) / 1024, 1),
        }


def make_photos(data: Path, folder: Path, count: int) -> None:
    sources = [item.key for item in Inputs([str(data / "identity"), str(data / "detection")])]
    for number, source in enumerate(islice(cycle(sources), count)):
        name = folder / f"{number // 1000:03d}" / f"{number:06d}{Path(source).suffix.lower()}"
        name.parent.mkdir(parents=True, exist_ok=True)
        name.symlink_to(source)


def start(photos: Path, output: Path, extra: list[str]) -> subprocess.Popen[bytes]:
    code = "from facefleet.cli.main import main; main()"
    command = [sys.executable, "-c", code, "extract", str(photos), "-o", str(output), *extra]
    with output.with_name("log.txt").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def recorded(output: Path) -> int:
    """Inputs in the manifest, 0 while there is none."""
    manifest = output.with_name(f"{output.name}.manifest.sqlite")
    if not manifest.exists():
        return 0
    try:
        database = sqlite3.connect(f"file:{manifest}?mode=ro", uri=True, timeout=1)
        try:
            return int(database.execute("SELECT COUNT(*) FROM items").fetchone()[0])
        finally:
            database.close()
    except sqlite3.Error:
        return 0


def resident_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0


def watch(process: subprocess.Popen[bytes], output: Path) -> Watched:
    seen, started = Watched(), time.monotonic()
    while process.poll() is None:
        count = recorded(output)
        if kib := resident_kib(process.pid):
            seen.samples.append((count, kib))
        time.sleep(_SAMPLE_S)
    seen.seconds, seen.code, seen.recorded = time.monotonic() - started, process.returncode, recorded(output)
    return seen


def killed(photos: Path, output: Path, extra: list[str], kills: int, undisturbed_s: float) -> Iterator[int]:
    """Kill the job at random moments; yields how many inputs were recorded each time."""
    moments = random.Random(5)
    for _ in range(kills):
        process = start(photos, output, extra)
        time.sleep(moments.uniform(0.2, 4 + 1.5 * undisturbed_s / kills))
        process.send_signal(signal.SIGKILL)
        process.wait()
        yield recorded(output)


def digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--photos", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--suffix", default=".parquet", choices=[".parquet", ".jsonl"])
    parser.add_argument("--keep", type=Path, help="work in this folder and keep it")
    parser.add_argument("extra", nargs="*", help="more options of `facefleet extract`, after --")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = options.keep or Path(temporary)
        photos, calm, disturbed = root / "photos", root / f"calm{options.suffix}", root / f"killed{options.suffix}"
        make_photos(data_folder(), photos, options.photos)
        seen = watch(start(photos, calm, options.extra), calm)
        result: dict[str, object] = {
            "photos": options.photos,
            "recorded": seen.recorded,
            "exit": seen.code,
            "seconds": round(seen.seconds, 1),
            "images_per_s": round(seen.recorded / seen.seconds, 1),
            **seen.rss(),
            "sha256": digest(calm) if calm.exists() else None,
        }
        good = seen.recorded == options.photos and seen.rss().get("rss_ratio", 0) <= _ALLOWED
        if options.kills:
            result["recorded_at_kills"] = list(killed(photos, disturbed, options.extra, options.kills, seen.seconds))
            watch(start(photos, disturbed, options.extra), disturbed)
            result["same_after_kills"] = disturbed.exists() and digest(disturbed) == result["sha256"]
            good = good and bool(result["same_after_kills"])
        print(json.dumps(result))
        if not good:
            print(root.joinpath("log.txt").read_text()[-4000:], file=sys.stderr)
    return 0 if good else 1


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
