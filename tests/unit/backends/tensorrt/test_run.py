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
    made = FakeCuda()
    made.activate()  # CudaRuntime does, in the thread that makes it
    return made


def runner(
    tmp_path,
    cuda,
    *,
    instances=1,
    profiles=(PROFILE,),
    refuse=None,
    plan=b"plan",
    device="cuda",
    rtx=False,
    graphs=True,
    **more,
):
    (tmp_path / "network.plan").write_bytes(plan)
    options = RunnerOptions(device=device, instances=instances, engine=tmp_path, cuda_graphs=graphs)
    made = TensorRtRunner(tmp_path / "net.onnx", CONTRACT, options)
    made.cuda = cuda
    made.binding = fake_binding(FakeEngine(cuda, list(profiles), refuse, **more), rtx=rtx)
    return made


def engine_of(made):
    return made.binding.module.Runtime(None).deserialize_cuda_engine(b"plan")


def right(answer, given):
    assert np.array_equal(answer[0], given.astype(np.float32).sum((1, 2)))
    assert np.array_equal(answer[1], given[:, 0, 0].astype(np.float32))


def test_answers_of_every_batch_and_size(tmp_path, cuda):
    with runner(tmp_path, cuda) as made:
        assert made.output_names == ("sums", "pixels")
        for count, height, width in ((1, 6, 5), (4, 8, 8), (2, 4, 4), (1, 6, 5), (3, 8, 4)):
            given = pictures(count, height, width)
            right(made.run(given), given)
    assert cuda.empty


def test_a_batch_above_the_largest_is_split(tmp_path, cuda):
    with runner(tmp_path, cuda) as made:
        given = pictures(11)
        right(made.run(given), given)


def test_a_batch_below_the_least_is_padded(tmp_path, cuda):
    with runner(tmp_path, cuda, profiles=(((2, 4, 4, 3), *PROFILE[1:]),)) as made:
        given = pictures(1)
        right(made.run(given), given)


def test_every_bucket_has_a_graph_of_its_own(tmp_path, cuda):
    """Captured at the second run of a shape, and good for ever: other shapes have other contexts."""
    with runner(tmp_path, cuda) as made:
        assert [context.shape[0] for context in engine_of(made).contexts[1:]] == [4, 2, 1], "warmed, the largest first"
        assert cuda.launched == 0
        for launched, count in enumerate((3, 1, 2, 4, 1, 3), start=1):  # 3 is padded to 4
            given = pictures(count, 6, 6)
            right(made.run(given), given)
            assert cuda.launched == launched
        assert len(cuda.graphs) == 3
        assert all(graph.alive for graph in cuda.graphs)
        assert set(engine_of(made).strategies) == {"user"}, "contexts share their memory"
    assert cuda.empty


def test_shapes_that_come_and_go(tmp_path, cuda):
    """Contexts are kept for so many shapes only."""
    profile = ((1, 4, 4, 3), (1, 4, 4, 3), (1, 16, 16, 3))
    with runner(tmp_path, cuda, profiles=(profile,)) as made:
        for _ in range(2):
            for height in range(4, 17):
                for width in (4, 9, 16):
                    given = pictures(1, height, width)
                    right(made.run(given), given)
        alive = sum(graph.alive for graph in cuda.graphs)
        assert alive <= 32
        assert len(made._slots.get()._contexts) == 32
    assert cuda.empty


SEVERAL = (
    ((1, 4, 4, 3), (2, 6, 6, 3), (4, 8, 8, 3)),
    ((16, 6, 6, 3), (32, 6, 6, 3), (32, 6, 6, 3)),
    ((1, 10, 10, 3), (1, 12, 12, 3), (1, 12, 12, 3)),
)


@pytest.mark.parametrize(
    ("count", "side", "runs"),
    [
        (1, 6, [(0, 1)]),
        (3, 6, [(0, 4)]),
        (5, 6, [(0, 4), (0, 1)]),  # padding to 16 would be more than double
        (9, 6, [(1, 16)]),
        (20, 6, [(1, 32)]),
        (35, 6, [(1, 32), (0, 4)]),
        (20, 5, [(0, 4)] * 5),
        (2, 11, [(2, 1), (2, 1)]),
    ],
)
def test_several_profiles_in_one_engine(tmp_path, cuda, monkeypatch, count, side, runs):
    from facefleet.backends.tensorrt.slot import Slot

    seen = []
    run_batch = Slot._run_batch

    def spy(self, context, part):
        seen.append((context._context.profile, context.shape[0]))
        return run_batch(self, context, part)

    with runner(tmp_path, cuda, profiles=SEVERAL) as made:
        monkeypatch.setattr(Slot, "_run_batch", spy)
        for _ in range(3):
            seen.clear()
            given = pictures(count, side, side)
            right(made.run(given), given)
            assert seen == runs
    assert cuda.empty


def test_rtx_captures_by_itself(tmp_path, cuda):
    with runner(tmp_path, cuda, rtx=True) as made:
        for _ in range(3):
            given = pictures(2)
            right(made.run(given), given)
        assert set(engine_of(made).rtx_graphs[1:]) == {"whole"}
    assert (cuda.launched, cuda.graphs) == (0, [])


def test_no_graphs_where_none_are_wanted(tmp_path, cuda):
    with runner(tmp_path, cuda, graphs=False) as made:
        for _ in range(3):
            made.run(pictures(2))
    assert cuda.graphs == []


