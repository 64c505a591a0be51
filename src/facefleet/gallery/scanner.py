"""A program that searches the files of a folder for bytes: ``python scanner.py FOLDER``, bytes in hex on stdin.

It is a process of its own, needs the standard library only, and prints JSON: how many files there are, and which hold
one of the bytes. It must not run within a process that has the database open: closing any descriptor of a file gives
up every lock that the process has on it (POSIX), and SQLite's with them, so that the database is damaged.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

_CHUNK_BYTES = 8 << 20


def holds(path: Path, needles: list[bytes]) -> bool:
    """Whether a file has one of some bytes in it; read, not mapped, since others may cut it meanwhile."""
    keep = max(map(len, needles), default=0)
    tail = b""
    with path.open("rb") as stream:
        while data := stream.read(_CHUNK_BYTES):
            joined = tail + data
            if any(needle in joined for needle in needles):
                return True
            tail = joined[-keep:]
    return False


def main() -> None:
    """Search."""
    needles = [bytes.fromhex(line) for line in sys.stdin.read().split()]
    files = [path for path in sorted(Path(sys.argv[1]).rglob("*")) if path.is_file()]
    found = []
    for path in files:
        try:
            if holds(path, needles):
                found.append(str(path))
        except FileNotFoundError:
            continue  # replaced by a newer one meanwhile
    sys.stdout.write(json.dumps({"files": len(files), "found": found}))


if __name__ == "__main__":
    main()
