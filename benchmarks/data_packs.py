"""Packs for the model files of the data folder (`FACEFLEET_DATA`), for benchmarks and tests.

Writes manifests only; the model files stay where they are.
"""

from __future__ import annotations

import os
from pathlib import Path

IMAGENET_MEAN = (123.675, 116.28, 103.53)
IMAGENET_STD = (58.395, 57.12, 57.375)
HALF = (127.5, 127.5, 127.5)

DETECTORS: dict[str, dict[str, object]] = {
    name: {"family": "scrfd", "file": file, "color": "rgb", "mean": HALF, "std": (128.0,) * 3, "score": 0.5, "nms": 0.4}
    for name, file in (
        ("scrfd_500m", "scrfd/scrfd_500m.onnx"),
        ("scrfd_500m_bnkps", "scrfd/scrfd_500m_bnkps.onnx"),
        ("scrfd_2.5g", "scrfd/scrfd_2.5g.onnx"),
    )
} | {
    name: {
        "family": "yunet",
        "file": file,
        "color": "bgr",
        "mean": (0.0,) * 3,
        "std": (1.0,) * 3,
        "score": 0.5,
        "nms": 0.3,
        "fit": "tight",
        "enlarge_px": 384,
    }
    for name, file in (("yunet_640", "yunet/yunet_s_640_640.onnx"), ("yunet_dynamic", "yunet/yunet_s_dynamic.onnx"))
}
DETECTORS["retinaface_mobile0.25"] = {
    "family": "retinaface",
    "file": "retinaface_mobile0.25/FaceDetector.onnx",
    "color": "bgr",
    "mean": (104.0, 117.0, 123.0),
    "std": (1.0,) * 3,
    "score": 0.5,
    "nms": 0.4,
}

EMBEDDERS: dict[str, dict[str, object]] = {
    "mobilefacenet": {
        "family": "arcface",
        "file": "mobilefacenet_diandianti/mobilefacenet.onnx",
        "color": "rgb",
        "mean": IMAGENET_MEAN,
        "std": IMAGENET_STD,
        "dimension": 128,
        "threshold": 0.35,
    },
    "mobilefacenet_112x96": {
        "family": "arcface",
        "file": "mobilefacenet_xiaoccer/mobilefacenet_112x96.onnx",
        "color": "rgb",
        "mean": HALF,
        "std": (128.0,) * 3,
        "height": 112,
        "width": 96,
        "dimension": 128,
        "threshold": 0.35,
    },
}
# What insightface feeds any recognition network without normalization nodes of its own.
EMBEDDERS["mobilefacenet_half"] = EMBEDDERS["mobilefacenet"] | {"mean": HALF, "std": HALF}


def data_folder() -> Path:
    """The data folder; exits with a word on how to give it."""
    folder = os.environ.get("FACEFLEET_DATA")
    if not folder or not Path(folder).is_dir():
        raise SystemExit("set FACEFLEET_DATA to the folder with lfw/, identity/, detection/ and models/")
    return Path(folder).resolve()


def write_pack(folder: Path, data: Path, detector: str, embedder: str) -> Path:
    """Write a manifest.

    Args:
        folder: Where to.
        data: The data folder.
        detector: Key of `DETECTORS`.
        embedder: Key of `EMBEDDERS`, or ``sface``: that of the default pack.

    Returns:
        Path of the manifest.
    """
    sections = ["[detector]", *_lines(DETECTORS[detector], data / "models")]
    if embedder == "sface":
        from facefleet.packs import Store

        located = Store().manifest("opencv")
        spec = located.manifest.embedder
        source = spec.source[0]
        sections += [
            "[embedder]",
            *(
                f"{key} = {_toml(getattr(spec, key))}"
                for key in ("family", "color", "mean", "std", "dimension", "threshold")
            ),
            "[[embedder.source]]",
            *(
                f"{key} = {_toml(value)}"
                for key in ("file", "sha256", "size", "package", "member")
                if (value := getattr(source, key)) is not None
            ),
        ]
    else:
        sections += ["[embedder]", *_lines(EMBEDDERS[embedder], data / "models")]
    return _written(folder, f"{detector}_{embedder}", sections)


def pack_of(folder: Path, name: str, models: Path, detector: dict[str, object], embedder: dict[str, object]) -> Path:
    """Write the manifest of a detector and an embedder given like those above, files below `models` or absolute."""
    return _written(folder, name, ["[detector]", *_lines(detector, models), "[embedder]", *_lines(embedder, models)])


def _written(folder: Path, name: str, sections: list[str]) -> Path:
    head = [
        "schema = 1",
        f'name = "{name}"',
        'license = "for tests and benchmarks only"',
        "commercial_use = true",
        'description = "models of the data folder"',
    ]
    path = folder / f"{name}.toml"
    path.write_text("\n".join([*head, *sections]) + "\n")
    return path


def _lines(spec: dict[str, object], models: Path) -> list[str]:
    lines = [f"{key} = {_toml(value)}" for key, value in spec.items() if key != "file"]
    return [*lines, f"source = [{{ file = {_toml(str(models / str(spec['file'])))} }}]"]


def _toml(value: object) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return str(value)
