"""Whether a faster precision is accurate enough, and whether opened models answer rightly at all.

Owns the two checks and the store of verdicts. Both use pictures drawn from a fixed seed: they find a runtime that is
broken or a precision that a network does not stand, not a loss of a tenth of a point, which needs labelled faces.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np

from facefleet.backends import InputContract, RunnerOptions, create_runner
from facefleet.errors import SelfTestError
from facefleet.models.detectors import Detector
from facefleet.models.embedders import Embedder
from facefleet.models.prepare import PreparedModel
from facefleet.types import F32Array, U8Array

_log = logging.getLogger(__name__)
_MAX_RELATIVE_ERROR = 0.05  # bf16 keeps 8 bits; through these networks that has measured 0.5 to 2 per cent
_NEAR_ZERO = 0.05
_DISTINCT = 0.999


def drawn_pictures(count: int, height: int, width: int, *, seed: int = 0) -> U8Array:
    """(count, height, width, 3) uint8 of smooth random pictures, the same for the same arguments."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (count, 7, 7, 3)).astype(np.uint8)
    return np.stack([cv2.resize(picture, (width, height), interpolation=cv2.INTER_CUBIC) for picture in coarse])


def holds(
    home: Path, backend: str, model: PreparedModel, contract: InputContract, options: RunnerOptions, precision: str
) -> bool:
    """Whether `model` in `precision` agrees with itself in fp32; measured once on this kind of machine.

    Args:
        home: Where verdicts are kept.
        backend: Backend to run on.
        model: The prepared model.
        contract: Its input.
        options: How it is run; its first warm size is used.
        precision: The precision in question.

    Returns:
        True when the difference of every output, root mean square, is at most 5 % of the output's own; outputs
        that stay near zero (scores of pictures without faces) are measured against 0.05.
    """
    key = hashlib.sha256(
        json.dumps([model.path.name, model.sha256, backend, precision, _machine(backend)]).encode()
    ).hexdigest()
    verdict = home / "guard" / f"{key}.json"
    try:
        return bool(json.loads(verdict.read_text())["holds"])
    except (OSError, ValueError, KeyError):
        pass
    height, width = options.warm[0] if options.warm else (256, 256)
    pictures = drawn_pictures(4, height, width)
    once = replace(options, instances=1)
    results = []
    for each in ("fp32", precision):
        with create_runner(backend, model.path, contract, replace(once, precision=each)) as runner:  # type: ignore[arg-type]
            results.append(runner.run(pictures))
    errors = [_relative_error(got, want) for want, got in zip(*results, strict=True)]
    answer = max(errors) <= _MAX_RELATIVE_ERROR
    _log.info("guard: %s in %s, relative error %.4f, holds=%s", model.path.name, precision, max(errors), answer)
    verdict.parent.mkdir(parents=True, exist_ok=True)
    temporary = verdict.with_suffix(f".{id(errors)}.tmp")
    temporary.write_text(json.dumps({"holds": answer, "relative_errors": errors, "model": model.path.name}))
    temporary.replace(verdict)
    return answer


def _relative_error(got: F32Array, want: F32Array) -> float:
    rms = float(np.sqrt(np.square(want, dtype=np.float64).mean()))
    return float(np.sqrt(np.square(got - want, dtype=np.float64).mean())) / max(rms, _NEAR_ZERO)


def _machine(backend: str) -> list[str]:
    """What a verdict depends on besides the model: runtime version and processor."""
    from importlib.metadata import version

    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "model\t"))][:2]
    except OSError:
        names = []
    return [version(backend), *names]


def self_test(detector: Detector, embedder: Embedder, threshold: float) -> None:
    """Check that opened models tell pictures apart and find no face where there is none.

    Raises:
        SelfTestError: They do not; they must not be used.
    """
    blank = np.full((1, *detector.warm_size, 3), 127, np.uint8)
    if len(detector.infer(blank, threshold)[0].scores):
        raise SelfTestError(
            "the detector finds a face in a blank picture", hint="try another backend, or precision=fp32"
        )
    first, other = drawn_pictures(2, 112, 112)
    similar = cv2.GaussianBlur(first, (3, 3), 0)
    vectors = embedder.embed(np.stack([first, similar, other])).vectors
    same, different = float(vectors[0] @ vectors[1]), float(vectors[0] @ vectors[2])
    if not different < min(same, _DISTINCT):
        raise SelfTestError(
            f"the embedder does not tell pictures apart: similar {same:.4f}, different {different:.4f}",
            hint="try another backend, or precision=fp32; check the manifest's color, mean and std",
        )
