"""The steps of a publication at several daemons, with daemons that do as they are told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from helpers.files import write_file
from splitarrow.client.cluster import publication as publish
from splitarrow.client.cluster.publication import (
    hash_files,
    open_source,
    publish_shards,
    read_source_schema,
)
from splitarrow.client.rpc.info import DatasetInfo, PublishResult, ShardUploadResult
from splitarrow.errors import (
    ConnectionLostError,
    DatasetError,
    DeniedError,
    NotFoundError,
    SplitArrowError,
    UnavailableError,
    UsageError,
)

SCHEMA = pa.schema([("n", pa.int64())])
TABLE = pa.table({"n": [1, 2]})
LOST = ConnectionLostError("lost", stream="d")
AWAY = UnavailableError("away")
DENIED = DeniedError("no")
PUBLISHED = DatasetInfo("d", 4, 8, SCHEMA, "k", "1", snapshot="old", shards_total=2)


class Daemon:
    """A daemon that fails as often as a list has errors for it."""

    def __init__(self) -> None:
        self.previous: DatasetInfo | None = None
        self.upload_errors: list[SplitArrowError] = []
        self.publish_errors: list[SplitArrowError] = []
        self.sha256 = "ab"
        self.uploaded: list[int] = []
        self.published: list[dict[str, Any]] = []

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def info(self, name: str) -> DatasetInfo:
        if self.previous is None:
            raise NotFoundError(name)
        return self.previous

    def put_shard(self, name: str, data: Any, *, job: str, ordinal: int) -> ShardUploadResult:
        if self.upload_errors:
            raise self.upload_errors.pop()
        self.uploaded.append(ordinal)
        return ShardUploadResult(name, job, ordinal, 2, 16, self.sha256)

    def publish(self, name: str, **arguments: Any) -> PublishResult:
        if self.publish_errors:
            raise self.publish_errors.pop()
        self.published.append(arguments)
        return PublishResult(name, 1, arguments["snapshot"], len(arguments["ordinals"]), 2, 16)


@pytest.fixture
def daemons(monkeypatch: pytest.MonkeyPatch) -> dict[str, Daemon]:
    found = {f"grpc://{host}:8815": Daemon() for host in "abc"}
    monkeypatch.setattr(publish, "Client", lambda node, *_, **__: found[node])
    return found


Publish = Callable[..., Any]


@pytest.fixture
def start(daemons: dict[str, Daemon]) -> Publish:
    def start(shards: int = 6, **options: Any) -> Any:
        return publish_shards("d", [lambda: TABLE] * shards, "grpc://a,b,c", **options)

    return start


def test_every_shard_is_uploaded_and_committed_where_it_is(
    daemons: dict[str, Daemon], start: Publish
) -> None:
    progress: list[int] = []
    result = start(replicas=2, job="j", progress=lambda each: progress.append(each.ordinal))
    assert (result.job, result.snapshot, result.shards, result.rows) == ("j", "j", 6, 12)
    assert result.daemons.keys() == daemons.keys()
    assert sorted(progress) == sorted([*range(6), *range(6)])
    for daemon in daemons.values():
        (committed,) = daemon.published
        assert committed["ordinals"] == sorted(daemon.uploaded)
        assert (committed["shards_total"], committed["snapshot"]) == (6, "j")
        assert (committed["mode"], committed["schema"]) == ("overwrite", SCHEMA)


def test_a_job_is_random_and_a_snapshot_may_differ_from_it(start: Publish) -> None:
    first, second = start(), start(snapshot="s")
    assert first.job != second.job
    assert (first.snapshot, second.snapshot) == (first.job, "s")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"mode": "replace"}, "mode is 'replace'; expected append or overwrite"),
        ({"parallel": 0}, "parallel is 0; expected 1 or more"),
        ({"attempts": 0}, "attempts is 0; expected 1 or more"),
        ({"mode": "append"}, "only files have a default job"),
        ({"replicas": 4}, "4"),
    ],
)
def test_invalid_arguments_are_refused_before_an_upload(
    daemons: dict[str, Daemon], start: Publish, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(UsageError, match=problem):
        start(**options)
    assert not any(daemon.uploaded for daemon in daemons.values())


def test_daemons_without_a_shard_commit_too(daemons: dict[str, Daemon], start: Publish) -> None:
    for shards in (1, 0):
        start(shards, schema=SCHEMA)
        assert all(daemon.published for daemon in daemons.values())
        assert sum(bool(daemon.uploaded) for daemon in daemons.values()) == 1
        for daemon in daemons.values():
            daemon.published.clear()


def test_an_upload_is_tried_again_while_connections_fail(
    daemons: dict[str, Daemon], start: Publish
) -> None:
    for daemon in daemons.values():
        daemon.upload_errors = [LOST, AWAY]
    start(parallel=1)
    for daemon in daemons.values():
        daemon.upload_errors = [LOST, LOST, LOST]
    with pytest.raises(
        ConnectionLostError, match=r"cannot upload shard \d of 'd' to grpc://.:8815: lost"
    ):
        start(1)
    for daemon in daemons.values():
        daemon.upload_errors = [DENIED]
    with pytest.raises(DeniedError, match="no"):
        start(1)


def test_there_are_three_attempts_by_default(daemons: dict[str, Daemon], start: Publish) -> None:
    for daemon in daemons.values():
        daemon.upload_errors = [LOST, LOST]
        daemon.publish_errors = [LOST, LOST]
    assert start(1).rows == 2
    for daemon in daemons.values():
        daemon.upload_errors = [LOST]
    with pytest.raises(ConnectionLostError):
        start(1, attempts=1)


def test_a_schema_that_is_given_is_committed(daemons: dict[str, Daemon], start: Publish) -> None:
    other = pa.schema([("m", pa.int8())])
    start(1, schema=other)
    start(0, job="none")
    schemas = [each["schema"] for daemon in daemons.values() for each in daemon.published]
    assert schemas.count(other) == 3
    assert schemas.count(None) == 3


def test_a_dataset_needs_a_name(daemons: dict[str, Daemon]) -> None:
    with pytest.raises(UsageError):
        publish_shards("", [lambda: TABLE], "grpc://a,b,c")
    assert not any(daemon.uploaded for daemon in daemons.values())


def test_a_publication_without_shards_is_appended_to_like_none(
    daemons: dict[str, Daemon], start: Publish
) -> None:
    daemons["grpc://a:8815"].previous = replace(PUBLISHED, shards_total=0)
    assert start(1, mode="append", job="j").rows == 2


def test_a_commit_is_tried_again_while_connections_fail(
    daemons: dict[str, Daemon], start: Publish
) -> None:
    for daemon in daemons.values():
        daemon.publish_errors = [AWAY, LOST]
    start()
    daemons["grpc://a:8815"].publish_errors = [LOST, LOST]
    daemons["grpc://b:8815"].publish_errors = [DENIED]
    with pytest.raises(DatasetError) as caught:
        start(job="j", attempts=2)
    assert caught.value.message == (
        "'d' was not published at every daemon: grpc://a:8815: lost (stream 'd'); "
        "grpc://b:8815: no; committed at grpc://c:8815; publish again with job='j'"
    )


def test_copies_that_differ_are_not_committed(daemons: dict[str, Daemon], start: Publish) -> None:
    daemons["grpc://b:8815"].sha256 = "cd"
    with pytest.raises(DatasetError, match="store different files for shard"):
        start(replicas=2)
    assert not any(daemon.published for daemon in daemons.values())
    start(replicas=1)


def test_an_append_needs_equal_versions(daemons: dict[str, Daemon], start: Publish) -> None:
    with pytest.raises(UsageError, match="pass job="):
        start(mode="append")
    for daemon in daemons.values():
        daemon.previous = PUBLISHED
    assert start(mode="append", job="j").shards == 6
    # One daemon has committed already, in an earlier call with the same job.
    daemons["grpc://a:8815"].previous = replace(PUBLISHED, snapshot="j", shards_total=8)
    assert start(mode="append", job="j").shards == 6
    daemons["grpc://b:8815"].previous = None
    with pytest.raises(DatasetError, match="2 shards at grpc://a:8815, 0 shards at grpc://b:8815"):
        start(mode="append", job="j")
    daemons["grpc://b:8815"].previous = replace(PUBLISHED, shards_total=None)
    with pytest.raises(DatasetError, match="grpc://b:8815 has a dataset 'd' that is not published"):
        start(mode="append", job="j")


def test_each_append_places_its_shards_anew(daemons: dict[str, Daemon], start: Publish) -> None:
    holders: set[str] = set()
    for job in range(20):
        for daemon in daemons.values():
            daemon.uploaded.clear()
        start(1, mode="append", job=f"job-{job}")
        holders |= {node for node, daemon in daemons.items() if daemon.uploaded}
    assert holders == daemons.keys()


def test_the_default_job_of_an_append_depends_on_the_files(tmp_path: Path) -> None:
    one = write_file(tmp_path / "one.arrow", TABLE)
    same = write_file(tmp_path / "same.arrow", TABLE)
    other = write_file(tmp_path / "other.arrow", pa.table({"n": [3]}))
    job = hash_files("d", [one, other])
    assert job == hash_files("d", [str(same), other])
    assert len({job, hash_files("e", [one, other]), hash_files("d", [other, one])}) == 3
    assert len(job) == len("files-") + 32
    with pytest.raises(UsageError, match="only files have a default job"):
        hash_files("d", [TABLE])
    with pytest.raises(DatasetError, match=r"cannot read the shard .*none\.arrow: No such file"):
        hash_files("d", [tmp_path / "none.arrow"])


def test_a_source_is_data_a_path_or_a_function_of_them(tmp_path: Path) -> None:
    path = write_file(tmp_path / "x.arrow", TABLE)
    closed: list[bool] = []

    class Resource:
        def __enter__(self) -> pa.Table:
            return TABLE

        def __exit__(self, *error: object) -> None:
            closed.append(True)

    namespace: Any = SimpleNamespace(batches=TABLE.to_batches())
    for source in (path, str(path), TABLE, lambda: path, lambda: TABLE, TABLE.to_reader()):
        assert read_source_schema(source) == SCHEMA
    assert read_source_schema(Resource) == SCHEMA
    assert closed == [True]
    with open_source(lambda: namespace.batches) as data:
        assert data is namespace.batches
