"""The long form: daemons killed at random points, and many shards."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from splitarrow.client.control import connect
from splitarrow.client.spreading import spread

from .conftest import Daemon, numbered, uris, write_shards

Start = Callable[..., list[Daemon]]
KILLS = 100


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_kills_at_random_points_lose_and_double_nothing(daemons: Start, tmp_path: Path) -> None:
    tables = numbered(6, 100_000, batch_rows=2_000)
    whole = pa.concat_tables(tables)
    three = daemons(3)
    spread("trips", write_shards(tmp_path / "shards", tables), uris(*three), replicas=2)
    choose = random.Random(7)
    resumed = 0
    for _ in range(KILLS):
        victim, at = choose.choice(three), choose.randrange(1, 250)
        ways: dict[str, Any] = {
            "parallel": choose.choice([1, 2, 4]),
            "window_bytes": choose.choice([1, 1 << 20, 1 << 26]),
        }
        batches: list[pa.RecordBatch] = []
        with (
            connect(uris(*three)) as client,
            client.read("trips", transport=choose.choice(["tcp", "flight"]), **ways) as stream,
        ):
            for batch in stream:
                batches.append(batch)
                if len(batches) == at:
                    victim.kill()
            resumed += stream.resumed
        assert pa.Table.from_batches(batches) == whole
        victim.start()
    assert resumed > KILLS // 4


@pytest.mark.long
def test_a_thousand_shards(daemons: Start, tmp_path: Path) -> None:
    tables = numbered(1000, 100)
    whole = pa.concat_tables(tables)
    three = daemons(3)
    done = spread("trips", write_shards(tmp_path / "shards", tables), uris(*three), replicas=2)
    held = [each.shards for each in done.daemons.values()]
    assert sum(held) == 2000
    assert min(held) > 600
    with connect(uris(*three)) as client, client.read("trips", window_bytes=1) as stream:
        batches = [next(stream)]
        three[0].kill()
        batches += stream
        assert pa.Table.from_batches(batches) == whole
