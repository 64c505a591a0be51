"""Execution, against a fake that enforces the API's rules. Not run on hardware here."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from facefleet.backends import InputContract, RunnerOptions
from facefleet.backends.tensorrt.run import TensorRtRunner
from facefleet.errors import BackendError, InferenceError, OutOfMemoryError
from tests.unit.backends.tensorrt.fake import FakeCuda, FakeEngine, fake_binding

CONTRACT = InputContract("rgb", (0.0,) * 3, (1.0,) * 3)
PROFILE = ((1, 4, 4, 3), (2, 6, 6, 3), (4, 8, 8, 3))
RANDOM = np.random.default_rng(0)


def pictures(count, height=6, width=5):
    return RANDOM.integers(0, 256, (count, height, width, 3)).astype(np.uint8)


@pytest.fixture
def cuda():
    return FakeCuda()


def runner(tmp_path, cuda, *, instances=1, profiles=1, refuse=None, plan=b"plan", least=None):
    (tmp_path / "network.plan").write_bytes(plan)
    options = RunnerOptions(device="cuda:0", instances=instances, engine=tmp_path)
    made = TensorRtRunner(tmp_path / "net.onnx", CONTRACT, options)
    made.cuda = cuda
    profile = PROFILE if least is None else ((least, *PROFILE[0][1:]), *PROFILE[1:])
    made.binding = fake_binding(FakeEngine(cuda, [profile] * profiles, refuse))
    return made


def right(answer, given):
    assert np.array_equal(answer[0], given.astype(np.float32).sum((1, 2)))
    assert np.array_equal(answer[1], given[:, 0, 0].astype(np.float32))


def test_answers_of_every_batch_and_size(tmp_path, cuda):
    with runner(tmp_path, cuda) as made:
        assert made.output_names == ("sums", "pixels")
        for count, height, width in ((1, 6, 5), (4, 8, 8), (2, 4, 4), (1, 6, 5), (3, 8, 4)):
            given = pictures(count, height, width)
            right(made.run(given), given)
    assert cuda.memory == {}
    assert cuda.streams == set()


def test_a_batch_above_the_largest_is_split(tmp_path, cuda):
    with runner(tmp_path, cuda) as made:
        given = pictures(11)
        right(made.run(given), given)


def test_a_batch_below_the_least_is_padded(tmp_path, cuda):
    with runner(tmp_path, cuda, least=2) as made:
        given = pictures(1)
        right(made.run(given), given)


def test_the_second_run_of_a_shape_is_a_replay(tmp_path, cuda):
    with runner(tmp_path, cuda) as made:
        for expected in (0, 1, 2):
            given = pictures(3)
            right(made.run(given), given)
            assert cuda.launched == expected
        right(made.run(given[:1]), given[:1])
        assert cuda.launched == 2


def test_results_belong_to_the_caller(tmp_path, cuda):
    with runner(tmp_path, cuda) as made:
        first = made.run(pictures(2))[0]
        kept = first.copy()
        made.run(pictures(2))
        assert np.array_equal(first, kept)


def test_instances_have_contexts_profiles_and_buffers_of_their_own(tmp_path, cuda):
    wrong = []
    with runner(tmp_path, cuda, instances=3, profiles=3) as made:
        assert made.binding.module.Runtime(None).deserialize_cuda_engine(b"plan").contexts == 3

        def work():
            for _ in range(30):
                given = pictures(int(RANDOM.integers(1, 5)))
                if not np.array_equal(made.run(given)[0], given.astype(np.float32).sum((1, 2))):
                    wrong.append(1)

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert cuda.memory == {}


def test_instances_need_a_profile_each(tmp_path, cuda):
    with pytest.raises(BackendError, match="as many profiles as instances"):
        runner(tmp_path, cuda, instances=2, profiles=1).open()


@pytest.mark.parametrize(
    ("refuse", "words"),
    [
        ("context", "no execution context: kernel is missing"),
        ("profile", "set the profile: kernel is missing"),
        ("shape", "largest shape"),
    ],
)
def test_every_answer_is_checked_when_it_is_opened(tmp_path, cuda, refuse, words):
    with pytest.raises(BackendError, match=words):
        runner(tmp_path, cuda, refuse=refuse).open()


def test_every_answer_is_checked_when_it_runs(tmp_path, cuda):
    with runner(tmp_path, cuda, refuse="execute") as made, pytest.raises(InferenceError, match="execute"):
        made.run(pictures(1))


def test_pictures_outside_of_the_profile(tmp_path, cuda):
    with runner(tmp_path, cuda) as made, pytest.raises(InferenceError, match="outside of the profile"):
        made.run(pictures(1, 16, 8))


def test_a_plan_of_another_version(tmp_path, cuda):
    with pytest.raises(BackendError, match="build it again"):
        runner(tmp_path, cuda, plan=b"old").open()


def test_a_plan_is_saved_and_needs_a_profile_to_be_built(tmp_path, cuda):
    with runner(tmp_path, cuda) as made:
        (tmp_path / "copy").mkdir()
        made.save(tmp_path / "copy")
    assert (tmp_path / "copy" / "network.plan").read_bytes() == b"plan"
    unbuilt = TensorRtRunner(tmp_path / "net.onnx", CONTRACT, RunnerOptions(device="cuda:0"))
    unbuilt.cuda, unbuilt.binding = cuda, made.binding
    with pytest.raises(BackendError, match="none is given"):
        unbuilt.open()


def test_no_memory(tmp_path):
    with pytest.raises(OutOfMemoryError):
        runner(tmp_path, FakeCuda(limit=100)).open()
