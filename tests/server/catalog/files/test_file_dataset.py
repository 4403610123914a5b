"""Which files are opened at once, on the event loop, and that nothing else is."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from helpers.files import write_file
from splitarrow.protocol.request import Request
from splitarrow.server.catalog.dataset import Encoding
from splitarrow.server.catalog.files.file_types import open_file

TABLE = pa.table({"n": range(1000), "m": range(1000)})
REQUEST = Request("d")


def test_a_file_that_has_not_changed_is_opened_at_once(tmp_path: Path) -> None:
    path = tmp_path / "d.arrow"
    write_file(path, TABLE, batch_rows=100)
    dataset = open_file(path)
    source = dataset.open_at_once(REQUEST, Encoding(regions=True))
    assert source is not None
    with closing(source):
        assert source.region is not None
        assert source.region.version == dataset.identity
        groups = [list(group) for group in source]
    assert sum(message.rows for group in groups for message in group) == 1000


def test_a_file_that_has_changed_is_inspected_on_a_thread(tmp_path: Path) -> None:
    path = tmp_path / "d.arrow"
    write_file(path, TABLE, batch_rows=100)
    dataset = open_file(path)
    write_file(tmp_path / "new.arrow", TABLE.slice(500), batch_rows=100)
    os.replace(tmp_path / "new.arrow", path)
    assert dataset.open_at_once(REQUEST, Encoding()) is None
    dataset.open(REQUEST, Encoding()).close()
    source = dataset.open_at_once(REQUEST, Encoding())
    assert source is not None
    with closing(source):
        assert sum(message.rows for group in source for message in group) == 500


@pytest.mark.parametrize(
    ("request_", "encoding"),
    [
        (Request("d", columns=("n",)), Encoding()),
        (Request("d", limit=10), Encoding()),
        (Request("d", offset=10), Encoding()),
        (Request("d", batch_rows=10), Encoding()),
        (Request("d", batches=(0, 1)), Encoding()),
        (Request("d", rows=(0, 1)), Encoding()),
        (Request("d", filter="AA"), Encoding()),
        (Request("d", format="vortex"), Encoding()),
        (REQUEST, Encoding(batch_rows=10)),
    ],
)
def test_what_may_take_time_is_not_opened_at_once(
    request_: Request, encoding: Encoding, tmp_path: Path
) -> None:
    path = tmp_path / "d.arrow"
    write_file(path, TABLE, batch_rows=100)
    assert open_file(path).open_at_once(request_, encoding) is None


def test_a_file_of_another_format_is_not_opened_at_once(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    path = tmp_path / "d.parquet"
    pq.write_table(TABLE, path)
    assert open_file(path).open_at_once(REQUEST, Encoding()) is None
