"""Mutation fuzz of the decoder: damaged variants of real files, decoded in worker processes under a watchdog.

Every variant is a function of (seed, number), so that a finding is repeated with ``--only NUMBER``. A finding is a
crash, a hang, an exception that is no `FacefleetError`, anything written to stderr or stdout by any library, or a
worker whose memory passes the bound; its file is kept. Exits with 1 if there is one.

    python benchmarks/fuzz_decode.py --data FOLDER --variants 5000
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from facefleet.decode import Decoder

MAX_FILE_BYTES = 2 << 20
MAX_RSS_MIB = 1536
LARGEST_VARIANT_BYTES = 4 << 20
Mutation = Callable[[bytearray, np.random.Generator, list[bytes]], bytearray]


def flip_bytes(data: bytearray, random: np.random.Generator, _: list[bytes]) -> bytearray:
    for _i in range(1 << int(random.integers(0, 8))):
        data[random.integers(len(data))] = random.integers(256)
    return data


def flip_bits(data: bytearray, random: np.random.Generator, _: list[bytes]) -> bytearray:
    for _i in range(1 << int(random.integers(0, 5))):
        data[random.integers(len(data))] ^= 1 << int(random.integers(8))
    return data


def truncate(data: bytearray, random: np.random.Generator, _: list[bytes]) -> bytearray:
    return data[: max(1, int(random.integers(len(data))))]


def edit_header(data: bytearray, random: np.random.Generator, _: list[bytes]) -> bytearray:
    reach = min(len(data), int(random.choice([32, 128, 1024])))
    for _i in range(int(random.integers(1, 5))):
        data[random.integers(reach)] = (0, 1, 0x7F, 0x80, 0xFF, int(random.integers(256)))[int(random.integers(6))]
    return data


def extreme_number(data: bytearray, random: np.random.Generator, _: list[bytes]) -> bytearray:
    """Put a number that programs stumble over where a size, count or offset may stand."""
    reach = min(len(data), int(random.choice([64, 512, len(data)])))
    for _i in range(int(random.integers(1, 4))):
        width = int(random.choice([2, 4, 8]))
        bits = 8 * width
        choices = (0, 1, 2, (1 << (bits - 1)) - 1, 1 << (bits - 1), (1 << bits) - 1, len(data), len(data) + 1, 20_000)
        value = int(choices[int(random.integers(len(choices)))]) & ((1 << bits) - 1)
        code = str(random.choice(["<", ">"])) + {2: "H", 4: "I", 8: "Q"}[width]
        at = int(random.integers(max(1, reach - width)))
        data[at : at + width] = struct.pack(code, value)
    return data


def delete_piece(data: bytearray, random: np.random.Generator, _: list[bytes]) -> bytearray:
    at, size = _piece(data, random)
    del data[at : at + size]
    return data or bytearray(b"\0")


def duplicate_piece(data: bytearray, random: np.random.Generator, _: list[bytes]) -> bytearray:
    at, size = _piece(data, random)
    piece = data[at : at + size] * int(random.choice([1, 1, 2, 50]))
    data[at:at] = piece[:LARGEST_VARIANT_BYTES]
    return data


def move_piece(data: bytearray, random: np.random.Generator, _: list[bytes]) -> bytearray:
    at, size = _piece(data, random)
    piece = data[at : at + size]
    del data[at : at + size]
    to = int(random.integers(len(data) + 1))
    data[to:to] = piece
    return data


def splice(data: bytearray, random: np.random.Generator, others: list[bytes]) -> bytearray:
    """The beginning of one file and the end of another."""
    other = others[int(random.integers(len(others)))]
    return data[: max(1, int(random.integers(len(data))))] + other[int(random.integers(len(other))) :]


def insert_noise(data: bytearray, random: np.random.Generator, _: list[bytes]) -> bytearray:
    at = int(random.integers(len(data)))
    data[at:at] = random.bytes(1 << int(random.integers(0, 11)))
    return data


MUTATIONS: tuple[Mutation, ...] = (
    flip_bytes,
    flip_bits,
    truncate,
    edit_header,
    edit_header,
    extreme_number,
    extreme_number,
    delete_piece,
    duplicate_piece,
    move_piece,
    splice,
    insert_noise,
)


def _piece(data: bytearray, random: np.random.Generator) -> tuple[int, int]:
    at = int(random.integers(len(data)))
    return at, int(min(len(data) - at, 1 << int(random.integers(0, 15))))


@dataclass(frozen=True)
class Corpus:
    """The files that variants are made of, in a fixed order."""

    names: list[str]
    contents: list[bytes]

    @classmethod
    def read(cls, folder: Path) -> Corpus:
        """Every file below `folder` that is neither empty nor very large."""
        paths = [p for p in sorted(folder.rglob("*")) if p.is_file() and 0 < p.stat().st_size <= MAX_FILE_BYTES]
        return cls([str(p.relative_to(folder)) for p in paths], [p.read_bytes() for p in paths])

    def variant(self, seed: int, number: int) -> tuple[str, bytes]:
        """The file that variant `number` comes from, and its bytes."""
        random = np.random.default_rng([seed, number])
        index = int(random.integers(len(self.contents)))
        data = bytearray(self.contents[index])
        for _ in range(int(random.choice([1, 1, 1, 2, 3]))):
            data = MUTATIONS[int(random.integers(len(MUTATIONS)))](data, random, self.contents)
        return self.names[index], bytes(data[:LARGEST_VARIANT_BYTES])


def decode_variant(number: int, data: bytes) -> str:
    """Decode a variant, in ways that change with its number. Returns what became of it."""
    from facefleet.errors import FacefleetError

    try:
        image = decoder_for(number % 2).decode(data, need_px=(None, 100)[number // 2 % 2])
    except FacefleetError as error:
        return error.code
    pixels = image.pixels
    if pixels.dtype != np.uint8 or not pixels.flags.c_contiguous or not pixels.size:
        return f"!! bad picture: {pixels.dtype} {pixels.shape}"
    return "ok"


@lru_cache(maxsize=2)
def decoder_for(parity: int) -> Decoder:
    """Every second variant is read even where it is cut off."""
    from facefleet.config import DecodeSettings
    from facefleet.decode import Decoder

    return Decoder(DecodeSettings(truncated="read" if parity else "refuse"))


def work(folder: Path, seed: int) -> None:
    """Worker: numbers on stdin, one JSON line each on the file descriptor that was stdout."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a library prints to stdout is as stray as what it prints to stderr
    corpus = Corpus.read(folder)
    print(json.dumps({"ready": True}), file=replies)
    for line in sys.stdin:
        number = int(line)
        _, data = corpus.variant(seed, number)
        try:
            outcome = decode_variant(number, data)
        except BaseException as error:  # that is what is being looked for
            outcome = f"!! {type(error).__name__}: {error}"
        print(json.dumps({"outcome": outcome, "rss_mib": peak_mib()}), file=replies)


