"""A daemon imports nothing that serving does not need, whatever it serves."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import splitarrow
from helpers.arrow_data import make_arrays_of_all_types
from helpers.daemons import StartDaemon
from helpers.files import write_file, write_parquet

UNNEEDED = {
    "IPython",
    "duckdb",
    "hypothesis",
    "matplotlib",
    "pandas.core",  # an attempt to import pandas is in the log, too
    "polars",
    "pyspark",
    "pytz",
    "scipy",
    "torch",
    "vortex",
}
_IMPORT = re.compile(r"^import time: +\d+ \| +\d+ \| +([\w.]+)$", re.MULTILINE)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_daemon_imports_nothing_unneeded(
    daemon: StartDaemon, tmp_path: Path, workers: int
) -> None:
    arrays = make_arrays_of_all_types()
    numbers = pa.table({"n": range(1000), "t": [str(n) for n in range(1000)]})
    datasets = {
        f"type {number}": write_file(
            tmp_path / f"{number}.arrow", [pa.record_batch({"x": array, "y": array})]
        )
        for number, array in enumerate(arrays.values())
    }
    datasets["numbers"] = write_parquet(tmp_path / "numbers.parquet", numbers)
    control = "grpc://127.0.0.1:0" if workers == 1 else None
    server = daemon(
        datasets,
        control=control,
        workers=workers,
        environment={"PYTHONPROFILEIMPORTTIME": "1"},
    )
    for name in datasets:
        with splitarrow.open(server.uri(name), limit=3, batch_rows=2) as stream:
            assert stream.read_all().num_rows <= 3
        with splitarrow.open(server.uri(name), columns=stream.schema.names[:1]) as stream:
            stream.read_all()
    if control is not None:
        with splitarrow.connect(server.control_uri) as client:
            for transport in ("tcp", "flight"):
                table = client.read(
                    "numbers", filter=pc.field("n") > 900, transport=transport
                ).read_all()
                assert table.num_rows == 99
    imported = set(_IMPORT.findall(server.log()))
    assert "pyarrow.lib" in imported
    assert UNNEEDED & imported == set()
