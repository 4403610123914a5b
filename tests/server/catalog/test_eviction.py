"""The eviction policy, beside Belady's optimum and LRU on the same traces."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitarrow.server.catalog.eviction import EvictionPolicy, ReaderId

ONE: ReaderId = ("", "1")
TWO: ReaderId = ("", "2")
TRACES = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=40)


@dataclass
class Cache:
    """A cache of shards that follows the policy."""

    capacity: int
    sizes: Mapping[str, int]
    fetched: int = 0
    in_use: set[str] = field(default_factory=set[str])

    def __post_init__(self) -> None:
        self.policy = EvictionPolicy(self.capacity)

    def announce(self, reader: ReaderId, order: Sequence[str], position: int = 0) -> None:
        self.policy.announce(reader, order, self.sizes, position)

    def fetch(self, key: str, *, before: str | None = None) -> bool:
        excess = sum(self.policy.sizes.values()) + self.sizes[key] - self.capacity
        victims = self.policy.make_room(excess, self.in_use, before=before)
        for victim in victims or ():
            self.policy.remove(victim)
        if victims is not None:
            self.policy.add(key, self.sizes[key])
            self.fetched += self.sizes[key]
        return victims is not None

    def open(self, key: str) -> ReaderId | None:
        if key not in self.policy.sizes:
            assert self.fetch(key)
        assert sum(self.policy.sizes.values()) <= self.capacity
        return self.policy.use(key, self.sizes[key])


def count_optimum(trace: Sequence[str], sizes: Mapping[str, int], capacity: int) -> int:
    """Return the fewest bytes that a cache fetches that keeps each shard while it is opened."""
    total = len(trace)

    @cache
    def rest(index: int, kept: frozenset[str]) -> int:
        if index == total:
            return 0
        key = trace[index]
        if key in kept:
            return rest(index + 1, kept)
        best = None
        others = sorted(kept)
        for mask in range(1 << len(others)):
            stay = {each for bit, each in enumerate(others) if mask >> bit & 1} | {key}
            if sum(sizes[each] for each in stay) <= capacity:
                found = rest(index + 1, frozenset(stay))
                best = found if best is None else min(best, found)
        assert best is not None
        return sizes[key] + best

    return rest(0, frozenset())


def count_belady(trace: Sequence[str], sizes: Mapping[str, int], capacity: int) -> int:
    """Return the bytes that are fetched if the shard goes whose next use is furthest away."""
    following = [len(trace)] * len(trace)
    last: dict[str, int] = {}
    for index in range(len(trace) - 1, -1, -1):
        following[index] = last.get(trace[index], len(trace))
        last[trace[index]] = index
    kept: dict[str, int] = {}
    fetched = 0
    for key, after in zip(trace, following, strict=True):
        if key not in kept:
            fetched += sizes[key]
            while sum(sizes[each] for each in kept) + sizes[key] > capacity:
                del kept[max(kept, key=kept.__getitem__)]
        kept[key] = after
    return fetched


def count_lru(trace: Sequence[str], sizes: Mapping[str, int], capacity: int) -> int:
    kept: OrderedDict[str, None] = OrderedDict()
    fetched = 0
    for key in trace:
        if key not in kept:
            fetched += sizes[key]
            while sum(sizes[each] for each in kept) + sizes[key] > capacity:
                kept.popitem(last=False)
        kept[key] = None
        kept.move_to_end(key)
    return fetched


def count_announced(trace: Sequence[str], sizes: Mapping[str, int], capacity: int) -> int:
    shards = Cache(capacity, sizes)
    shards.announce(ONE, trace)
    for key in trace:
        assert shards.open(key) == ONE
    return shards.fetched


@given(TRACES, st.integers(1, 8))
def test_equal_shards_of_one_reader_are_kept_as_belady_does(trace: list[str], count: int) -> None:
    sizes = dict.fromkeys(trace, 10)
    assert count_announced(trace, sizes, 10 * count) == count_belady(trace, sizes, 10 * count)


@settings(max_examples=20)
@given(st.lists(st.sampled_from("abcde"), min_size=1, max_size=14), st.integers(1, 4))
def test_belady_is_the_optimum_of_equal_shards(trace: list[str], count: int) -> None:
    sizes = dict.fromkeys(trace, 10)
    assert count_belady(trace, sizes, 10 * count) == count_optimum(trace, sizes, 10 * count)


def test_shards_of_other_sizes_are_close_to_the_optimum() -> None:
    numbers = random.Random(1)
    ours = best = 0
    for _ in range(60):
        sizes = {key: numbers.randint(8, 12) for key in "abcdef"}
        trace = numbers.choices("abcdef", k=18)
        capacity = numbers.randint(24, 44)
        ours += count_announced(trace, sizes, capacity)
        best += count_optimum(trace, sizes, capacity)
    assert best <= ours <= 1.05 * best


def make_epochs(
    readers: int, shards: int, epochs: int, numbers: random.Random
) -> list[list[list[str]]]:
    """Return the shards of each reader in each epoch."""
    found: list[list[list[str]]] = []
    for _ in range(epochs):
        order = numbers.sample([f"{index}" for index in range(shards)], shards)
        found.append([order[reader::readers] for reader in range(readers)])
    return found


@pytest.mark.parametrize("share", [0.5, 0.2])
@pytest.mark.parametrize("ahead", [0.0, 0.1])
def test_shuffled_epochs_of_several_readers_are_close_to_the_optimum(
    share: float, ahead: float
) -> None:
    numbers = random.Random(2)
    readers, shards = 8, 160
    sizes = {f"{index}": numbers.randint(50, 150) for index in range(shards)}
    epochs = make_epochs(readers, shards, 4, numbers)
    capacity = int(sum(sizes.values()) * share)
    trace: list[str] = []
    kept = Cache(capacity, sizes)
    for now, following in pairwise(epochs):
        left = [list(order) for order in now]
        for reader in range(readers):
            kept.announce(("", f"{reader}"), now[reader] + following[reader])
        while any(left):
            order = numbers.choice([order for order in left if order])
            for key in kept.policy.list_missing(int(capacity * ahead)):
                if not kept.fetch(key, before=key):
                    break
            trace.append(order.pop(0))
            kept.open(trace[-1])
    best = count_belady(trace, sizes, capacity)
    assert kept.fetched <= 1.05 * best
    assert count_lru(trace, sizes, capacity) > 1.1 * best


def test_a_scan_does_not_evict_what_is_used_often() -> None:
    numbers = random.Random(3)
    sizes = {f"often {index}": 10 for index in range(40)}
    trace: list[str] = []
    for scan in range(300):
        trace.append(f"often {numbers.randrange(40)}")
        if scan >= 100:
            trace += [f"once {scan} {index}" for index in range(4)]
            sizes.update(dict.fromkeys(trace[-4:], 10))
    kept = Cache(500, sizes)
    for key in trace:
        kept.open(key)
    once = sum(sizes[key] for key in trace if key.startswith("once"))
    assert kept.fetched - once < 1.25 * 400
    assert count_lru(trace, sizes, 500) - once > 3 * (kept.fetched - once)


def test_another_working_set_takes_over() -> None:
    sizes = dict.fromkeys("abcdefghijklmnop", 10)
    kept = Cache(80, sizes)
    for _ in range(5):
        for key in "abcdefgh":
            kept.open(key)
    for _ in range(4):
        for key in "ijklmnop":
            kept.open(key)
    before = kept.fetched
    for key in "ijklmnop":
        kept.open(key)
    assert kept.fetched == before


def test_what_is_announced_goes_after_a_scan() -> None:
    kept = Cache(40, dict.fromkeys("abcdefghijkl", 10))
    kept.announce(ONE, "abcabc")
    for key in "abc":
        kept.open(key)
    for key in "defghijkl":
        assert kept.open(key) is None
    assert set("abc") <= kept.policy.sizes.keys()


def test_shards_in_use_stay() -> None:
    kept = Cache(30, dict.fromkeys("abcd", 10), in_use={"a"})
    for key in "abcd":
        kept.open(key)
    assert set(kept.policy.sizes) == {"a", "c", "d"}
    kept.in_use = {"a", "c", "d"}
    assert kept.policy.make_room(10, kept.in_use) == []


def test_a_reader_may_deviate_from_its_order() -> None:
    order = [f"{index}" for index in range(200)]
    kept = Cache(10_000, dict.fromkeys(order, 10))
    kept.announce(ONE, order)
    assert kept.open("1") == ONE
    assert kept.open("0") == ONE
    assert kept.policy.list_missing(20) == ["2", "3"]
    kept.open("5")
    assert kept.policy.list_missing(30)[0] == "2"
    for key in order[6:60]:
        kept.open(key)
    assert kept.policy.list_missing(10) == ["60"]  # it has skipped those before
    assert kept.open("199") is None


def test_a_shard_opened_part_by_part_counts_once() -> None:
    order = list("abcabc")
    kept = Cache(1000, dict.fromkeys("abc", 10))
    kept.announce(ONE, order)
    kept.announce(TWO, "cab")
    assert [kept.open("a"), kept.open("a"), kept.open("a")] == [ONE, None, None]
    assert kept.policy.next_use("a") == 2 * 10  # it is the second one of the other reader


def test_a_position_and_a_withdrawal() -> None:
    kept = Cache(1000, dict.fromkeys("abcd", 10))
    kept.announce(ONE, "abcd", position=2)
    assert kept.policy.list_missing(100) == ["c", "d"]
    kept.announce(ONE, "b")
    assert kept.policy.list_missing(100) == ["b"]
    kept.policy.withdraw(ONE)
    kept.policy.withdraw(TWO)
    assert kept.policy.list_missing(100) == []


def test_nothing_is_fetched_ahead_that_is_needed_later_than_what_would_go() -> None:
    kept = Cache(20, dict.fromkeys("abc", 10))
    kept.announce(ONE, "ababc")
    kept.open("a")
    kept.open("b")
    assert not kept.fetch("c", before="c")
    kept.open("a")
    assert kept.fetch("c", before="c")
    assert set(kept.policy.sizes) == {"b", "c"}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["announce", "withdraw", "open"]),
            st.sampled_from([ONE, TWO]),
            st.text("abcdef", min_size=1, max_size=12),
            st.integers(0, 4),
        ),
        max_size=40,
    )
)
def test_any_sequence_keeps_the_cache_within_its_capacity(
    steps: list[tuple[str, ReaderId, str, int]],
) -> None:
    kept = Cache(35, dict(zip("abcdef", range(5, 11), strict=True)))
    for step, reader, keys, position in steps:
        if step == "announce":
            kept.announce(reader, keys, position)
        elif step == "withdraw":
            kept.policy.withdraw(reader)
        else:
            kept.open(keys[0])
        for key in kept.policy.list_missing(20):
            if kept.fetch(key, before=key):
                assert sum(kept.policy.sizes.values()) <= 35