def peak_mib() -> int:
    """Most memory this process has held, MiB; unlike getrusage it does not start from what its parent held."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) // 1024


@dataclass
class Findings:
    """What the parent collects."""

    kept: Path
    outcomes: Counter[str] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)
    peak_mib: int = 0
    slowest_s: float = 0.0
    slowest: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, number: int, name: str, data: bytes, outcome: str, took_s: float) -> None:
        """Count an outcome; keep the file of one that is a finding."""
        with self.lock:
            self.outcomes[outcome.partition(":")[0]] += 1
            if took_s > self.slowest_s:
                self.slowest_s, self.slowest = took_s, f"{number} ({name})"
            if outcome.startswith("!!"):
                path = self.kept / f"{number}_{Path(name).name}"
                path.write_bytes(data)
                self.bad.append(f"{number} {name}: {outcome[3:]} -> {path}")


class Worker:
    """A worker process, its replies, and what it wrote that it should not have."""

    def __init__(self, script: Path, folder: Path, seed: int) -> None:
        self.stray: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the worker
        command = [sys.executable, str(script), "--worker", "--data", str(folder), "--seed", str(seed)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.stray, text=True, bufsize=1
        )
        self.replies: queue.Queue[str] = queue.Queue()
        self.listener = threading.Thread(target=self._listen)
        self.listener.start()
        self.replies.get(timeout=120)

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.replies.put(line)
        self.replies.put("")

    def ask(self, number: int, limit_s: float) -> tuple[str, int]:
        """The outcome of a variant and the worker's peak memory in MiB; an outcome that begins with !! ends it."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{number}\n")
            reply = self.replies.get(timeout=limit_s)
        except queue.Empty:
            return f"!! hang of {limit_s:.0f} s", 0
        except OSError:
            reply = ""
        if not reply:
            return f"!! crash, status {self.process.wait()}: {self._stray_text()}", 0
        answer = json.loads(reply)
        outcome, rss_mib = str(answer["outcome"]), int(answer["rss_mib"])
        text = self._stray_text()
        if text:
            return f"!! stray output ({outcome}): {text}", rss_mib
        if rss_mib > MAX_RSS_MIB:
            return f"!! memory ({outcome}): {rss_mib} MiB", rss_mib
        return outcome, rss_mib

    def _stray_text(self) -> str:
        self.stray.seek(0)
        return self.stray.read(300).decode("utf-8", "replace").strip()

    def close(self) -> None:
        """End the process and let go of its pipes."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.kill()
        self.process.wait()
        self.listener.join()
        self.process.stdout.close()
        with contextlib.suppress(OSError):  # a line that the worker did not live to read
            self.process.stdin.close()
        self.stray.close()


def fuzz(
    folder: Path,
    numbers: list[int],
    *,
    kept: Path,
    seed: int = 1,
    workers: int = 2,
    limit_s: float = 30.0,
    script: Path = Path(__file__),
) -> Findings:
    """Decode the variants `numbers` of the files in `folder`; `script` is what the workers run."""
    corpus, findings, todo = Corpus.read(folder), Findings(kept), queue.SimpleQueue[int]()
    for number in numbers:
        todo.put(number)

    def serve() -> None:
        worker = Worker(script, folder, seed)
        while True:
            try:
                number = todo.get_nowait()
            except queue.Empty:
                break
            name, data = corpus.variant(seed, number)
            start = time.monotonic()
            outcome, rss_mib = worker.ask(number, limit_s)
            findings.peak_mib = max(findings.peak_mib, rss_mib)
            findings.add(number, name, data, outcome, time.monotonic() - start)
            if outcome.startswith("!!"):
                worker.close()
                worker = Worker(script, folder, seed)
        worker.close()

    threads = [threading.Thread(target=serve) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return findings


def report(findings: Findings, seed: int, wall_s: float) -> None:
    total = findings.outcomes.total()
    print(f"{total} variants, seed {seed}, {wall_s:.0f} s, {total / wall_s:.0f}/s")
    for outcome, count in findings.outcomes.most_common():
        print(f"  {outcome:24} {count:6}")
    print(f"  slowest {findings.slowest_s:.2f} s: {findings.slowest}; peak memory of a worker {findings.peak_mib} MiB")
    for line in findings.bad:
        print(f"  FOUND {line}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of files; default: awkward/ of FACEFLEET_DATA")
    parser.add_argument("--variants", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--timeout-s", type=float, default=30.0)
    parser.add_argument("--only", type=int, help="this variant only")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    folder = args.data or Path(os.environ.get("FACEFLEET_DATA", ".")) / "awkward"
    if not folder.is_dir():
        parser.error(f"{folder} is no folder: set FACEFLEET_DATA or use --data")
    if args.worker:
        work(folder, args.seed)
        return 0
    numbers = list(range(args.variants)) if args.only is None else [args.only]
    start = time.monotonic()
    kept = Path(tempfile.mkdtemp(prefix="facefleet_fuzz_"))
    findings = fuzz(folder, numbers, kept=kept, seed=args.seed, workers=args.workers, limit_s=args.timeout_s)
    report(findings, args.seed, time.monotonic() - start)
    return 1 if findings.bad else 0


if __name__ == "__main__":
    sys.exit(main())
