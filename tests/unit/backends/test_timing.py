"""Parts of runs, layers and the options for measuring, on the backends that run everywhere."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from facefleet.backends import InputContract, Runner, RunnerOptions, create_runner
from facefleet.backends.timing import COMPUTE, HOST, TRANSFER_OUT, WAIT, active, note, note_rows, part, recording
from facefleet.models.prepare import prepare_embedder
from facefleet.packs import Store

BACKENDS = ("openvino", "onnxruntime", "torch")


def runner_of(backend: str, home: Path, **options: object) -> Runner:
    if backend == "torch":
        pytest.importorskip("torch", reason="torch is not installed")
    store = Store(home)
    located = store.manifest("opencv")
    spec = located.manifest.embedder
    file = prepare_embedder(store, located, backend=backend)
    contract = InputContract(spec.color, spec.mean, spec.std)
    return create_runner(backend, file.path, contract, RunnerOptions(warm=((112, 112),), **options))  # type: ignore[arg-type]


class TestRecording:
    def test_nobody_measures(self) -> None:
        assert active() is None
        with part(COMPUTE):
            note(HOST, 0.0, 1.0)
            note_rows(3)
        assert active() is None

    def test_parts_rows_and_lanes(self) -> None:
        with recording() as record:
            with part(HOST, 2):
                pass
            note(COMPUTE, 1.5, 0.25, 3)
            note_rows(8)
            note_rows(4)
        assert [(each.name, each.lane) for each in record.parts] == [(HOST, 2), (COMPUTE, 3)]
        assert record.parts[1].seconds == 0.25
        assert record.rows == 12
        assert active() is None

    def test_a_failing_part_is_recorded_too(self) -> None:
        with recording() as record, pytest.raises(ValueError, match="x"), part(COMPUTE):
            raise ValueError("x")
        assert [each.name for each in record.parts] == [COMPUTE]

    def test_nested_recordings_and_other_threads_have_their_own(self) -> None:
        with recording() as outer:
            with recording() as inner, part(COMPUTE):
                pass
            thread = threading.Thread(target=lambda: note(HOST, 0.0, 1.0))
            thread.start()
            thread.join()
            with part(WAIT):
                pass
        assert [each.name for each in inner.parts] == [COMPUTE]
        assert [each.name for each in outer.parts] == [WAIT]


class TestRunners:
    @pytest.mark.parametrize("backend", BACKENDS)
    def test_tell_where_the_time_goes(self, backend: str, home: Path) -> None:
        chips = np.random.default_rng(0).integers(0, 256, (3, 112, 112, 3), np.uint8)
        with runner_of(backend, home) as runner, recording() as record:
            runner.run(chips)
        names = {each.name for each in record.parts}
        assert COMPUTE in names
        assert names <= {WAIT, COMPUTE, TRANSFER_OUT}
        spent = {name: sum(each.seconds for each in record.parts if each.name == name) for name in names}
        assert max(spent, key=lambda name: spent[name]) == COMPUTE

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_layers(self, backend: str, home: Path) -> None:
        chip = np.random.default_rng(0).integers(0, 256, (1, 112, 112, 3), np.uint8)
        with runner_of(backend, home) as runner:
            layers = runner.layer_milliseconds(chip)
        assert len(layers) > 20
        assert all(value >= 0 for value in layers.values())
        assert sum(layers.values()) > 0
        assert sum("conv" in name.lower() for name in layers) > 10

    @pytest.mark.parametrize("backend", ["openvino", "onnxruntime"])
    def test_whole_batches_give_the_same_answers_nearly(self, backend: str, home: Path) -> None:
        chips = np.random.default_rng(0).integers(0, 256, (4, 112, 112, 3), np.uint8)
        with runner_of(backend, home) as runner:
            (singles,) = runner.run(chips)
        with runner_of(backend, home, whole_batches=True, chunk=4) as runner, recording() as record:
            (together,) = runner.run(chips)
            runs = [each for each in record.parts if each.name == COMPUTE]
            (odd,) = runner.run(chips[:3])
        assert len(runs) == 1
        np.testing.assert_allclose(together, singles, atol=2e-3 * np.abs(singles).max())
        np.testing.assert_allclose(odd, singles[:3], atol=2e-3 * np.abs(singles).max())
