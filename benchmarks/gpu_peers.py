"""The pack that the GPU pipeline is measured with, SCRFD-2.5g and an R50 of random weights, and its peers."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from data_packs import DETECTORS, HALF, pack_of
from gpu_bench import Bench

_CUDA = "CUDAExecutionProvider"


def r50_pack(work: Path, models: Path) -> Path:
    """The manifest; the network is drawn once."""
    network = work / "iresnet50.onnx"
    if not network.is_file():
        from gpu import prepare

        prepare(work, "iresnet50")
    embedder: dict[str, object] = {
        "family": "arcface", "file": str(network), "color": "rgb", "mean": HALF, "std": HALF, "dimension": 512,
        "threshold": 0.35,
    }  # fmt: skip
    return pack_of(work, "scrfd_2.5g_r50", models, DETECTORS["scrfd_2.5g"], embedder)


def use_engine(folder: Path) -> None:
    """Let every R50 that is opened from here on use the kernels that were chosen before for the same layers."""
    from dataclasses import replace

    from facefleet.backends.torch.runner import TorchRunner

    before = TorchRunner._recognized

    def recognized(self: Any, network: Any) -> Any:  # noqa: ANN401
        self.options = replace(self.options, engine=folder)
        return before(self, network)

    TorchRunner._recognized = recognized  # type: ignore[method-assign]


def peers(bench: Bench) -> None:
    """`FaceAnalysis` of insightface on t1.jpg, and R50 in ONNX Runtime, both through its CUDA provider."""
    import onnxruntime
    import torch

    torch.zeros(1, device="cuda")  # PyTorch brings the libraries that the provider needs
    if _CUDA not in onnxruntime.get_available_providers():
        bench.keep("peers", missing="onnxruntime-gpu")
        return
    r50_pack(bench.work, bench.options.models)
    for graph in ("iresnet50.onnx", "iresnet50.fp16.onnx"):
        rates = {batch: _bound(bench.work / graph, batch) for batch in (1, 8, 64, 256)}
        bench.keep(f"onnxruntime {graph}, bound buffers", faces_per_s=rates)
    bench.keep("onnxruntime iresnet50.onnx, one face a call, arrays in and out", faces_per_s=_arrays(bench.work))
    _insightface(bench)


def _session(path: Path) -> Any:  # noqa: ANN401
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=[_CUDA])
    assert session.get_providers()[0] == _CUDA, "the CUDA provider does not start"
    return session


def _median_s(work: Callable[[], object], seconds: float = 1.0) -> float:
    for _ in range(3):
        work()
    times, started = [], time.perf_counter()
    while time.perf_counter() - started < seconds:
        before = time.perf_counter()
        work()
        times.append(time.perf_counter() - before)
    return statistics.median(times)


def _bound(path: Path, batch: int) -> float:
    """Faces a second with input and output in the card's memory."""
    import torch

    session = _session(path)
    chips = torch.rand(batch, 3, 112, 112, device="cuda") * 2 - 1
    vectors = torch.empty(batch, 512, device="cuda")
    binding = session.io_binding()
    for bind, value, tensor in (
        (binding.bind_input, session.get_inputs()[0], chips),
        (binding.bind_output, session.get_outputs()[0], vectors),
    ):
        assert value.type == "tensor(float)"
        bind(value.name, "cuda", 0, np.float32, tuple(tensor.shape), tensor.data_ptr())
    torch.cuda.synchronize()

    def work() -> None:
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()

    return batch / _median_s(work)


def _arrays(work: Path) -> float:
    session = _session(work / "iresnet50.onnx")
    name, chip = session.get_inputs()[0].name, np.zeros((1, 3, 112, 112), np.float32)
    return 1 / _median_s(lambda: session.run(None, {name: chip}))


def _insightface(bench: Bench) -> None:
    """Photos a second from JPEG bytes, as its users call it."""
    try:
        from insightface.app import FaceAnalysis
    except ImportError as error:
        bench.keep("insightface", missing=str(error))
        return
    import cv2

    root = bench.work / "insightface"
    models = root / "models" / "bench"
    models.mkdir(parents=True, exist_ok=True)
    shutil.copy(bench.options.models / str(DETECTORS["scrfd_2.5g"]["file"]), models)
    shutil.copy(bench.work / "iresnet50.onnx", models)
    app = FaceAnalysis(name="bench", root=str(root), providers=[_CUDA])
    app.prepare(ctx_id=0, det_size=(640, 640))
    used = {name: model.session.get_providers()[0] for name, model in app.models.items()}
    data = bench.t1()

    def analyze() -> int:
        return len(app.get(cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)))

    seconds = _median_s(analyze, bench.options.seconds)
    bench.keep("insightface", images_per_s=1 / seconds, faces=analyze(), providers=used)
