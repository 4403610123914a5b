"""Reloading: new shards of a directory appear; a broken one changes nothing."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from splitarrow.errors import DatasetError
from splitarrow.protocol.request import Request
from splitarrow.server.catalog.base import Encoding
from splitarrow.server.catalog.catalog import Catalog
from splitarrow.server.config import load_settings
from splitarrow.server.daemon import Daemon


def write(path: Path, rows: int) -> None:
    table = pa.table({"n": list(range(rows))})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


def test_reload_finds_new_shards_and_keeps_what_works(tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    folder.mkdir()
    write(folder / "a.arrow", 3)
    settings = load_settings(datasets={"data": str(folder)})
    with Catalog(settings.datasets) as catalog:
        daemon = Daemon(catalog, settings)
        assert catalog.lookup("data").rows == 3
        write(folder / "b.arrow", 4)
        source = catalog.lookup("data").open(Request("data"), Encoding())
        daemon.reload()
        assert catalog.lookup("data").rows == 7
        groups = [message for group in source for message in group]
        source.close()
        assert sum(message.rows for message in groups) in (3, 7)
        (folder / "c.arrow").write_bytes(b"ARROW1 but no more")
        with pytest.raises(DatasetError, match=r"c\.arrow"):
            daemon.reload()
        assert catalog.lookup("data").rows == 7
