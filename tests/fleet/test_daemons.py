"""Several daemons in processes of their own: one dataset, in order, whoever dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import splitarrow
from splitarrow import errors
from splitarrow.client.control import connect
from splitarrow.client.fleet import FleetClient
from splitarrow.client.spreading import spread
from splitarrow.pipeline.spread import publish_folder
from splitarrow.server.catalog.versions import VersionStore

from .conftest import Daemon, checksum, numbered, shared_name, uris, write_shards

Start = Callable[..., list[Daemon]]
SHARDS, ROWS = 12, 5_000


@pytest.fixture(scope="module")
def tables() -> list[pa.Table]:
    return numbered(SHARDS, ROWS)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, tables: list[pa.Table]) -> list[Path]:
    return write_shards(tmp_path_factory.mktemp("shards"), tables)


def whole(tables: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables)


def read(uri: str, name: str = "trips", **options: Any) -> pa.Table:
    with connect(uri) as client, client.read(name, **options) as stream:
        return stream.read_all()


def test_one_dataset_on_three_daemons(
    daemons: Start, files: list[Path], tables: list[pa.Table]
) -> None:
    three = daemons(3)
    everything = whole(tables)
    stored: list[Any] = []
    done = spread("trips", files, uris(*three), replicas=2, job="one", progress=stored.append)
    assert (done.shards, done.rows, done.job) == (SHARDS, everything.num_rows, "one")
    assert len(stored) == 2 * SHARDS
    assert sum(each.shards for each in done.daemons.values()) == 2 * SHARDS
    with connect(uris(*three)) as client:
        assert isinstance(client, FleetClient)
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
            assert checksum(got) == checksum(everything)
        status = client.status()["daemons"]
        assert set(status) == {daemon.uri for daemon in three}
        assert sum(each["stats"]["streams_total"] for each in status.values()) >= 2 * SHARDS


def test_less_than_all(daemons: Start, files: list[Path], tables: list[pa.Table]) -> None:
    two = daemons(2)
    spread("trips", files, uris(*two), replicas=1)
    everything = whole(tables)
    with connect([daemon.uri for daemon in two]) as client:

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
        with pytest.raises(errors.RemoteError, match="not earlier") as raised:
            got(version="earlier")
        assert raised.value.code == "FAILED_PRECONDITION"
        with pytest.raises(errors.NotFoundError, match="asked were"):
            client.info("other")
        with pytest.raises(errors.UsageError, match="at one daemon"):
            client.put("x", everything)


async def test_the_asynchronous_twin(
    daemons: Start, files: list[Path], tables: list[pa.Table]
) -> None:
    two = daemons(2)
    spread("trips", files, uris(*two), replicas=2)
    async with splitarrow.aio.connect(uris(*two)) as client:
        assert [info.name for info in await client.datasets()] == ["trips"]
        async with client.read("trips", columns=["n"]) as stream:
            table = await stream.read_all()
    assert table == whole(tables).select(["n"])


# Who dies.


BIG_SHARDS, BIG_ROWS = 6, 150_000


@pytest.fixture(scope="module")
def big() -> list[pa.Table]:
    # A shard of 24 MB does not fit into the buffers of sockets: it ends where its daemon does.
    return numbered(BIG_SHARDS, BIG_ROWS, batch_rows=5_000, pad=128)


@pytest.fixture(scope="module")
def big_files(tmp_path_factory: pytest.TempPathFactory, big: list[pa.Table]) -> list[Path]:
    return write_shards(tmp_path_factory.mktemp("big"), big)


def end(daemon: Daemon, how: str) -> None:
    if how == "kill":
        daemon.kill()
    else:
        os.kill(daemon.process.pid, signal.SIGSTOP)


@pytest.mark.parametrize(
    ("count", "how", "transport"),
    [(2, "kill", "tcp"), (3, "kill", "tcp"), (3, "kill", "flight"), (2, "stop", "tcp")],
)
def test_a_killed_daemon_with_replicas(
    daemons: Start,
    big_files: list[Path],
    big: list[pa.Table],
    count: int,
    how: str,
    transport: str,
) -> None:
    there = daemons(count)
    spread("trips", big_files, uris(*there), replicas=2)
    with (
        connect(uris(*there), timeout=2) as client,
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
        victim = next(daemon for daemon in there if daemon.uri == first)
        batches = [next(stream) for _ in range(3)]
        end(victim, how)
        batches += stream
        assert stream.resumed >= 1
    got = pa.Table.from_batches(batches)
    assert got.num_rows == BIG_SHARDS * BIG_ROWS
    assert got["n"].combine_chunks() == whole(big)["n"].combine_chunks()
    assert got.equals(whole(big))


def test_a_killed_daemon_without_replicas(daemons: Start, big_files: list[Path]) -> None:
    two = daemons(2)
    name = shared_name(BIG_SHARDS, two)
    spread(name, big_files, uris(*two))
    with connect(uris(*two)) as client:
        holders = [endpoint.held_by[0] for endpoint in client.info(name).endpoints]
        assert len(set(holders)) == 2
        with client.read(name, parallel=1, window_bytes=1, resume_attempts=2) as stream:
            batches = [next(stream)]
            victim = next(daemon for daemon in two if daemon.uri == holders[-1])
            victim.kill()
            with pytest.raises(errors.TransportError, match=rf"shard \d+ of '{name}'") as raised:
                batches.extend(stream)
            with pytest.raises(errors.TransportError):
                next(stream)
        assert victim.uri in str(raised.value)
        assert sum(batch.num_rows for batch in batches) < BIG_SHARDS * BIG_ROWS
        lost = [ordinal for ordinal, where in enumerate(holders) if where == victim.uri]
        with pytest.raises(errors.ConnectError, match=r"is not complete") as raised:
            client.read(name)
        assert f"of {BIG_SHARDS} is missing" in str(raised.value)
        assert str(lost[0]) in str(raised.value)
        assert f"{victim.uri} (cannot connect" in str(raised.value)
        assert [info.kind for info in client.datasets()] == ["incomplete"]


def test_a_daemon_that_is_down_when_the_client_connects(
    daemons: Start, files: list[Path], tables: list[pa.Table]
) -> None:
    three = daemons(3)
    name = shared_name(SHARDS, three, replicas=2)
    spread(name, files, uris(*three), replicas=2)
    three[1].kill()
    with connect(uris(*three)) as client:
        assert isinstance(client, FleetClient)
        assert set(client.absent) == {three[1].uri}
        assert "error" in client.status()["daemons"][three[1].uri]
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
        with pytest.raises(errors.ConnectError, match="is not complete"):
            client.read(name)
    three[1].kill()
    with pytest.raises(errors.ConnectError, match="no daemon answers") as raised:
        connect(uris(*three))
    assert all(daemon.uri in str(raised.value) for daemon in three)


def test_tokens(daemons: Start, files: list[Path], tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    token = "canary-token-of-anna"
    path.write_text(
        f'[[tokens]]\nname = "anna"\ntoken = "{token}"\ndatasets = ["*"]\nwrite = ["*"]\n'
    )
    path.chmod(0o600)
    two = daemons(2, "--token-file", str(path))
    name = shared_name(SHARDS, two)
    spread(name, files, uris(*two), replicas=1, token=token)
    with pytest.raises(errors.DeniedError, match="no daemon answers"):
        connect(uris(*two))
    with connect(uris(*two), token) as client, client.read(name, window_bytes=1) as stream:
        assert stream.read_all().num_rows == SHARDS * ROWS
    two[0].kill()
    with connect(uris(*two), token) as client:
        with pytest.raises(errors.ConnectError) as raised:
            client.read(name)
        assert token not in str(raised.value)


# What does not belong together.


def test_snapshots_that_differ(daemons: Start, files: list[Path], tables: list[pa.Table]) -> None:
    a, b = daemons(2)
    spread("trips", files, uris(a, b), job="old")
    spread("trips", files[:2], a.uri, job="new")
    assert read(uris(a, b)) == whole(tables[:2])  # of the old one only a part is left
    spread("trips", files[:3], b.uri, job="another")
    with connect(uris(a, b)) as client:
        with pytest.raises(errors.DatasetError, match="different publications") as raised:
            client.read("trips")
        for word in ("'new'", "'another'", a.uri, b.uri, "name one daemon"):
            assert word in str(raised.value)
        assert [info.kind for info in client.datasets()] == ["incomplete"]
    assert read(a.uri) == whole(tables[:2])


def test_plain_datasets_of_one_name(daemons: Start, tables: list[pa.Table]) -> None:
    a, b = daemons(2)
    with connect(a.uri) as one, connect(b.uri) as other:
        one.put("scores", tables[0])
        one.put("mine", tables[1])
        other.put("scores", tables[2])
    with connect(uris(a, b)) as client:
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


def test_published_again_and_appended(
    daemons: Start, files: list[Path], tables: list[pa.Table]
) -> None:
    three = daemons(3)
    done = spread("trips", files[:4], uris(*three), replicas=2, job="one")
    assert spread("trips", files[:4], uris(*three), replicas=2, job="one") == done
    assert read(uris(*three)) == whole(tables[:4])
    for _ in range(2):  # the same files are one job
        spread("trips", files[4:5], uris(*three), replicas=2, mode="append")
    assert read(uris(*three)) == whole(tables[:5])
    with connect(uris(*three)) as client:
        info = client.info("trips")
        assert [endpoint.ordinal for endpoint in info.endpoints] == [0, 1, 2, 3, 4]
        assert all(len(endpoint.held_by) == 2 for endpoint in info.endpoints)
    spread("trips", files[5:6], uris(*three))
    assert read(uris(*three)) == whole(tables[5:6])


def test_readers_keep_the_version_that_they_read(
    daemons: Start, files: list[Path], tables: list[pa.Table]
) -> None:
    two = daemons(2, "--keep-versions", "2")
    spread("trips", files, uris(*two), replicas=2)
    with (
        connect(uris(*two)) as client,
        client.read("trips", parallel=1, window_bytes=1) as stream,
    ):
        batches = [next(stream)]
        spread("trips", files[:2], uris(*two), replicas=2)
        batches += stream
        assert pa.Table.from_batches(batches) == whole(tables)
        with client.read("trips") as again:
            assert again.read_all() == whole(tables[:2])


def test_a_publication_that_is_cut_short_is_done_again(
    daemons: Start, files: list[Path], tables: list[pa.Table]
) -> None:
    a, b, c = daemons(3)
    spread("trips", files[:4], uris(a, b, c), replicas=2, job="one")
    b.kill()
    with pytest.raises(errors.ConnectError, match=b.uri):
        spread("trips", files[4:], uris(a, b, c), replicas=2, job="two")
    assert read(uris(a, b, c)) == whole(tables[:4])
    b.start()
    seen: list[Any] = []

    def fail(shard: Any) -> None:
        seen.append(shard)
        if len(seen) == 5:
            b.kill()

    with pytest.raises(errors.SplitArrowError):
        spread("trips", files[4:], uris(a, b, c), replicas=2, job="two", progress=fail)
    assert read(uris(a, b, c)) == whole(tables[:4])
    b.start()
    spread("trips", files[4:], uris(a, b, c), replicas=2, job="two")
    assert read(uris(a, b, c)) == whole(tables[4:])


def test_a_published_folder(
    daemons: Start, tmp_path: Path, files: list[Path], tables: list[pa.Table]
) -> None:
    store = VersionStore(tmp_path / "folder")
    schema = tables[0].schema
    entries = [
        store.write_shard("job-1", f"{n}.arrow", schema, table.to_batches(), ordinal=n)
        for n, table in enumerate(tables)
    ]
    store.commit("job-1", schema, entries, append=False, properties={"by": "test"})
    two = daemons(2)
    done = publish_folder(tmp_path / "folder", "trips", uris(*two), replicas=2)
    assert (done.job, done.rows) == ("job-1", SHARDS * ROWS)
    assert publish_folder(tmp_path / "folder", "trips", uris(*two), replicas=2) == done
    two[0].kill()
    assert read(uris(*two)) == whole(tables)
    two[0].start()
    publish_folder(files[:2], "trips", uris(*two))
    assert read(uris(*two)) == whole(tables[:2])
    victim = tmp_path / "folder" / entries[3].path
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.chmod(0o644)
    victim.write_bytes(data)
    with pytest.raises(errors.DatasetError, match="checksum"):
        publish_folder(tmp_path / "folder", "again", uris(*two))
    with pytest.raises(errors.DatasetError, match="no version"):
        publish_folder(tmp_path / "nothing", "again", uris(*two))
    with connect(uris(*two)) as client:
        assert [info.name for info in client.datasets()] == ["trips"]
