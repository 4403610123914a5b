"""A folder that Spark reads without a daemon: its version stays while a query may read it."""

from __future__ import annotations

import gc
from typing import Any

import pyarrow as pa
import pytest

from helpers.publication import publish
from helpers.waiting import wait_until
from splitarrow.pipeline.jvm.folder import answer_folder
from splitarrow.pipeline.reader import read_options
from splitarrow.publication.version_store import VersionStore


@pytest.fixture
def store(tmp_path) -> VersionStore:
    """A dataset of two versions that have no file in common."""
    store = VersionStore(tmp_path / "set")
    for version in (1, 2):
        publish(store, f"job-{version}", pa.table({"n": [version] * version}))
    return store


def ask(store: VersionStore, operation: str, version: str) -> dict[str, Any]:
    values = {"operation": operation, "version": version}
    options = read_options({"path": store.location, "version": version})
    return answer_folder(store.location, values, options)


def test_a_version_stays_until_its_last_release(store):
    for _ in range(2):
        assert ask(store, "describe", "1")["locked"]
    ask(store, "release", "1")
    assert store.prune(1) == []
    ask(store, "release", "1")
    assert store.prune(1) == [1]


@pytest.mark.parametrize("needs_rdd", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_frame_keeps_its_version_from_being_removed(spark, store, needs_rdd):
    frame = spark.read.format("splitarrow").option("version", 1).load(store.location)
    rows = frame.rdd if needs_rdd else frame
    del frame
    gc.collect()
    spark._jvm.System.gc()
    assert store.prune(1) == []
    assert rows.collect() == [(1,)]
    del rows

    def is_removed() -> bool:
        gc.collect()  # frames are parts of cycles
        spark._jvm.System.gc()
        return store.prune(1) == [1]

    wait_until(is_removed, "the removal of a version that nothing reads")
