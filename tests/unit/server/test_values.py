"""Limits, rates, keys and errors of the server, without a network."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason='needs the extra: pip install "facefleet[server]"')

from facefleet import errors
from facefleet.errors import (
    ConfigError,
    FacefleetError,
    ForbiddenError,
    InternalError,
    NotReadyError,
    QueueFullError,
    RateLimitError,
    UnauthorizedError,
)
from facefleet.server.auth import ANYBODY, Keys, add_key, load_keys
from facefleet.server.errors import STATUS, problem_of, retry_after_header, retry_after_s, status_of
from facefleet.server.grpc.run import grpc_code
from facefleet.server.limits import Limits, Quota, Rate, Room
from facefleet.server.listen import Listen


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def every_error() -> list[type[FacefleetError]]:
    return [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, FacefleetError)]


def test_every_error_has_a_status_on_both_wires() -> None:
    import grpc

    for kind in every_error():
        error = kind("x")
        assert 400 <= status_of(error) <= 599
        assert isinstance(grpc_code(error), grpc.StatusCode)
        problem = problem_of(error, request_id="r")
        assert problem["code"] == kind.code
        assert ("retry_after_s" in problem) == (status_of(error) in (429, 503))
        if kind.retryable and status_of(error) == 503:
            assert retry_after_s(error) is not None
    assert set(STATUS) <= set(every_error())


def test_bugs_keep_their_message_to_themselves() -> None:
    problem = problem_of(InternalError("/secret/path"), request_id="r")
    assert problem["status"] == 500
    assert "secret" not in str(problem)


def test_retry_after_is_whole_seconds_and_not_early() -> None:
    assert [retry_after_header(each) for each in (0.0, 0.2, 1.0, 1.01, 59.5)] == ["1", "1", "1", "2", "60"]
    assert retry_after_s(QueueFullError("x", retry_after_s=4.2)) == 4.2


def test_a_rate_holds_over_time() -> None:
    clock = Clock()
    rate = Rate(10, clock)
    for _ in range(10):
        rate.take()
    with pytest.raises(RateLimitError) as caught:
        rate.take()
    assert 0 < caught.value.retry_after_s <= 0.1
    clock.now = 0.1
    rate.take()
    clock.now = 100.0
    rate.take(50)  # larger than the burst: let through, and paid for afterwards
    with pytest.raises(RateLimitError) as caught:
        rate.take()
    assert caught.value.retry_after_s == pytest.approx(4.1)


def test_a_quota_begins_anew_each_day() -> None:
    clock = Clock()
    clock.now = 86_300.0
    quota = Quota(3, clock)
    quota.take(2)
    with pytest.raises(RateLimitError) as caught:
        quota.take(2)
    assert caught.value.retry_after_s == pytest.approx(100)
    quota.take()
    clock.now = 86_400.0
    quota.take(3)


def test_room_is_given_back() -> None:
    room = Room(Limits(max_requests=1, max_held_bytes=100))
    room.enter()
    with pytest.raises(QueueFullError):
        room.enter()
    room.hold(100)
    with pytest.raises(QueueFullError):
        room.hold(1)
    room.release(100)
    room.leave()
    room.closed = True
    with pytest.raises(NotReadyError):
        room.enter()


def test_bodies_on_their_way_keep_a_place_for_a_second() -> None:
    room = Room(Limits())
    first, second = room.announce(10.0), room.announce(10.5)
    assert room.coming(10.9) == 2
    room.came(first)
    room.came(first)
    room.came(None)
    assert room.coming(10.9) == 1
    assert room.coming(11.6) == 0  # a slow client's
    room.came(second)
    assert room.coming(11.6) == 0


def test_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    reader = add_key(path, "reader", ("read",), 5.0, 100)
    admin = add_key(path, "admin", ("read", "admin"))
    keys = load_keys(path)
    assert keys.required
    caller = keys.caller(reader)
    assert (caller.name, caller.scopes) == ("reader", {"read"})
    with pytest.raises(ForbiddenError):
        caller.need("enrol")
    keys.caller(admin).need("admin")
    for wrong in (None, "", "x", reader[:-1], reader + "x"):
        with pytest.raises(UnauthorizedError):
            keys.caller(wrong)
    with pytest.raises(ConfigError):
        add_key(path, "reader", ("read",))
    with pytest.raises(ConfigError):
        add_key(path, "../x", ("read",))
    assert Keys({}).caller(None) is ANYBODY


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not toml [",
        "[other]",
        '[keys.a]\nsha256 = "x"\nscopes = ["read"]',
        f'[keys.a]\nsha256 = "{"0" * 64}"\nscopes = ["root"]',
        f'[keys.a]\nsha256 = "{"0" * 64}"\nscopes = ["read"]\nimages_per_s = -1',
        f'[keys.a]\nsha256 = "{"0" * 64}"\nscopes = ["read"]\nimages_per_day = 0.5',
        f'[keys.a]\nsha256 = "{"0" * 64}"\nscopes = ["read"]\nsurprise = 1',
    ],
)
def test_key_files_that_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "keys.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"keys\.toml"):
        load_keys(tmp_path / "keys.toml")


def test_half_of_tls_is_refused() -> None:
    with pytest.raises(ConfigError, match="TLS"):
        Listen(certfile="c.pem").check(keyed=False)
    Listen(host="0.0.0.0").check(keyed=True)
    Listen(host="0.0.0.0", uds="/run/facefleet.sock").check(keyed=False)
