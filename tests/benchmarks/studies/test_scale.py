"""The study of many hosts: its simulation, at a small size."""

from __future__ import annotations

import pytest

from splitarrow.benchmarks.studies.scale import (
    Case,
    Layout,
    Simulation,
    measure_call,
    measure_connections,
    measure_skew,
    order_shards,
    serve_shards,
)


def test_the_ranks_of_a_job_share_an_epoch() -> None:
    orders = order_shards(12, 4, 0, 0)
    assert sorted(shard for order in orders for shard in order) == list(range(12))
    assert orders != order_shards(12, 4, 0, 1)


def test_placement_is_uneven() -> None:
    assert 1 < measure_skew(1000, 10) < measure_skew(1000, 100)
    assert measure_skew(1000, 1) == 1


@pytest.mark.parametrize(
    ("layout", "first", "second"),
    [("no relays", 6, 6), ("a relay per host", 3, 0), ("peers", 1, 0), ("rack relays", 1, 0)],
)
def test_caches_of_the_whole_dataset_fetch_it_once(layout: Layout, first: int, second: int) -> None:
    case = Case(hosts=3, shards=20, layout=layout, readers=2, daemons=2)
    run = Simulation(case).run(2)
    assert [traffic.storage for traffic in run] == [first, second]
    assert [traffic.read for traffic in run] == [6, 6]
    assert first / 2 < run[0].busiest < first


def test_smaller_caches_fetch_again() -> None:
    case = Case(hosts=1, shards=40, layout="a relay per host", share=0.5)
    first, second = Simulation(case).run(2)
    assert first.storage == 1
    assert second.storage == pytest.approx(0.5, abs=0.1)  # the optimum: the order is announced


def test_ranks_seldom_find_what_their_relay_has() -> None:
    case = Case(hosts=10, shards=20, layout="a relay per host", ranks=10)
    alone = Simulation(case).run(2)[1].storage
    assert 0.7 < alone <= 1
    assert Simulation(Case(hosts=10, shards=20, layout="peers", ranks=10)).run(2)[1].storage == 0


def test_peers_that_differ_or_fail_fetch_a_shard_more_than_once() -> None:
    def count(listed: float = 1, failed: float = 0) -> float:
        case = Case(hosts=20, shards=40, layout="peers", listed=listed, failed=failed)
        return Simulation(case).run(1)[0].storage

    assert count() == 1
    assert 1 < count(failed=0.2) < count(failed=0.5) < 20
    assert 1 < count(listed=0.5) < 4


@pytest.mark.slow
def test_calls_and_connections_are_measured() -> None:
    with serve_shards(5) as daemon:
        cost = measure_call(daemon, "listing", 0.2)
        assert cost.per_second > 0
        assert 0 < cost.seconds < 0.2
        served, connected = measure_connections(daemon, 20)
        assert 0 < served < 1 << 20
        assert 0 < connected < 1 << 20
