"""The long form: daemons are killed at random points, and datasets have many shards."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from helpers.cluster import StartDaemons, join_uris, make_numbered_shards
from helpers.files import write_shards
from splitarrow.client.cluster.publication import publish_shards
from splitarrow.client.connect import connect

KILLS = 100


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_kills_at_random_points_neither_lose_nor_repeat_rows(
    daemons: StartDaemons, tmp_path: Path
) -> None:
    tables = make_numbered_shards(6, 100_000, batch_rows=2_000)
    whole = pa.concat_tables(tables)
    three = daemons(3)
    publish_shards(
        "trips", write_shards(tmp_path / "shards", tables), join_uris(*three), replicas=2
    )
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
            connect(join_uris(*three)) as client,
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
def test_a_thousand_shards_read_as_one_dataset(daemons: StartDaemons, tmp_path: Path) -> None:
    tables = make_numbered_shards(1000, 100)
    whole = pa.concat_tables(tables)
    three = daemons(3)
    done = publish_shards(
        "trips", write_shards(tmp_path / "shards", tables), join_uris(*three), replicas=2
    )
    held = [each.shards for each in done.daemons.values()]
    assert sum(held) == 2000
    assert min(held) > 600
    with connect(join_uris(*three)) as client, client.read("trips", window_bytes=1) as stream:
        batches = [next(stream)]
        three[0].kill()
        batches += stream
        assert pa.Table.from_batches(batches) == whole