@pytest.mark.parametrize("how", ["refused", "invalid"])
def test_what_cannot_be_recorded_runs_without(tmp_path, cuda, caplog, how):
    cuda.recordable = how != "invalid"
    with runner(tmp_path, cuda, refuse="recording" if how == "refused" else None) as made:
        for _ in range(4):
            given = pictures(2)
            right(made.run(given), given)
    assert cuda.launched == 0
    assert caplog.text.count("no CUDA graph for (2, 6, 5, 3)") == 1
    assert cuda.empty


def test_results_belong_to_the_caller(tmp_path, cuda):
    with runner(tmp_path, cuda) as made:
        first = made.run(pictures(2))[0]
        kept = first.copy()
        made.run(pictures(2))
        assert np.array_equal(first, kept)


def test_instances_have_contexts_streams_and_buffers_of_their_own(tmp_path, cuda):
    wrong = []
    with runner(tmp_path, cuda, instances=3) as made:
        assert len(cuda.streams) == 3

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
    assert cuda.empty


@pytest.mark.parametrize(
    ("refuse", "words"),
    [
        ("context", "no execution context: kernel is missing"),
        ("profile", "set profile 0: kernel is missing"),
        ("shape", "take the shape"),
        ("infer", "shapes contradict each other"),
        ("size", "depends on what is in the pictures"),
        ("address", "take the address of pictures"),
    ],
)
def test_every_answer_is_checked_when_it_is_opened(tmp_path, cuda, refuse, words):
    with pytest.raises(BackendError, match=words):
        runner(tmp_path, cuda, refuse=refuse).open()
    assert cuda.empty


def test_shapes_that_are_not_known(tmp_path, cuda):
    with pytest.raises(InferenceError, match="those of mask are not known"):
        runner(tmp_path, cuda, missing=("mask",)).open()
    assert cuda.empty


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"reads": ("FLOAT", 3)}, r"reads pictures float32 \(-1, -1, -1, 3\), not"),
        ({"reads": ("UINT8", 4)}, "reads pictures uint8"),
        ({"answers": "HALF"}, "answers in sums float16, pixels float16"),
        ({"device": "cpu"}, "not on 'cpu'"),
    ],
)
def test_what_it_is_not_for(tmp_path, cuda, more, words):
    with pytest.raises(BackendError, match=words):
        runner(tmp_path, cuda, **more).open()
    assert cuda.empty


def test_a_slot_is_good_after_a_run_that_failed(tmp_path, cuda):
    with runner(tmp_path, cuda) as made:
        engine = engine_of(made)
        made.run(pictures(2))
        engine.missing = ("mask",)
        with pytest.raises(InferenceError, match="mask"):
            made.run(pictures(3, 8, 4))
        engine.missing = ()
        for size in ((2, 6, 5), (3, 8, 4), (2, 6, 5)):
            given = pictures(*size)
            right(made.run(given), given)


def test_any_thread_may_run_and_close(tmp_path, cuda):
    made = runner(tmp_path, cuda)
    made.open()
    answers, given = [], pictures(2)
    for work in (lambda: answers.append(made.run(given)), made.close):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    right(answers[0], given)
    assert cuda.empty


def test_every_answer_is_checked_when_it_runs(tmp_path, cuda):
    with pytest.raises(InferenceError, match="execute"):
        runner(tmp_path, cuda, refuse="execute").open()  # it is warmed
    with runner(tmp_path, cuda) as made:
        engine_of(made).refuse = "execute"
        with pytest.raises(InferenceError, match="execute"):
            made.run(pictures(1, 4, 4))
    assert cuda.empty


def test_pictures_outside_of_the_profile(tmp_path, cuda):
    with (
        runner(tmp_path, cuda) as made,
        pytest.raises(InferenceError, match=r"16 x 8 are outside of every profile .*height 4 to 8 and width 4 to 8"),
    ):
        made.run(pictures(1, 16, 8))


def test_a_plan_of_another_version(tmp_path, cuda):
    made = runner(tmp_path, cuda, plan=b"old")
    made.binding.logger.kept.append("of an earlier call")
    with pytest.raises(BackendError, match=r"no reason given .build it again"):
        made.open()
    made = runner(tmp_path, cuda)
    (tmp_path / "network.plan").unlink()
    with pytest.raises(BackendError, match="no plan in"):
        made.open()


def test_a_plan_is_saved_and_needs_a_profile_to_be_built(tmp_path, cuda):
    with runner(tmp_path, cuda) as made:
        (tmp_path / "copy").mkdir()
        made.save(tmp_path / "copy")
    assert (tmp_path / "copy" / "network.plan").read_bytes() == b"plan"
    unbuilt = TensorRtRunner(tmp_path / "net.onnx", CONTRACT, RunnerOptions(device="cuda:0"))
    unbuilt.cuda, unbuilt.binding = cuda, made.binding
    with pytest.raises(BackendError, match="none is given"):
        unbuilt.open()


@pytest.mark.parametrize("limit", [100, 600, 2000])
def test_no_memory(tmp_path, cuda, limit):
    cuda.limit = limit
    with pytest.raises(OutOfMemoryError):
        runner(tmp_path, cuda, instances=2).open()
    assert cuda.empty


def test_layers_are_timed_without_recording(tmp_path, cuda):
    with runner(tmp_path, cuda) as opened:
        opened.run(pictures(2))
        opened.run(pictures(2))  # recorded now
        layers = opened.layer_milliseconds(pictures(1))
        given = pictures(3)
        answer = opened.run(given)
    assert layers == {"conv1 + relu1": 0.25, "gemm": 0.5}
    right(answer, given)
