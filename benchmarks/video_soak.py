"""Memory over a long run of videos: one engine, files and streams opened and closed again and again.

Every turn analyzes two files from the beginning to the end, with all outputs, and watches a stream that ends every
few seconds and is opened again. Resident memory, open files and threads are noted after every turn; the first fifth
of the time counts as warm-up. Prints one line of JSON; ends with 1 if memory grew by more than 5 % after that.

    FACEFLEET_DATA=... python benchmarks/video_soak.py [--minutes 120]
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import psutil

from facefleet import Engine, Settings
from facefleet.jobs.video import VideoOptions, VideoOutputs, open_embedder, run_video, watch
from facefleet.sources.video import Sampling, StreamOptions

CLIPS = (
    "derived/face_320x180.mp4",
    "derived/face_rot90.mp4",
    "derived/face_faststart_trunc60.mp4",
    "derived/face_vfr.mp4",
)
QUICK = StreamOptions(first_wait_s=0.1, most_wait_s=0.3)


class Clip(ThreadingHTTPServer):
    """Gives a file to every client and closes the connection."""

    daemon_threads = True

    def __init__(self, path: Path) -> None:
        data = path.read_bytes()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None: ...

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=120)
    minutes = parser.parse_args().minutes
    logging.disable(logging.WARNING)  # streams that end, again and again
    folder = Path(os.environ["FACEFLEET_DATA"]).resolve() / "videos"
    clips = [folder / name for name in CLIPS if (folder / name).exists()]
    server = Clip(folder / "derived/face_trunc_tail.webm")
    address = f"http://127.0.0.1:{server.server_address[1]}/clip"
    process = psutil.Process()
    started, turns, opens, frames = time.monotonic(), 0, 0, 0
    notes: list[tuple[float, int, int, int]] = []
    settings = Settings()
    with tempfile.TemporaryDirectory() as temporary, Engine(settings) as engine, open_embedder(settings) as embed:
        out = Path(temporary)
        while (passed := time.monotonic() - started) < 60 * minutes:
            for path in clips[turns % 2 :: 2]:
                result = run_video(
                    path,
                    out / path.stem,
                    engine,
                    embed,
                    dimension=engine.dimension,
                    options=VideoOptions(sampling=Sampling(every=3)),
                    outputs=VideoOutputs(timeline=True, annotate=True),
                    overwrite=True,
                )
                frames, opens = frames + result.frames, opens + 1
            seen = watch(
                [address, address],
                out / "live",
                engine,
                embed,
                options=VideoOptions(sampling=Sampling(every=3)),
                stream_options=QUICK,
                duration_s=2,
            )
            frames, opens = frames + seen.frames, opens + sum(status.connects for status in seen.streams)
            shutil.rmtree(out / "live")
            turns += 1
            notes.append((passed, process.memory_info().rss, process.num_fds(), process.num_threads()))
    server.shutdown()
    settled = [note for note in notes if note[0] > 0.2 * notes[-1][0]]
    fifth = max(1, len(settled) // 5)
    first, last = (float(np.median([note[1] for note in part])) for part in (settled[:fifth], settled[-fifth:]))
    growth = last / first - 1
    report = {
        "minutes": round(notes[-1][0] / 60, 1),
        "turns": turns,
        "opens": opens,
        "frames": frames,
        "rss_mib": [round(first / 2**20), round(last / 2**20), round(max(note[1] for note in settled) / 2**20)],
        "growth": round(growth, 4),
        "open_files": [settled[0][2], settled[-1][2]],
        "threads": [settled[0][3], settled[-1][3]],
    }
    print(json.dumps(report))
    sys.exit(growth > 0.05)


if __name__ == "__main__":
    main()
