"""The logic of the clients, without a network: what is sent, when it is sent again, and how answers are read."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from facefleet.client import logic
from facefleet.client.logic import More, Pause, Reply, Request, Retries
from facefleet.client.shared import Meter, Progress
from facefleet.client.upload import form
from facefleet.client.values import Item
from facefleet.errors import (
    CorruptImageError,
    NoFaceError,
    QueueFullError,
    ServerError,
    SourceError,
    UnauthorizedError,
)

STEADY = Retries(most=3, jitter=lambda: 0.0)
VECTOR = np.array([0.6, 0.8], np.float32)
FACE = {
    "box": [1, 2, 3, 4],
    "landmarks": None,
    "score": 0.9,
    "status": "ok",
    "embedding": base64.b64encode(VECTOR.tobytes()).decode(),
    "norm": 2.0,
    "quality": {"blur": None},
}
PICTURE = {"input": "x", "status": "ok", "width": 8, "height": 6, "best_rejected": 0.1, "faces": [FACE]}


def problem(code: str, status: int, after: float | None = None, **more: Any) -> Reply:
    tree = {"code": code, "status": status, "detail": "no", "hint": "do", "retryable": True, **more}
    return Reply(status, json.dumps(tree).encode(), after)


def ok(tree: Any) -> Reply:
    return Reply(200, json.dumps(tree).encode())


def drive(plan: Any, *replies: Reply) -> tuple[Any, list[Any]]:
    """Run a plan with these replies; its value, and the steps it took."""
    waiting, steps = list(replies), []
    try:
        step = next(plan)
        while True:
            steps.append(step)
            step = plan.send(waiting.pop(0) if isinstance(step, (Request, More)) else Reply(0))
    except StopIteration as end:
        assert not waiting
        return end.value, steps


def test_faces_are_values() -> None:
    found, steps = drive(logic.faces(b"data", embed=True, retries=STEADY), ok(PICTURE))
    assert (found.width, found.height, found.best_rejected) == (8, 6, 0.1)
    np.testing.assert_array_equal(found.faces[0].embedding, VECTOR)
    assert found.faces[0].landmarks is None
    assert steps[0].path == "/v1/faces?embeddings=base64"


def test_retry_after_is_honoured_then_doubling() -> None:
    replies = [
        problem("queue_full", 503, 7.0, retry_after_s=7.0),
        problem("rate_limited", 429, 2.0),
        Reply(0),
        ok(PICTURE),
    ]
    _, steps = drive(logic.faces(b"", embed=False, retries=STEADY), *replies)
    assert [step.seconds for step in steps if isinstance(step, Pause)] == [7.0, 2.0, 0.2]


def test_jitter_never_comes_before_retry_after() -> None:
    late = Retries(jitter=lambda: 0.999)
    assert 10.0 <= late.pause_s(1, 10.0) <= 12.5
    assert late.pause_s(30, None) <= 30.0


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("corrupt_image", 422, CorruptImageError),
        ("unauthorized", 401, UnauthorizedError),
        ("brand_new", 400, ServerError),
    ],
)
def test_what_trying_again_cannot_better_is_raised_at_once(code: str, status: int, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="no"):
        drive(logic.faces(b"", embed=True, retries=STEADY), problem(code, status))


def test_it_gives_up_with_the_servers_error() -> None:
    with pytest.raises(QueueFullError) as caught:
        drive(logic.faces(b"", embed=True, retries=STEADY), *[problem("queue_full", 503, 1.0, retry_after_s=3.5)] * 4)
    assert caught.value.retry_after_s == 3.5
    with pytest.raises(ServerError, match="refused"):
        drive(logic.faces(b"", embed=True, retries=Retries(most=0)), Reply(0, failure="connection refused"))


def test_what_may_have_been_done_is_not_done_twice() -> None:
    with pytest.raises(ServerError):
        drive(logic.create_gallery("people", retries=STEADY), Reply(0, failure="reset"))
    tree = {"id": "a", "name": "people", "people": 0, "samples": 0}
    made, _ = drive(logic.create_gallery("people", retries=STEADY), problem("not_ready", 503), ok(tree))
    assert made.id == "a"


def test_answers_that_are_no_answers() -> None:
    for content in (b"<html>", b"[1]"):
        with pytest.raises(ServerError, match="facefleet server"):
            drive(logic.info(retries=STEADY), Reply(200, content))


def test_enrol_says_why_nobody_was_stored() -> None:
    tree = {"person": None, "results": [{"id": "0", "reasons": ["no face"]}]}
    with pytest.raises(NoFaceError, match="no face"):
        drive(logic.enrol("g", "n", [b"x"], retries=STEADY), ok(tree))


def line(index: int, **tree: Any) -> Reply:
    return Reply(200, json.dumps({"index": index, "id": "x", **tree}).encode(), more=True)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{n}.jpg" for n in range(3)]
    for path in paths:
        path.write_bytes(path.name.encode())
    return paths


def items(steps: list[Any]) -> dict[str, Item]:
    found = [step for step in steps if isinstance(step, Item)]
    assert len({item.id for item in found}) == len(found), "each file once"
    return {Path(item.id).name: item for item in found}


def test_a_folder_is_sent_again_where_that_can_help(files: list[Path]) -> None:
    full = {"code": "queue_full", "retryable": True, "retry_after_s": 4.0, "detail": "", "hint": ""}
    broken = {"code": "corrupt_image", "retryable": False, "detail": "bad", "hint": ""}
    plan = logic.folder([*files, Path("/nowhere.jpg")], embed=True, size=8, retries=STEADY)
    first = [
        line(1, result=PICTURE),
        line(0, error=full),
        line(2, error=broken),
        Reply(200, b'{"totals": {}}', more=True),
    ]
    _, steps = drive(plan, *first, Reply(200), line(0, result=PICTURE), Reply(200))
    found = items(steps)
    assert isinstance(found["nowhere.jpg"].error, SourceError)
    assert isinstance(found["2.jpg"].error, CorruptImageError)
    assert found["0.jpg"].picture is not None
    assert found["1.jpg"].picture is not None
    requests = [step for step in steps if isinstance(step, Request)]
    assert [len(request.files) for request in requests] == [3, 1]
    assert [step.seconds for step in steps if isinstance(step, Pause)] == [4.0]


def test_a_connection_that_ends_in_between_loses_nothing(files: list[Path]) -> None:
    torn = Reply(200, b'{"index": 1, "resu', more=True)
    plan = logic.folder(files, embed=True, size=8, retries=STEADY)
    _, steps = drive(
        plan,
        line(0, result=PICTURE),
        torn,
        Reply(0, failure="reset"),
        line(1, result=PICTURE),
        line(0, result=PICTURE),
        Reply(200),
    )
    assert {name for name, item in items(steps).items() if item.picture} == {"0.jpg", "1.jpg", "2.jpg"}
    hopeless = logic.folder(files[:1], embed=True, size=8, retries=Retries(most=1, jitter=lambda: 0.0))
    _, steps = drive(hopeless, torn, Reply(0), torn, Reply(0))
    assert isinstance(items(steps)["0.jpg"].error, ServerError)


def test_files_of(tmp_path: Path) -> None:
    for name in ("b.jpg", "a/c.jpg", ".hidden/d.jpg", ".e.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    assert [path.name for path in logic.files_of(tmp_path)] == ["c.jpg", "b.jpg"]
    assert logic.files_of(tmp_path / "b.jpg") == [tmp_path / "b.jpg"]
    with pytest.raises(SourceError):
        logic.files_of(tmp_path / "none")


def test_a_form_is_made_in_pieces(tmp_path: Path) -> None:
    multipart = pytest.importorskip("python_multipart", reason='needs the extra: pip install "facefleet[server]"')
    large = tmp_path / "large"
    large.write_bytes(bytes(600_000))
    told: list[Progress] = []
    meter = Meter(2, told.append)
    kind, pieces = form((("0", large), ("1", b"small")), meter.sent)
    whole = list(pieces)
    assert max(map(len, whole)) <= 256 << 10
    assert told[-1].sent_bytes == 600_005
    found: list[bytes] = []
    current = bytearray()
    _, options = multipart.multipart.parse_options_header(kind)
    callbacks: dict[str, Callable[..., Any]] = {
        "on_part_data": lambda data, start, end: current.extend(data[start:end]),
        "on_part_end": lambda: (found.append(bytes(current)), current.clear()),
    }
    multipart.MultipartParser(options[b"boundary"], callbacks).write(b"".join(whole))
    assert found == [bytes(600_000), b"small"]
