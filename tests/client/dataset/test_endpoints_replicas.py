"""The order in which a read tries the replicas of an endpoint, and the pauses in between."""

from __future__ import annotations

from typing import Any, cast

import pytest

from splitarrow.client.dataset.endpoints import Replica, ReplicaSet, draw_pause
from splitarrow.client.rpc.channel import FlightChannel
from splitarrow.errors import ConnectError, NotFoundError
from splitarrow.protocol.request import Request


class Channel:
    def __init__(self, address: str) -> None:
        self.address = address


def no_description(request: Request) -> Any:
    raise AssertionError("a replica set makes no calls")


def replica(address: str, version: str = "1") -> Replica:
    channel = cast(FlightChannel, Channel(address))
    return Replica(channel, no_description, Request("d"), version, None, None)


def replica_set(
    addresses: str, attempts: int = 2, unreachable: set[str] | None = None
) -> ReplicaSet:
    shared = set[str]() if unreachable is None else unreachable
    return ReplicaSet([replica(address) for address in addresses], attempts, shared)


def tried(replicas: ReplicaSet, **options: Any) -> tuple[str, list[float]]:
    """Return the addresses of all further attempts, and the pauses, if none succeeds."""
    pauses: list[float] = []
    addresses = [each.channel.address for each in replicas.next_attempts(pauses.append, **options)]
    return "".join(addresses), pauses


def test_attempts_take_turns_and_pause_before_each_round() -> None:
    addresses, pauses = tried(replica_set("ab", attempts=4))
    assert addresses == "babababa"
    assert_drawn(pauses, [0.1, 0.2, 0.4, 0.8])


def test_pauses_stop_growing() -> None:
    _, pauses = tried(replica_set("a", attempts=9))
    assert_drawn(pauses, [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0])


def assert_drawn(pauses: list[float], longest: list[float]) -> None:
    """Check that each pause is between half of the longest one and all of it."""
    assert len(pauses) == len(longest)
    for pause, most in zip(pauses, longest, strict=True):
        assert most / 2 <= pause <= most


@pytest.mark.parametrize("retry", [0, 3, 20])
def test_readers_that_fail_together_do_not_come_back_together(retry: int) -> None:
    longest = min(0.1 * 2**retry, 5.0)
    pauses = sorted(draw_pause(retry) for _ in range(1000))
    in_steps = [
        sum(1 for p in pauses if at <= (p / longest - 0.5) * 20 < at + 1) for at in range(10)
    ]
    assert min(in_steps) > 30
    assert max(in_steps) < 300


def test_a_limit_replaces_the_attempts_per_replica() -> None:
    addresses, pauses = tried(replica_set("abc"), limit=4)
    assert addresses == "bcab"
    assert_drawn(pauses, [0.1, 0.2])


def test_the_current_replica_may_be_tried_first() -> None:
    assert tried(replica_set("ab", attempts=1), start_with_current=True)[0] == "ab"


def test_failed_attempts_count_until_rows_arrive() -> None:
    replicas = replica_set("ab")
    assert tried(replicas)[0] == "baba"
    assert tried(replicas)[0] == ""
    replicas.reset_attempts()
    assert tried(replicas)[0] == "baba"


@pytest.mark.parametrize(("advances", "left"), [(0, "bcbc"), (1, "caca"), (2, "abab")])
def test_a_dropped_replica_is_not_tried_again(advances: int, left: str) -> None:
    replicas = replica_set("abc")
    for _, _ in zip(range(advances), replicas.next_attempts(lambda _: None), strict=False):
        pass
    replicas.reset_attempts()
    assert replicas.drop_current()
    assert tried(replicas)[0] == left


def test_the_last_replica_is_not_dropped() -> None:
    replicas = replica_set("ab")
    assert replicas.drop_current()
    assert replicas.is_single
    assert not replicas.drop_current()
    assert replicas.current.channel.address == "b"


def test_unreachable_servers_are_tried_last_by_all_endpoints_of_a_read() -> None:
    unreachable: set[str] = set()
    one, other = (replica_set("abc", unreachable=unreachable) for _ in range(2))
    one.record_failure(ConnectError("down"))
    other.prefer_reachable()
    assert other.current.channel.address == "b"
    assert tried(other, limit=2)[0] == "ca"
    one.record_success()
    other = replica_set("abc", unreachable=unreachable)
    other.prefer_reachable()
    assert other.current.channel.address == "a"


def test_a_refusal_does_not_make_a_server_unreachable() -> None:
    unreachable: set[str] = set()
    replicas = replica_set("ab", unreachable=unreachable)
    replicas.record_failure(NotFoundError("no dataset"))
    assert unreachable == set()
    next(replicas.next_attempts(lambda _: None))
    replicas.record_failure(ConnectError("down"))
    assert replicas.reasons == "a: no dataset; b: down"


@pytest.mark.parametrize(
    ("version", "attempts", "can_resume"), [("1", 2, True), ("1", 0, False), ("", 2, False)]
)
def test_resuming_needs_a_version_and_attempts(
    version: str, attempts: int, can_resume: bool
) -> None:
    assert ReplicaSet([replica("a", version)], attempts, set()).can_resume == can_resume
