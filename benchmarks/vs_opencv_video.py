"""facefleet's video job against the loop that people write: OpenCV's VideoCapture and insightface's FaceAnalysis.

    FACEFLEET_DATA=... python benchmarks/vs_opencv_video.py [--rounds 3] [--peer-python PYTHON]

The same two networks (SCRFD-500m at 640 and MobileFaceNet), the same frames of the same clips: every one, and one of
so many as makes 5 a second. The loop calls `grab` for every frame, `retrieve` and `FaceAnalysis.get` for those it
looks at. facefleet runs its whole job: decoding, detection, tracks, embeddings of the best three faces a track,
tables on disk. The clips last 4 and 9 s; they are looped to 21 and 28 s, packet by packet and not encoded again.
Every contender runs in a process of its own, in turn, several rounds; figures are medians, ratios are taken within a
round. Prints a table and one line of JSON.

`--peer-python` is an interpreter with insightface installed, where it cannot live in this environment.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

DETECTOR, EMBEDDER = "scrfd_500m_bnkps", "mobilefacenet_half"
CASES = {
    "1080p, every frame": ("facenet_pytorch_video.mp4", 1),
    "1080p, 5 a second": ("facenet_pytorch_video.mp4", 5),
    "360p, every frame": ("short_hamilton_clip.mp4", 1),
    "360p, 5 a second": ("short_hamilton_clip.mp4", 6),
}
CONTENDERS = {
    "insightface": [],
    "facefleet": ["auto", "auto"],
    "facefleet onnxruntime fp32": ["onnxruntime", "fp32"],
}
FRAMES = {"facenet_pytorch_video": 105 * 5, "short_hamilton_clip": 275 * 3}
LOOPS = {"facenet_pytorch_video.mp4": 5, "short_hamilton_clip.mp4": 3}
MIN_SECONDS = 6.0


def run_peer(data: Path, folder: Path) -> dict[str, Any]:
    import cv2
    from insightface.app import FaceAnalysis

    models = folder / "models" / "bench"
    models.mkdir(parents=True, exist_ok=True)
    for source in (f"scrfd/{DETECTOR}.onnx", "mobilefacenet_diandianti/mobilefacenet.onnx"):
        shutil.copy(data / "models" / source, models)
    app = FaceAnalysis(name="bench", root=str(folder), providers=["CPUExecutionProvider"])
    app.prepare(ctx_id=-1, det_size=(640, 640))

    def loop(path: Path, every: int) -> dict[str, int]:
        capture = cv2.VideoCapture(str(path))
        index = looked = faces = 0
        while capture.grab():
            if index % every == 0:
                good, frame = capture.retrieve()
                assert good
                faces += len(app.get(frame))
                looked += 1
            index += 1
        capture.release()
        return {"frames": index, "looked": looked, "faces": faces, "embedded": faces}

    return measured(folder, loop)


def run_ours(data: Path, folder: Path, backend: str, precision: str) -> dict[str, Any]:
    from data_packs import write_pack
    from facefleet import Engine, Settings
    from facefleet.config import DecodeSettings, DetectSettings, RuntimeSettings
    from facefleet.jobs.video import VideoOptions, VideoOutputs, open_embedder, run_video
    from facefleet.sources.video import Sampling

    settings = Settings(
        pack=str(write_pack(folder, data, DETECTOR, EMBEDDER)),
        runtime=RuntimeSettings(backend=backend, precision=precision),  # type: ignore[arg-type]
        detect=DetectSettings(scale="insightface"),
        decode=DecodeSettings(scaled="off"),
    )
    with Engine(settings) as engine, open_embedder(settings) as embed:

        def job(path: Path, every: int) -> dict[str, int]:
            result = run_video(
                path,
                folder / "out",
                engine,
                embed,
                dimension=engine.dimension,
                options=VideoOptions(sampling=Sampling(every=every), threshold=engine.manifest.embedder.threshold),
                outputs=VideoOutputs(contact=False),
                overwrite=True,
            )
            frames = FRAMES[path.stem]
            return {"frames": frames, "looked": result.frames, "faces": result.faces, "embedded": result.embedded}

        figures = measured(folder, job)
        described = engine.describe()
    return {**figures, "engine": f"{described['backend']} {described['precision']}"}


def looped(source: Path, target: Path, times: int) -> None:
    """The packets of a video so many times over, in Matroska."""
    import av

    with av.open(str(target), "w") as out:
        stream = None
        for number in range(times):
            with av.open(str(source)) as container:
                video = container.streams.video[0]
                if stream is None:
                    stream = out.add_stream_from_template(video)
                    length = video.duration
                for packet in container.demux(video):
                    if packet.dts is None:
                        continue
                    packet.pts += number * length
                    packet.dts += number * length
                    packet.stream = stream
                    out.mux(packet)


def measured(folder: Path, once: Any) -> dict[str, Any]:  # noqa: ANN401
    cases = {}
    for case, (name, every) in CASES.items():
        path = (folder / name).with_suffix(".mkv")
        counts = once(path, every)  # the warm-up too
        frames, started = 0, time.perf_counter()
        while not frames or time.perf_counter() - started < MIN_SECONDS:
            frames += once(path, every)["frames"]
        cases[case] = {**counts, "video_frames_per_s": frames / (time.perf_counter() - started)}
    return {"cases": cases}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    data = Path(os.environ["FACEFLEET_DATA"]).resolve()
    if options.contender:
        arguments = CONTENDERS[options.contender]
        result = run_ours(data, options.folder, *arguments) if arguments else run_peer(data, options.folder)
        print(json.dumps(result))
        return
    rounds: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        for name, times in LOOPS.items():
            looped(data / "videos" / name, (Path(temporary) / name).with_suffix(".mkv"), times)
        for _ in range(options.rounds):
            results = {}
            for name, arguments in CONTENDERS.items():
                python = sys.executable if arguments else options.peer_python
                command = [python, __file__, "--contender", name, "--folder", temporary]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                results[name] = json.loads(done.stdout.splitlines()[-1])
            rounds.append(results)
    print(f"{'case':20} {'contender':28} {'frames/s':>9} {'x real':>7} {'times':>6} {'faces':>6} {'embedded':>8}")
    summary: dict[str, Any] = {}
    for case, (clip, _) in CASES.items():
        rate = 25.0 if "facenet" in clip else 29.97
        for name in CONTENDERS:
            each = [results[name]["cases"][case] for results in rounds]
            theirs = [results["insightface"]["cases"][case]["video_frames_per_s"] for results in rounds]
            speeds = [one["video_frames_per_s"] for one in each]
            speed = float(np.median(speeds))
            ratio = float(np.median([ours / peer for ours, peer in zip(speeds, theirs, strict=True)]))
            last = each[-1]
            summary.setdefault(case, {})[name] = {**last, "video_frames_per_s": speed, "ratio": ratio, "all": speeds}
            row = f"{case:20} {name:28} {speed:9.1f} {speed / rate:7.2f} {ratio:6.2f} {last['faces']:6} "
            print(f"{row}{last['embedded']:8}")
    print(json.dumps({"engine": rounds[-1]["facefleet"]["engine"], "cases": summary}))


if __name__ == "__main__":
    main()
