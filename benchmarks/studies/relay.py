"""What a relay fetches from its upstream during shuffled epochs, as JSON.

``python -m splitarrow.benchmarks.studies.relay [SHARDS]`` publishes shards of different sizes, and
reads them through a relay: some readers at a time, in epochs in each of which every shard is read
by one of them. The figures are bytes, for caches of different parts of the dataset: with the order
announced, and fetched ahead or not, and without. The optimum (Belady, 1966) and LRU are computed
from the trace of the reads.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa

from ... import connect
from ...publication.version_store import VersionStore
from ...testing import Daemon

SHARDS = 160
READERS = 8
EPOCHS = 3
SHARES = (0.5, 0.2)
_ROWS = 20_000
_CONTROL = "grpc://127.0.0.1:0"
_NAME = "data"
_RUNS = {
    "announced": (True, "1GiB"),
    "announced, not fetched ahead": (True, "0"),
    "not announced": (False, "0"),
}
"""Whether each run announces the order, and how much the relay fetches ahead."""


def measure(
    shards: int = SHARDS, epochs: int = EPOCHS, shares: Sequence[float] = SHARES, rows: int = _ROWS
) -> dict[str, Any]:
    """Return the bytes that a relay fetches, and those of the optimum and LRU, for each cache."""
    numbers = np.random.default_rng(1)
    with TemporaryDirectory(prefix="splitarrow-relay-") as name:
        sizes = _publish(Path(name, "published"), shards, rows, numbers)
        orders = [
            [part.tolist() for part in np.array_split(numbers.permutation(shards), READERS)]
            for _ in range(epochs + 1)
        ]
        found: dict[str, Any] = {"dataset": sum(sizes), "caches": []}
        for share in shares:
            for label, (announces, ahead) in _RUNS.items():
                folder = Path(name, f"cache {share} {label}")
                run = _Run(Path(name, "published"), folder, int(sum(sizes) * share), ahead)
                figures = run.measure(orders, dict(enumerate(sizes)), announces=announces)
                found["caches"].append({"share": share, "run": label, **figures})
    return found


def _publish(folder: Path, shards: int, rows: int, numbers: np.random.Generator) -> list[int]:
    """Publish shards with half to one and a half times `rows` rows; return their sizes."""
    store, entries = VersionStore(str(folder)), list[Any]()
    for index in range(shards):
        values = numbers.normal(size=int(numbers.integers(rows // 2, rows * 3 // 2)))
        batch = pa.record_batch({"x": pa.array(values)})
        entries.append(store.write_shard("first", f"{index:05d}.arrow", batch.schema, [batch]))
    manifest = store.commit("first", pa.schema({"x": pa.float64()}), entries, append=False)
    return [shard.nbytes for shard in manifest.shards]


class _Run:
    """The epochs of all readers through one relay."""

    def __init__(self, published: Path, folder: Path, nbytes: int, ahead: str) -> None:
        self._published = published
        self._nbytes = nbytes
        self._arguments = ["--cache", str(folder), "--cache-bytes", str(nbytes)]
        self._arguments += ["--prefetch-bytes", ahead]
        self._trace: list[int] = []
        self._lock = threading.Lock()

    def measure(
        self, orders: list[list[list[int]]], sizes: Mapping[int, int], *, announces: bool
    ) -> dict[str, Any]:
        with (
            Daemon({_NAME: self._published}, control=_CONTROL) as origin,
            Daemon(
                control=_CONTROL, upstream=origin.control_uri, arguments=self._arguments
            ) as relay,
            connect(relay.control_uri) as client,
            connect(origin.control_uri) as upstream,
            ThreadPoolExecutor(READERS) as threads,
        ):

            def read(reader: int, epoch: int) -> None:
                order = orders[epoch][reader]
                if announces:
                    both = order + orders[epoch + 1][reader]
                    client.announce(_NAME, both, reader=f"{reader}")
                for shard in order:
                    with self._lock:
                        self._trace.append(shard)
                    client.read(_NAME, shards=[shard]).read_all()

            begin = time.monotonic()
            for epoch in range(len(orders) - 1):
                list(threads.map(lambda reader: read(reader, epoch), range(READERS)))  # noqa: B023
            seconds = time.monotonic() - begin
            fetched = upstream.status()["sent"][_NAME]["bytes"]
        best = count_belady(self._trace, sizes, self._nbytes)
        lru = count_lru(self._trace, sizes, self._nbytes)
        return {
            "upstream": fetched,
            "belady": best,
            "lru": lru,
            "upstream / belady": round(fetched / best, 3),
            "lru / belady": round(lru / best, 3),
            "seconds": round(seconds, 2),
        }


def count_belady(trace: Sequence[int], sizes: Mapping[int, int], nbytes: int) -> int:
    """Return the bytes to fetch if what is used last in the future is evicted first."""
    following = [len(trace)] * len(trace)
    last: dict[int, int] = {}
    for index in range(len(trace) - 1, -1, -1):
        following[index] = last.get(trace[index], len(trace))
        last[trace[index]] = index
    return _count(trace, following, sizes, nbytes)


def count_lru(trace: Sequence[int], sizes: Mapping[int, int], nbytes: int) -> int:
    """Return the bytes to fetch if the least recently used is evicted first."""
    return _count(trace, [-index for index in range(len(trace))], sizes, nbytes)


def _count(
    trace: Sequence[int], ranks: Sequence[int], sizes: Mapping[int, int], nbytes: int
) -> int:
    """Return the bytes to fetch if the shard goes first whose last use has the highest rank."""
    kept: dict[int, int] = {}
    used = fetched = 0
    for shard, rank in zip(trace, ranks, strict=True):
        if shard not in kept:
            fetched += sizes[shard]
            used += sizes[shard]
            while used > nbytes:
                victim = max(kept, key=kept.__getitem__)
                used -= sizes[victim]
                del kept[victim]
        kept[shard] = rank
    return fetched


if __name__ == "__main__":
    print(json.dumps(measure(int((sys.argv[1:] or [SHARDS])[0])), indent=2))
