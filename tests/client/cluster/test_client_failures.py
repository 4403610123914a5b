"""Clusters of daemon processes: one dataset, in order, whichever daemon fails."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import splitarrow
from helpers.cluster import (
    StartDaemons,
    compute_checksum,
    find_shared_name,
    join_uris,
    make_numbered_shards,
)
from helpers.files import write_shards
from helpers.proxy import proxy
from splitarrow import errors
from splitarrow.client.cluster.client import ClusterClient
from splitarrow.client.cluster.publication import publish_shards
from splitarrow.client.connect import connect
from splitarrow.pipeline.folder_publication import publish_folder
from splitarrow.protocol.uri import DataUri
from splitarrow.publication.version_store import VersionStore
from splitarrow.testing import Daemon

SHARDS, ROWS = 12, 5_000


@pytest.fixture(scope="module")
def tables() -> list[pa.Table]:
    return make_numbered_shards(SHARDS, ROWS)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, tables: list[pa.Table]) -> list[Path]:
    return write_shards(tmp_path_factory.mktemp("shards"), tables)


def whole(tables: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables)


def read(uri: str, name: str = "trips", **options: Any) -> pa.Table:
    with connect(uri) as client, client.read(name, **options) as stream:
        return stream.read_all()


def test_one_of_several_daemons_does_not_pass_for_all(
    daemons: StartDaemons, files: list[Path]
) -> None:
    two = daemons(2)
    publish_shards("trips", files, join_uris(*two), replicas=1, job="one")
    with connect(two[0].control_uri) as client:
        endpoints = client.info("trips").endpoints
        held = [each.ordinal for each in endpoints if each.ordinal is not None]
        text = f"has {len(held)} of the {SHARDS} shards of 'trips'; connect to all"
        for attempt in (lambda: client.read("trips"), lambda: client.count_rows("trips")):
            with pytest.raises(errors.DatasetError, match=text):
                attempt()
        with client.read("trips", shards=held) as stream:
            assert stream.read_all().num_rows == len(held) * ROWS


def test_shards_on_three_daemons_read_as_one_dataset(
    daemons: StartDaemons, files: list[Path], tables: list[pa.Table]
) -> None:
    three = daemons(3)
    everything = whole(tables)
    stored: list[Any] = []
    done = publish_shards(
        "trips", files, join_uris(*three), replicas=2, job="one", progress=stored.append
    )
    assert (done.shards, done.rows, done.job) == (SHARDS, everything.num_rows, "one")
    assert len(stored) == 2 * SHARDS
    assert sum(each.shards for each in done.daemons.values()) == 2 * SHARDS
    with connect(join_uris(*three)) as client:
        assert isinstance(client, ClusterClient)
        (listed,) = client.datasets()
        info = client.info("trips")
        assert (listed.name, listed.rows) == ("trips", everything.num_rows)
        assert listed.bytes == sum(path.stat().st_size for path in files)
        assert info.version == info.snapshot == "one"
        assert [endpoint.ordinal for endpoint in info.endpoints] == list(range(SHARDS))
        assert all(len(endpoint.held_by) == 2 for endpoint in info.endpoints)
        assert client.schema("trips") == everything.schema
        ways: list[dict[str, Any]] = [
            {},
            {"parallel": 1},
            {"transport": "flight"},
            {"window_bytes": 1},
        ]
        for options in ways:
            with client.read("trips", **options) as stream:
                got = stream.read_all()
                assert stream.rows_received == everything.num_rows
                assert stream.resumed == 0
            assert got["n"].to_pylist() == list(range(everything.num_rows))
            assert compute_checksum(got) == compute_checksum(everything)
        status = client.status()["daemons"]
        assert set(status) == {daemon.control_uri for daemon in three}
        assert sum(each["stats"]["streams_total"] for each in status.values()) >= 2 * SHARDS


@pytest.mark.slow
def test_a_cluster_reads_record_batches_of_any_shard(
    daemons: StartDaemons, files: list[Path], tables: list[pa.Table]
) -> None:
    three = daemons(3)
    publish_shards("trips", files, join_uris(*three), replicas=2, job="one")
    with connect(join_uris(*three)) as client:
        batches = [1000] * (ROWS // 1000)
        assert client.count_rows("trips") == dict.fromkeys(range(SHARDS), batches)
        late = pc.field("n") >= SHARDS * ROWS - 1500
        last = [0] * (len(batches) - 2) + [500, 1000]
        counted = client.count_rows("trips", filter=late, version="one")
        assert (counted[0], counted[SHARDS - 1]) == ([0] * len(batches), last)
        three[0].kill()
        assert client.count_rows("trips") == dict.fromkeys(range(SHARDS), batches)
        for shard in range(SHARDS):
            for version in ("one", "one", None):
                options: dict[str, Any] = {"shards": [shard], "batches": (1, 3), "version": version}
                with client.read("trips", **options) as stream:
                    assert stream.read_all() == tables[shard].slice(1000, 2000)
        with pytest.raises(errors.UsageError, match="several shards in this cluster"):
            client.read("trips", batches=(1, 3))
        with pytest.raises(errors.RemoteError, match="another"):
            client.read("trips", shards=[1], batches=(1, 3), version="another")


def test_a_selection_spans_the_daemons(
    daemons: StartDaemons, files: list[Path], tables: list[pa.Table]
) -> None:
    two = daemons(2)
    publish_shards("trips", files, join_uris(*two), replicas=1)
    everything = whole(tables)
    with connect([daemon.control_uri for daemon in two]) as client:

        def got(**options: Any) -> pa.Table:
            with client.read("trips", **options) as stream:
                table = stream.read_all()
                assert stream.rows_received == table.num_rows or "limit" not in options
                return table

        assert got(columns=["text"]) == everything.select(["text"])
        assert got(filter=pc.field("n") > 12_345)["n"].to_pylist() == list(
            range(12_346, everything.num_rows)
        )
        for limit in (0, 1, ROWS, ROWS + 1, 3 * ROWS + 7, 10**9):
            assert got(limit=limit)["n"].to_pylist() == list(range(everything.num_rows))[:limit]
        limited = got(filter=pc.field("shard") >= 5, limit=ROWS + 3)
        assert limited["n"].to_pylist() == list(range(5 * ROWS, 6 * ROWS + 3))
        some = got(shards=[7, 2])
        assert some["shard"].unique().to_pylist() == [2, 7]
        assert some.num_rows == 2 * ROWS
        version = client.info("trips").version
        assert got(version=version, shards=[0]).num_rows == ROWS
        with pytest.raises(errors.UsageError, match="no shard 12"):
            got(shards=[0, SHARDS])
        with pytest.raises(errors.RemoteError, match="version earlier was requested") as raised:
            got(version="earlier")
        assert raised.value.code == "FAILED_PRECONDITION"
        with pytest.raises(errors.NotFoundError, match="none of the daemons"):
            client.info("other")
        with pytest.raises(AttributeError, match=r"client\.at\(uri\)\.put"):
            _ = getattr(client, "put")  # noqa: B009
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            _ = getattr(client, "nothing")  # noqa: B009


@pytest.mark.slow
async def test_the_async_client_reads_the_same(
    daemons: StartDaemons, files: list[Path], tables: list[pa.Table]
) -> None:
    two = daemons(2)
    publish_shards("trips", files, join_uris(*two), replicas=2)
    async with splitarrow.aio.connect(join_uris(*two)) as client:
        assert [info.name for info in await client.datasets()] == ["trips"]
        async with client.read("trips", columns=["n"]) as stream:
            table = await stream.read_all()
    assert table == whole(tables).select(["n"])


# Failing daemons.


BIG_SHARDS, BIG_ROWS = 6, 150_000


@pytest.fixture(scope="module")
def big() -> list[pa.Table]:
    # A shard of 24 MB does not fit into the buffers of sockets, so that it ends with its daemon.
    return make_numbered_shards(BIG_SHARDS, BIG_ROWS, batch_rows=5_000, pad=128)


@pytest.fixture(scope="module")
def big_files(tmp_path_factory: pytest.TempPathFactory, big: list[pa.Table]) -> list[Path]:
    return write_shards(tmp_path_factory.mktemp("big"), big)


def end(daemon: Daemon, how: str) -> None:
    if how == "kill":
        daemon.kill()
    else:
        daemon.send_signal(signal.SIGSTOP)


@pytest.mark.parametrize(
    ("count", "how", "transport"),
    [
        (2, "kill", "tcp"),
        pytest.param(3, "kill", "tcp", marks=pytest.mark.long),
        pytest.param(3, "kill", "flight", marks=pytest.mark.slow),
        pytest.param(2, "stop", "tcp", marks=pytest.mark.slow),
    ],
)
def test_a_read_continues_at_a_replica_when_a_daemon_dies(
    daemons: StartDaemons,
    big_files: list[Path],
    big: list[pa.Table],
    count: int,
    how: str,
    transport: str,
) -> None:
    there = daemons(count)
    publish_shards("trips", big_files, join_uris(*there), replicas=2)
    with (
        connect(join_uris(*there), timeout=2) as client,
        client.read(
            "trips",
            parallel=2,
            window_bytes=1,
            transport=transport,
            batch_rows=5_000,
            stall_timeout=1,
        ) as stream,
    ):
        first = client.info("trips").endpoints[0].held_by[0]
        victim = next(daemon for daemon in there if daemon.control_uri == first)
        batches = [next(stream) for _ in range(3)]
        end(victim, how)
        batches += stream
        assert stream.resumed >= 1
    got = pa.Table.from_batches(batches)
    assert got.num_rows == BIG_SHARDS * BIG_ROWS
    assert got["n"].combine_chunks() == whole(big)["n"].combine_chunks()
    assert got.equals(whole(big))


@pytest.mark.slow
def test_a_read_without_replicas_fails_when_a_daemon_dies(
    daemons: StartDaemons, big_files: list[Path]
) -> None:
    two = daemons(2)
    name = find_shared_name(BIG_SHARDS, two)
    publish_shards(name, big_files, join_uris(*two))
    with connect(join_uris(*two)) as client:
        holders = [endpoint.held_by[0] for endpoint in client.info(name).endpoints]
        assert len(set(holders)) == 2
        with client.read(name, parallel=1, window_bytes=1, resume_attempts=2) as stream:
            batches = [next(stream)]
            victim = next(daemon for daemon in two if daemon.control_uri == holders[-1])
            victim.kill()
            with pytest.raises(errors.TransportError, match=rf"shard \d+ of '{name}'") as raised:
                batches.extend(stream)
            with pytest.raises(errors.TransportError):
                next(stream)
        assert victim.control_uri in str(raised.value)
        assert sum(batch.num_rows for batch in batches) < BIG_SHARDS * BIG_ROWS
        lost = [ordinal for ordinal, where in enumerate(holders) if where == victim.control_uri]
        with pytest.raises(errors.ConnectError, match=r"is incomplete") as raised:
            client.read(name)
        assert f"of {BIG_SHARDS} is missing" in str(raised.value)
        assert str(lost[0]) in str(raised.value)
        assert f"{victim.control_uri} (cannot connect" in str(raised.value)
        assert [info.kind for info in client.datasets()] == ["incomplete"]


@pytest.mark.slow
def test_a_daemon_that_is_down_does_not_matter_while_its_shards_have_replicas(
    daemons: StartDaemons, files: list[Path], tables: list[pa.Table]
) -> None:
    three = daemons(3)
    name = find_shared_name(SHARDS, three, replicas=2)
    publish_shards(name, files, join_uris(*three), replicas=2)
    three[1].kill()
    with connect(join_uris(*three)) as client:
        assert isinstance(client, ClusterClient)
        assert set(client.absent) == {three[1].control_uri}
        assert "error" in client.status()["daemons"][three[1].control_uri]
        with client.read(name) as stream:
            assert stream.read_all() == whole(tables)
        three[1].start()
        info = client.info(name)
        assert client.absent == {}
        assert all(len(endpoint.held_by) == 2 for endpoint in info.endpoints)
        three[0].kill()
        with client.read(name) as stream:
            assert stream.read_all() == whole(tables)
        three[2].kill()
        with pytest.raises(errors.ConnectError, match="is incomplete"):
            client.read(name)
    three[1].kill()
    with pytest.raises(errors.ConnectError, match="no daemon responds") as raised:
        connect(join_uris(*three))
    assert all(daemon.control_uri in str(raised.value) for daemon in three)


def test_all_daemons_get_the_token_and_no_error_shows_it(
    daemons: StartDaemons, files: list[Path], tmp_path: Path
) -> None:
    path = tmp_path / "tokens.toml"
    token = "canary-token-of-anna"
    path.write_text(
        f'[[tokens]]\nname = "anna"\ntoken = "{token}"\ndatasets = ["*"]\nwrite = ["*"]\n'
    )
    path.chmod(0o600)
    two = daemons(2, token_file=path)
    name = find_shared_name(SHARDS, two)
    publish_shards(name, files, join_uris(*two), replicas=1, token=token)
    with pytest.raises(errors.DeniedError, match="no daemon responds"):
        connect(join_uris(*two))
    with connect(join_uris(*two), token) as client, client.read(name, window_bytes=1) as stream:
        assert stream.read_all().num_rows == SHARDS * ROWS
    two[0].kill()
    with connect(join_uris(*two), token) as client:
        with pytest.raises(errors.ConnectError) as raised:
            client.read(name)
        assert token not in str(raised.value)


# Datasets that cannot be merged.


@pytest.mark.slow
def test_different_complete_publications_are_an_error(
    daemons: StartDaemons, files: list[Path], tables: list[pa.Table]
) -> None:
    a, b = daemons(2)
    publish_shards("trips", files, join_uris(a, b), job="old")
    publish_shards("trips", files[:2], a.control_uri, job="new")
    assert read(join_uris(a, b)) == whole(tables[:2])  # only a part of the old one is left
    publish_shards("trips", files[:3], b.control_uri, job="another")
    with connect(join_uris(a, b)) as client:
        with pytest.raises(errors.DatasetError, match="different publications") as raised:
            client.read("trips")
        for word in ("'new'", "'another'", a.control_uri, b.control_uri, "name one daemon"):
            assert word in str(raised.value)
        assert [info.kind for info in client.datasets()] == ["incomplete"]
    assert read(a.control_uri) == whole(tables[:2])


@pytest.mark.slow
def test_unpublished_datasets_of_one_name_are_an_error(
    daemons: StartDaemons, tables: list[pa.Table]
) -> None:
    a, b = daemons(2)
    with connect(a.control_uri) as one, connect(b.control_uri) as other:
        one.put("scores", tables[0])
        one.put("mine", tables[1])
        other.put("scores", tables[2])
    with connect(join_uris(a, b)) as client:
        assert client.info("mine").rows == ROWS
        with client.read("mine") as stream:
            assert stream.read_all() == tables[1]
        with pytest.raises(errors.DatasetError, match="name one daemon"):
            client.read("scores")
        client.drop("scores")
        with pytest.raises(errors.NotFoundError):
            client.drop("scores")
        assert [info.name for info in client.datasets()] == ["mine"]


# Publishing.


@pytest.mark.slow
def test_publishing_again_replaces_or_appends(
    daemons: StartDaemons, files: list[Path], tables: list[pa.Table]
) -> None:
    three = daemons(3)
    name = find_shared_name(4, three, replicas=2)
    done = publish_shards(name, files[:4], join_uris(*three), replicas=2, job="one")
    assert publish_shards(name, files[:4], join_uris(*three), replicas=2, job="one") == done
    assert read(join_uris(*three), name) == whole(tables[:4])
    for _ in range(2):  # the same files are one job
        publish_shards(name, files[4:5], join_uris(*three), replicas=2, mode="append")
    assert read(join_uris(*three), name) == whole(tables[:5])
    with connect(join_uris(*three)) as client:
        info = client.info(name)
        assert [endpoint.ordinal for endpoint in info.endpoints] == [0, 1, 2, 3, 4]
        assert all(len(endpoint.held_by) == 2 for endpoint in info.endpoints)
    publish_shards(name, files[5:6], join_uris(*three))
    assert read(join_uris(*three), name) == whole(tables[5:6])


def test_readers_keep_the_version_that_they_read(
    daemons: StartDaemons, files: list[Path], tables: list[pa.Table]
) -> None:
    two = daemons(2, keep_versions=2)
    publish_shards("trips", files, join_uris(*two), replicas=2)
    with (
        connect(join_uris(*two)) as client,
        client.read("trips", parallel=1, window_bytes=1) as stream,
    ):
        batches = [next(stream)]
        publish_shards("trips", files[:2], join_uris(*two), replicas=2)
        batches += stream
        assert pa.Table.from_batches(batches) == whole(tables)
        with client.read("trips") as again:
            assert again.read_all() == whole(tables[:2])


@pytest.mark.slow
def test_a_publication_that_failed_can_be_repeated(
    daemons: StartDaemons, files: list[Path], tables: list[pa.Table]
) -> None:
    a, b, c = daemons(3)
    publish_shards("trips", files[:4], join_uris(a, b, c), replicas=2, job="one")
    b.kill()
    with pytest.raises(errors.ConnectError, match=b.control_uri):
        publish_shards("trips", files[4:], join_uris(a, b, c), replicas=2, job="two")
    assert read(join_uris(a, b, c)) == whole(tables[:4])
    b.start()
    seen: list[Any] = []

    def fail(shard: Any) -> None:
        seen.append(shard)
        if len(seen) == 5:
            b.kill()

    with pytest.raises(errors.SplitArrowError):
        publish_shards("trips", files[4:], join_uris(a, b, c), replicas=2, job="two", progress=fail)
    assert read(join_uris(a, b, c)) == whole(tables[:4])
    b.start()
    publish_shards("trips", files[4:], join_uris(a, b, c), replicas=2, job="two")
    assert read(join_uris(a, b, c)) == whole(tables[4:])


@pytest.mark.slow
def test_a_published_folder_is_copied_to_the_daemons(
    daemons: StartDaemons, tmp_path: Path, files: list[Path], tables: list[pa.Table]
) -> None:
    store = VersionStore(tmp_path / "folder")
    schema = tables[0].schema
    entries = [
        store.write_shard("job-1", f"{n}.arrow", schema, table.to_batches(), ordinal=n)
        for n, table in enumerate(tables)
    ]
    store.commit("job-1", schema, entries, append=False, properties={"by": "test"})
    two = daemons(2)
    done = publish_folder(tmp_path / "folder", "trips", join_uris(*two), replicas=2)
    assert (done.job, done.rows) == ("job-1", SHARDS * ROWS)
    assert publish_folder(tmp_path / "folder", "trips", join_uris(*two), replicas=2) == done
    two[0].kill()
    assert read(join_uris(*two)) == whole(tables)
    two[0].start()
    publish_folder(files[:2], "trips", join_uris(*two))
    assert read(join_uris(*two)) == whole(tables[:2])
    victim = tmp_path / "folder" / entries[3].path
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.chmod(0o644)
    victim.write_bytes(data)
    with pytest.raises(errors.DatasetError, match="checksum"):
        publish_folder(tmp_path / "folder", "again", join_uris(*two))
    with pytest.raises(errors.DatasetError, match="no version"):
        publish_folder(tmp_path / "nothing", "again", join_uris(*two))
    with connect(join_uris(*two)) as client:
        assert [info.name for info in client.datasets()] == ["trips"]


@pytest.mark.slow
def test_a_daemon_that_vanished_delays_one_read_only(
    daemons: StartDaemons, files: list[Path], tables: list[pa.Table]
) -> None:
    one, two = daemons(2)
    publish_shards("trips", files, join_uris(one, two), replicas=2, job="one")
    with proxy(DataUri.parse(two.control_uri).port or 0) as link:
        uris = [one.control_uri, f"grpc://127.0.0.1:{link.port}"]
        with connect(uris, timeout=1.5) as client:
            link.is_silent = True
            seconds: list[float] = []
            for _ in range(3):
                started = time.monotonic()
                assert client.read("trips").read_all().num_rows == SHARDS * ROWS
                seconds.append(time.monotonic() - started)
            assert seconds[0] > 1.5
            assert max(seconds[1:]) < 1.5
            assert isinstance(client, ClusterClient)
            assert list(client.absent) == uris[1:]
