"""The pack that the GPU pipeline is measured with: SCRFD-2.5g, and an R50 of random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from data_packs import DETECTORS, HALF, pack_of


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
