"""The files that the tasks of Spark may map: those of the version that the daemon serves."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from splitarrow.client.rpc.info import Endpoint
from splitarrow.errors import UsageError
from splitarrow.pipeline.jvm.planner import LocalShards
from splitarrow.publication.manifest import ShardEntry
from splitarrow.publication.version_store import VersionStore

TABLE = pa.table({"n": [1, 2, 3]})


@pytest.fixture
def store(tmp_path) -> VersionStore:
    store = VersionStore(tmp_path / "set")
    shard = store.write_shard("job", "0.arrow", TABLE.schema, TABLE.to_batches())
    store.commit("job", TABLE.schema, [shard], append=False)
    return store


def shard_of(store: VersionStore) -> ShardEntry:
    manifest = store.load()
    assert manifest is not None
    return manifest.shards[0]


def endpoint(nbytes: int, sha256: str) -> Endpoint:
    return Endpoint(b"ticket", (), nbytes=nbytes, sha256=sha256)


def test_a_shard_is_found_by_its_checksum_and_size(store):
    shard = shard_of(store)
    files = LocalShards(store.location, ["1-0011223344556677"])
    found = files.find(endpoint(shard.nbytes, shard.sha256))
    assert found is not None
    assert found == {"path": f"{store.location}/{shard.path}", "bytes": shard.nbytes}
    assert pa.ipc.open_file(Path(found["path"]).read_bytes()).read_all().equals(TABLE)
    assert files.find(endpoint(shard.nbytes + 1, shard.sha256)) is None
    assert files.find(endpoint(shard.nbytes, "0" * 64)) is None
    assert files.find(Endpoint(b"ticket", ())) is None


def test_a_file_without_its_checksum_in_its_name_is_not_mapped(store, tmp_path):
    shard = shard_of(store)
    (Path(store.location) / "0.arrow").write_bytes(Path(store.location, shard.path).read_bytes())
    other = ShardEntry("0.arrow", shard.rows, shard.nbytes, shard.sha256)
    store.commit("another", TABLE.schema, [other], append=False)
    assert LocalShards(store.location, ["2-00"]).find(endpoint(shard.nbytes, shard.sha256)) is None


@pytest.mark.parametrize("versions", [["2-00"], ["1"], ["1-xyz"], []])
def test_a_folder_without_the_version_is_refused(store, versions):
    with pytest.raises(UsageError, match="not the folder of this dataset"):
        LocalShards(store.location, versions)
