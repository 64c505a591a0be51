"""What `make demo` runs: a real photo through `facefleet extract`, and a look at what came out.

    python benchmarks/demo.py out/demo

The photo is NASA's portrait of Eileen Collins from scikit-image, in the public domain; insightface's group photo is
taken too where that package is installed.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
from PIL import Image
from skimage import data


def main() -> None:
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "out/demo")
    photos = out / "photos"
    photos.mkdir(parents=True, exist_ok=True)
    Image.fromarray(data.astronaut()).save(photos / "astronaut.jpg", quality=95)
    spec = importlib.util.find_spec("insightface")
    if spec is not None and spec.submodule_search_locations:
        group = Path(spec.submodule_search_locations[0]) / "data" / "images" / "t1.jpg"
        if group.is_file():
            shutil.copy(group, photos)
    table = out / "faces.parquet"
    command = ["extract", str(photos), "-o", str(table), "--draw", str(out / "drawn"), "--overwrite"]
    print("$ facefleet", " ".join(command), flush=True)
    done = subprocess.run([sys.executable, "-m", "facefleet.cli", *command], check=False)
    if done.returncode:
        sys.exit(done.returncode)
    faces = pq.read_table(table).to_pylist()
    for face in faces:
        box = ", ".join(f"{face[side]:.0f}" for side in ("x1", "y1", "x2", "y2"))
        print(
            f"{Path(face['input']).name}: face {face['face']} at ({box}), score {face['score']:.2f}, "
            f"embedding of {len(face['embedding'])} numbers"
        )
    print(f"table: {table}\nannotated: {', '.join(map(str, sorted((out / 'drawn').iterdir())))}")
    if not faces:
        sys.exit("no face found: something is wrong, try `facefleet doctor`")


if __name__ == "__main__":
    main()
