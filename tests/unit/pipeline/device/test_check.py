"""What is tried before the first photo, and what becomes of an engine whose device fails it; without a GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason='needs the extra: pip install "facefleet[torch]"')

import torch

from facefleet import Engine, Settings
from facefleet.config import BatchSettings, RuntimeSettings, on_device
from facefleet.errors import DeviceLostError, SelfTestError
from facefleet.pipeline import local
from facefleet.pipeline.device import check, resident
from facefleet.pipeline.device.check import check_card, check_resident
from facefleet.pipeline.device.resident import Resident
from tests.unit.pipeline.device.parts import loaded
from tests.unit.pipeline.device.test_scheduler import FakeCard, squares


@pytest.fixture(autouse=True)
def _bright_scene(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = squares(480, 640, [(60, 60, 120), (300, 200, 160), (480, 20, 100)])
    monkeypatch.setattr(check, "drawn_scene", lambda *_: scene)


def opened(card: Any = None) -> tuple[Resident, Any]:
    models = loaded()
    return Resident(models, BatchSettings(detect=2, embed=8), card), models


def test_a_right_device_passes() -> None:
    made, models = opened()
    before = made.select
    check_resident(made, models)
    assert made.select is before


@pytest.mark.parametrize("wrong", ["chips", "boxes", "nothing"])
def test_wrong_answers_are_found(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made, models = opened()
    if wrong == "chips":
        monkeypatch.setattr(resident, "warp_chips_into", lambda chips, *_: chips.fill_(9))
    else:
        place = made._place

        def moved(slot: Any, found: Any) -> None:
            boxes = found.boxes + 30 if wrong == "boxes" else found.boxes
            counts = found.counts if wrong == "boxes" else found.counts * 0
            place(slot, replace(found, boxes=boxes, counts=counts))

        monkeypatch.setattr(made, "_place", moved)
    with pytest.raises(SelfTestError):
        check_resident(made, models)


class WrongCard(FakeCard):
    def decode(self, files: Sequence[bytes], into: Sequence[Any], stream: int) -> tuple[list[int], object]:
        found = super().decode(files, into, stream)
        for target in into:
            target.copy_(torch.flip(target, [2]))
        return found


class BrokenCard(FakeCard):
    def decode(self, files: Sequence[bytes], into: Sequence[Any], stream: int) -> tuple[list[int], object]:
        raise RuntimeError("no decoder")


@pytest.mark.parametrize(("card", "kept"), [(FakeCard, True), (WrongCard, False), (BrokenCard, False)])
def test_a_card_that_decodes_otherwise_is_not_used(card: type[FakeCard], kept: bool) -> None:
    decoder = card()
    made, _ = opened(decoder)
    check_card(made)
    assert (made.card is decoder) == kept
    assert decoder.closed != kept


def test_batches_on_a_device() -> None:
    assert on_device(BatchSettings()) == BatchSettings(detect=32, embed=256, max_images=256, max_bytes=2 << 30)
    assert on_device(BatchSettings(detect=8, max_images=100)).detect == 8
    assert on_device(BatchSettings(detect=8, max_images=100)).max_images == 100


def as_if_resident(monkeypatch: pytest.MonkeyPatch, failing: Exception | None) -> list[bool]:
    """Let the parts above stand in for a pack on a card, whose own way fails like this."""
    asked: list[bool] = []

    def load(pack: str, settings: Settings, stack: contextlib.ExitStack, **_: Any) -> Any:
        asked.append(settings.runtime.resident)
        return replace(
            loaded(), host_way="" if settings.runtime.resident else "runtime.resident=false",
            description={"device": "cuda:0"},
        )  # fmt: skip

    monkeypatch.setattr(local, "load_models", load)
    monkeypatch.setattr(local, "fingerprint", lambda *_: "print")
    if failing is not None:

        def check_fails(*_: Any) -> None:
            raise failing

        monkeypatch.setattr(check, "check_resident", check_fails)
    return asked


def engine(home: Path) -> Engine:
    return Engine(Settings(home=str(home), runtime=RuntimeSettings(status=False)))


def test_an_engine_uses_the_device_s_way(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    asked = as_if_resident(monkeypatch, None)
    with engine(home) as opened_engine:
        assert len(opened_engine.analyze(squares(200, 200, [(20, 20, 80)])))
        assert type(opened_engine._running.scheduler).__name__ == "DeviceScheduler"  # type: ignore[union-attr]
        assert opened_engine._running.max_images == 256  # type: ignore[union-attr]
    assert asked == [True]


def test_an_engine_whose_device_fails_the_trial_keeps_pictures_on_the_host(
    monkeypatch: pytest.MonkeyPatch, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked = as_if_resident(monkeypatch, RuntimeError("a kernel does not compile"))
    with engine(home) as opened_engine:
        assert len(opened_engine.analyze(squares(200, 200, [(20, 20, 80)])))
        assert type(opened_engine._running.scheduler).__name__ == "Scheduler"  # type: ignore[union-attr]
    assert asked == [True, False]
    assert "a kernel does not compile" in caplog.text


def test_a_device_that_is_lost_in_the_trial_is_said(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    asked = as_if_resident(monkeypatch, DeviceLostError("gone"))
    with pytest.raises(DeviceLostError), engine(home):
        pass
    assert asked == [True]


def test_which_settings_leave_pictures_on_the_host() -> None:
    from facefleet.backends import Choice
    from facefleet.config import DetectSettings
    from facefleet.models.load import ROLES, _host_way

    models = loaded()
    spec = models.manifest.detector
    card = Choice("torch", "cuda:0", "fp16", False, "")

    def why(settings: Settings, choice: Choice = card, roles: Any = ROLES) -> str:
        return _host_way(choice, settings, spec, roles)

    assert why(Settings()) == ""
    assert why(Settings(), roles=("detector",)) == ""
    assert "aligned" in why(Settings(), roles=("embedder",))
    assert "cpu" in why(Settings(), Choice("torch", "cpu", "fp32", False, ""))
    assert "resident" in why(Settings(runtime=RuntimeSettings(resident=False)))
    assert "target" in why(Settings(batch=BatchSettings(target_p99_ms=50)))
    assert "sizes" in why(Settings(detect=DetectSettings(sizes=("native",))))
