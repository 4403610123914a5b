"""Published datasets through a daemon: endpoints, new and pruned versions, object stores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyarrow import flight

import splitarrow
from helpers.daemons import StartDaemon
from helpers.publication import numbers, publish
from helpers.waiting import wait_until
from splitarrow.errors import DatasetError, RemoteError, SplitArrowError
from splitarrow.protocol.request import Request
from splitarrow.publication.storage import ObjectStorage
from splitarrow.publication.version_store import VersionStore
from splitarrow.server.catalog import published as published_dataset
from splitarrow.server.catalog.object_cache import ObjectCache
from splitarrow.server.catalog.published import PublishedDataset

PATIENCE = 60.0
CONTROL = "grpc://127.0.0.1:0"
TCP = "tcp://127.0.0.1:0"
NEVER = 3600.0


def start_server(location: str, tmp_path: Path, **settings: Any) -> splitarrow.Server:
    settings = {"listen": [TCP], "object_cache": tmp_path / "cache", **settings}
    return splitarrow.serve({"flights": location}, control=CONTROL, **settings)


def read_app_metadata(
    server: splitarrow.Server,
) -> tuple[dict[str, Any], list[dict[str, Any]], list[Any]]:
    """Return the app_metadata of the FlightInfo and of each endpoint, and the tickets."""
    assert server.control_uri is not None
    with flight.FlightClient(server.control_uri) as client:
        (listing,) = client.list_flights()
        info = client.get_flight_info(flight.FlightDescriptor.for_path("flights"))
    assert json.loads(listing.app_metadata) == json.loads(info.app_metadata)
    assert len(listing.endpoints) == len(info.endpoints)
    return (
        json.loads(info.app_metadata),
        [json.loads(endpoint.app_metadata) for endpoint in info.endpoints],
        [endpoint.ticket.ticket for endpoint in info.endpoints],
    )


def read(server: splitarrow.Server, **options: Any) -> pa.Table:
    assert server.control_uri is not None
    with (
        splitarrow.connect(server.control_uri) as client,
        client.read("flights", **options) as stream,
    ):
        return stream.read_all()


def test_endpoints_describe_their_shard_and_publication(location: str, tmp_path: Path) -> None:
    store = VersionStore(location)
    shards = [
        store.write_shard("job", "x", t.schema, t.to_batches(), ordinal=ordinal)
        for ordinal, t in ((5, numbers(50)), (2, numbers(20)))
    ]
    manifest = store.commit(
        "job", numbers(0).schema, shards, append=False, snapshot="snap", shards_total=9
    )
    with start_server(location, tmp_path) as server:
        info, endpoints, tickets = read_app_metadata(server)
        assert read(server, shards=[2, 5]) == pa.concat_tables([numbers(20), numbers(50)])
        with pytest.raises(DatasetError, match="has 2 of the 9 shards of 'flights'; connect to"):
            read(server)
    assert info["snapshot"] == "snap"
    assert info["shards_total"] == 9
    assert info["kind"] == "published dataset"
    expected = {"snapshot": "snap", "shards_total": 9, "rows": 10}
    assert endpoints == [
        {
            **expected,
            "ordinal": shard.ordinal,
            "sha256": shard.sha256,
            "bytes": shard.nbytes,
        }
        for shard in manifest.shards
    ]
    requests = [Request.parse(ticket) for ticket in tickets]
    assert [request.shard for request in requests] == [0, 1]
    assert {request.version for request in requests} == {info["version"]}


def test_a_version_has_one_endpoint_for_one_shard_and_for_none(tmp_path: Path) -> None:
    store = VersionStore(tmp_path / "data")
    publish(store, "job", numbers(0), shards_total=2)
    with start_server(store.location, tmp_path) as server:
        info, (endpoint,), _ = read_app_metadata(server)
        assert (endpoint["ordinal"], endpoint["shards_total"]) == (0, 2)
        assert read(server, shards=[0]) == numbers(0)
        store.commit("none", numbers(0).schema, [], append=False, shards_total=2)
        info, (endpoint,), _ = read_app_metadata(server)
        assert endpoint == {"snapshot": "none", "shards_total": 2}
        assert info["shards_total"] == 2
        with pytest.raises(DatasetError, match="has 0 of the 2 shards"):
            read(server)


@pytest.mark.parametrize("scheme", ["tcp", "shm"])
def test_every_transport_reads_the_same_rows(location: str, tmp_path: Path, scheme: str) -> None:
    store = VersionStore(location)
    publish(store, "job", *(numbers(n * 1000, 1000) for n in range(5)))
    with start_server(location, tmp_path, listen=[TCP, "shm://"]) as server:
        assert read(server, transport=scheme) == numbers(0, 5000)
        assert read(server, transport=scheme, columns=["n"]) == numbers(0, 5000).select(["n"])
        filtered = read(server, transport=scheme, filter=pc.field("n") > 3990)
        assert filtered == numbers(3991, 1009)
        with splitarrow.open(server.uri("flights", scheme)) as stream:
            assert stream.read_all() == numbers(0, 5000)


def test_a_new_version_is_served_without_a_restart(location: str, tmp_path: Path) -> None:
    store = VersionStore(location)
    publish(store, "one", numbers(0))
    with start_server(location, tmp_path, poll_seconds=0.05) as server:
        assert read(server) == numbers(0)
        publish(store, "two", numbers(10), append=True)
        if store.storage.folder is None:
            wait_until(lambda: read(server) == numbers(0, 20), "the version")
        assert read(server) == numbers(0, 20)
        assert read_app_metadata(server)[0]["snapshot"] == "two"


def test_the_kernel_reports_new_versions(tmp_path: Path) -> None:
    store = VersionStore(tmp_path / "data")
    publish(store, "one", numbers(0))
    with start_server(store.location, tmp_path, poll_seconds=NEVER) as server:
        dataset = server._daemon.catalog.lookup("flights")
        count = 0

        # The watch may start after the first version, so versions are published until one is seen.
        def is_seen() -> bool:
            nonlocal count
            count += 1
            if count % 100 == 1:
                publish(store, f"job-{count}", numbers(0, 10 + count))
            return dataset.rows != 10

        wait_until(is_seen, "the version")


@pytest.mark.parametrize("scheme", ["tcp", "shm"])
def test_a_version_stays_until_its_streams_have_ended(
    location: str, tmp_path: Path, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = VersionStore(location)
    # More than the socket buffers hold, so that the server is still sending.
    large = [numbers(n * 400_000, 400_000) for n in range(3)]
    publish(store, "one", *large)
    settings = {"poll_seconds": 0.05, "keep_versions": 1, "listen": [TCP, "shm://"]}
    with start_server(location, tmp_path, **settings) as server:
        old = read_app_metadata(server)[0]["version"]
        with splitarrow.open(server.uri("flights", scheme)) as stream:
            batches = [next(iter(stream))]
            publish(store, "two", numbers(0))
            wait_until(lambda: read(server) == numbers(0), "the new version")
            if scheme == "tcp":
                assert store.list_versions() == [1, 2]
                base = server.uri("flights", scheme).partition("&ticket=")[0]
                ticket = Request("flights", version=old, shard=1).ticket()
                with splitarrow.open(base, ticket=ticket) as resumed:
                    assert resumed.read_all() == large[1]
            monkeypatch.setattr(published_dataset, "GRACE_SECONDS", 0.0)
            batches += list(stream)
            assert pa.Table.from_batches(batches) == pa.concat_tables(large)
            del batches
        wait_until(lambda: store.list_versions() == [2], "the old version to be pruned")
        wait_until(lambda: len(store.storage.list_objects("data")) == 1, "its shards to be deleted")
        base = server.uri("flights", scheme).partition("&ticket=")[0]
        ticket = Request("flights", version=old).ticket()

        def find_refusal() -> str | None:
            try:
                with splitarrow.open(base, ticket=ticket) as stream:
                    stream.read_all()
            except RemoteError as error:
                return error.code
            return None

        # The server forgets a version only after it has deleted the shards.
        wait_until(lambda: find_refusal() == "FAILED_PRECONDITION", "the version to be forgotten")


def test_old_versions_are_kept_by_default(tmp_path: Path) -> None:
    store = VersionStore(tmp_path / "data")
    publish(store, "one", numbers(0))
    with start_server(
        store.location, tmp_path, poll_seconds=0.01, listen=[TCP, "shm://"]
    ) as server:
        old = read_app_metadata(server)[0]["version"]
        for index in range(3):
            publish(store, f"job-{index}", numbers(index))
            assert read(server) == numbers(index)
        for scheme in ("tcp", "shm"):
            base = server.uri("flights", scheme).partition("&ticket=")[0]
            ticket = Request("flights", version=old).ticket()
            with splitarrow.open(base, ticket=ticket) as stream:
                assert stream.read_all() == numbers(0)
    assert store.list_versions() == [1, 2, 3, 4]


@pytest.mark.slow
@pytest.mark.long
def test_a_thousand_shards_can_be_read(tmp_path: Path) -> None:
    store = VersionStore(tmp_path / "data")
    publish(store, "job", *(numbers(n * 10) for n in range(1000)))
    with start_server(store.location, tmp_path) as server:
        assert server.control_uri is not None
        with splitarrow.connect(server.control_uri) as client:
            (listing,) = client.datasets()
            assert (listing.rows, len(listing.endpoints)) == (10_000, 1000)
            info = client.info("flights")
            assert len(info.endpoints) == 1000
        assert read(server) == numbers(0, 10_000)
        with splitarrow.open(server.uri("flights", "tcp")) as stream:
            assert stream.read_all() == numbers(0, 10_000)
        assert read(server, filter=pc.field("n") == 7777)["n"].to_pylist() == [7777]


def test_opening_a_thousand_shards_inspects_no_file(tmp_path: Path, monkeypatch: Any) -> None:
    store = VersionStore(tmp_path / "data")
    publish(store, "job", *(numbers(n * 10) for n in range(1000)))

    def refuse(*arguments: Any) -> Any:
        raise AssertionError("a shard was inspected")

    monkeypatch.setattr("splitarrow.server.catalog.published_shards.ArrowFileDataset", refuse)
    dataset = PublishedDataset(store.location, ObjectCache(tmp_path / "cache", 1))
    assert (dataset.rows, len(dataset.shards)) == (10_000, 1000)
    assert (
        dataset.resolve_version(Request("flights")).make_shard_app_metadata(999)["ordinal"] == 999
    )


def test_serve_accepts_the_options_for_published_datasets(
    daemon: StartDaemon, bucket: str, tmp_path: Path
) -> None:
    store = VersionStore(bucket)
    publish(store, "zero", numbers(0))
    publish(store, "one", numbers(0))
    server = daemon(
        {"flights": bucket},
        control=CONTROL,
        keep_versions=1,
        poll_seconds=0.05,
        object_cache=tmp_path / "cache",
        object_cache_bytes="1MiB",
    )
    with splitarrow.connect(server.control_uri) as client:

        def rows() -> list[Any]:
            with client.read("flights") as stream:
                return stream.read_all()["n"].to_pylist()

        assert rows() == list(range(10))
        wait_until(lambda: store.list_versions() == [2], "the old version to be pruned")
        assert len(list((tmp_path / "cache").iterdir())) == 1
        publish(store, "two", numbers(5))
        wait_until(lambda: rows() == list(range(5, 15)), "the new version")
    assert server.stop() == 0


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("s3://nowhere/flights", "s3://nowhere/flights/_splitarrow/versions: "),
        ("{folder}/empty", "empty: no version of a dataset has been published here"),
    ],
)
def test_a_daemon_refuses_a_location_that_it_cannot_serve(
    daemon: StartDaemon, bucket: str, tmp_path: Path, location: str, reason: str
) -> None:
    (tmp_path / "empty/_splitarrow/versions").mkdir(parents=True)
    with pytest.raises(SplitArrowError, match="exited with status 1") as caught:
        daemon({"x": location.format(folder=tmp_path)})
    assert reason in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_a_daemon_serves_the_objects_of_a_prefix(
    daemon: StartDaemon, bucket: str, tmp_path: Path
) -> None:
    storage = ObjectStorage(bucket)
    for number in range(2):
        pq.write_table(numbers(number * 10), tmp_path / "local")
        storage.put(f"year=202{number}/a.parquet", tmp_path / "local")
    server = daemon({"flights": f"{bucket}/year=*/*.parquet"}, control="grpc://127.0.0.1:0")
    with splitarrow.connect(server.control_uri) as client:
        info = client.info("flights")
        assert (info.kind, info.rows, len(info.endpoints)) == ("parquet objects", 20, 2)
        for transport in ("tcp", "flight"):
            with client.read("flights", transport=transport, filter="year = 2021") as stream:
                assert stream.read_all()["n"].to_pylist() == list(range(10, 20))
    assert server.stop() == 0
