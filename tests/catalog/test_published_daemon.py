"""Published datasets through a daemon: endpoints, versions that come and go, object stores."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import flight

import splitarrow
from splitarrow.errors import RemoteError
from splitarrow.protocol.request import Request
from splitarrow.server.catalog import published as serving_module
from splitarrow.server.catalog.object_cache import ObjectCache
from splitarrow.server.catalog.published import PublishedDataset
from splitarrow.server.catalog.versions import VersionStore

from .published import numbers, publish

PATIENCE = 60.0
CONTROL = "grpc://127.0.0.1:0"
TCP = "tcp://127.0.0.1:0"
NEVER = 3600.0


def eventually(happened: Callable[[], object], what: str) -> None:
    """Wait until something has happened; fail when it takes too long."""
    deadline = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        threading.Event().wait(0.01)


def serving(location: str, tmp_path: Path, **settings: Any) -> splitarrow.Server:
    settings = {"listen": [TCP], "object_cache": tmp_path / "cache", **settings}
    return splitarrow.serve({"flights": location}, control=CONTROL, **settings)


def told(server: splitarrow.Server) -> tuple[dict[str, Any], list[dict[str, Any]], list[Any]]:
    """What a stock Flight client is told: of the whole, of each endpoint, and its tickets."""
    assert server.control_uri is not None
    with flight.FlightClient(server.control_uri) as client:
        (listed,) = client.list_flights()
        info = client.get_flight_info(flight.FlightDescriptor.for_path("flights"))
    assert json.loads(listed.app_metadata) == json.loads(info.app_metadata)
    assert len(listed.endpoints) == len(info.endpoints)
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


def test_endpoints_say_what_they_are_a_part_of(location: str, tmp_path: Path) -> None:
    store = VersionStore(location)
    shards = [
        store.write_shard("job", "x", t.schema, t.to_batches(), ordinal=ordinal)
        for ordinal, t in ((5, numbers(50)), (2, numbers(20)))
    ]
    made = store.commit(
        "job", numbers(0).schema, shards, append=False, snapshot="snap", shards_total=9
    )
    with serving(location, tmp_path) as server:
        whole, parts, tickets = told(server)
        assert read(server) == pa.concat_tables([numbers(20), numbers(50)])
    assert whole["snapshot"] == "snap"
    assert whole["shards_total"] == 9
    assert whole["kind"] == "published dataset"
    expected = {"snapshot": "snap", "shards_total": 9, "rows": 10}
    assert parts == [
        {
            **expected,
            "ordinal": shard.ordinal,
            "sha256": shard.sha256,
            "bytes": shard.nbytes,
        }
        for shard in made.shards
    ]
    requests = [Request.parse(ticket) for ticket in tickets]
    assert [request.shard for request in requests] == [0, 1]
    assert {request.version for request in requests} == {whole["version"]}


def test_one_shard_and_none(tmp_path: Path) -> None:
    store = VersionStore(tmp_path / "data")
    publish(store, "job", numbers(0), shards_total=2)
    with serving(store.location, tmp_path) as server:
        whole, (part,), _ = told(server)
        assert (part["ordinal"], part["shards_total"]) == (0, 2)
        assert read(server) == numbers(0)
        store.commit("none", numbers(0).schema, [], append=False, shards_total=2)
        whole, (part,), _ = told(server)
        assert part == {"snapshot": "none", "shards_total": 2}
        assert whole["shards_total"] == 2
        assert read(server) == numbers(0, 0)


@pytest.mark.parametrize("scheme", ["tcp", "shm"])
def test_every_way_of_reading(location: str, tmp_path: Path, scheme: str) -> None:
    store = VersionStore(location)
    publish(store, "job", *(numbers(n * 1000, 1000) for n in range(5)))
    with serving(location, tmp_path, listen=[TCP, "shm://"]) as server:
        assert read(server, transport=scheme) == numbers(0, 5000)
        assert read(server, transport=scheme, columns=["n"]) == numbers(0, 5000).select(["n"])
        found = read(server, transport=scheme, filter=pc.field("n") > 3990)
        assert found == numbers(3991, 1009)
        with splitarrow.open(server.uri("flights", scheme)) as stream:
            assert stream.read_all() == numbers(0, 5000)


def test_a_new_version_is_served_without_a_restart(location: str, tmp_path: Path) -> None:
    store = VersionStore(location)
    publish(store, "one", numbers(0))
    with serving(location, tmp_path, poll_seconds=0.05) as server:
        assert read(server) == numbers(0)
        publish(store, "two", numbers(10), append=True)
        if store.storage.folder is None:
            eventually(lambda: read(server) == numbers(0, 20), "the version")
        assert read(server) == numbers(0, 20)
        assert told(server)[0]["snapshot"] == "two"


def test_the_kernel_tells_of_new_versions(tmp_path: Path) -> None:
    store = VersionStore(tmp_path / "data")
    publish(store, "one", numbers(0))
    with serving(store.location, tmp_path, poll_seconds=NEVER) as server:
        dataset = server._daemon.catalog.lookup("flights")
        count = 0

        def seen() -> bool:  # the watch may not have begun when the first version comes
            nonlocal count
            count += 1
            if count % 100 == 1:
                publish(store, f"job-{count}", numbers(0, 10 + count))
            return dataset.rows != 10

        eventually(seen, "the version")


@pytest.mark.parametrize("scheme", ["tcp", "shm"])
def test_what_is_read_stays_until_it_has_been_read(
    location: str, tmp_path: Path, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = VersionStore(location)
    # More than the sockets hold, so that the server is still at it.
    large = [numbers(n * 400_000, 400_000) for n in range(3)]
    publish(store, "one", *large)
    settings = {"poll_seconds": 0.05, "keep_versions": 1, "listen": [TCP, "shm://"]}
    with serving(location, tmp_path, **settings) as server:
        old = told(server)[0]["version"]
        with splitarrow.open(server.uri("flights", scheme)) as stream:
            batches = [next(iter(stream))]
            publish(store, "two", numbers(0))
            eventually(lambda: read(server) == numbers(0), "the new version")
            if scheme == "tcp":
                assert store.versions() == [1, 2]
                base = server.uri("flights", scheme).partition("&ticket=")[0]
                ticket = Request("flights", version=old, shard=1).ticket()
                with splitarrow.open(base, ticket=ticket) as resumed:
                    assert resumed.read_all() == large[1]
            monkeypatch.setattr(serving_module, "TOLD_SECONDS", 0.0)
            batches += list(stream)
            assert pa.Table.from_batches(batches) == pa.concat_tables(large)
            del batches
        eventually(lambda: store.versions() == [2], "the old version to go")
        eventually(lambda: len(store.storage.names("data")) == 1, "its shards to go")
        with (
            pytest.raises(RemoteError) as caught,
            splitarrow.open(
                server.uri("flights", scheme).partition("&ticket=")[0],
                ticket=Request("flights", version=old).ticket(),
            ) as stream,
        ):
            stream.read_all()
        assert caught.value.code == "FAILED_PRECONDITION"


def test_old_versions_are_kept_by_default(tmp_path: Path) -> None:
    store = VersionStore(tmp_path / "data")
    publish(store, "one", numbers(0))
    with serving(store.location, tmp_path, poll_seconds=0.01, listen=[TCP, "shm://"]) as server:
        old = told(server)[0]["version"]
        for index in range(3):
            publish(store, f"job-{index}", numbers(index))
            assert read(server) == numbers(index)
        for scheme in ("tcp", "shm"):
            base = server.uri("flights", scheme).partition("&ticket=")[0]
            ticket = Request("flights", version=old).ticket()
            with splitarrow.open(base, ticket=ticket) as stream:
                assert stream.read_all() == numbers(0)
    assert store.versions() == [1, 2, 3, 4]


def test_a_thousand_shards(tmp_path: Path) -> None:
    store = VersionStore(tmp_path / "data")
    publish(store, "job", *(numbers(n * 10) for n in range(1000)))
    with serving(store.location, tmp_path) as server:
        assert server.control_uri is not None
        with splitarrow.connect(server.control_uri) as client:
            (listed,) = client.datasets()
            assert (listed.rows, len(listed.endpoints)) == (10_000, 1000)
            info = client.info("flights")
            assert len(info.endpoints) == 1000
        assert read(server) == numbers(0, 10_000)
        with splitarrow.open(server.uri("flights", "tcp")) as stream:
            assert stream.read_all() == numbers(0, 10_000)
        assert read(server, filter=pc.field("n") == 7777)["n"].to_pylist() == [7777]


def test_opening_a_thousand_shards_opens_no_file(tmp_path: Path, monkeypatch: Any) -> None:
    store = VersionStore(tmp_path / "data")
    publish(store, "job", *(numbers(n * 10) for n in range(1000)))

    def refuse(*arguments: Any) -> Any:
        raise AssertionError("a shard was looked into")

    monkeypatch.setattr("splitarrow.server.catalog.shard_source.ArrowFileDataset", refuse)
    dataset = PublishedDataset(store.location, ObjectCache(tmp_path / "cache", 1))
    assert (dataset.rows, len(dataset.shards)) == (10_000, 1000)
    assert dataset.at(Request("flights")).about_shard(999)["ordinal"] == 999


def serve_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "splitarrow", "serve", *arguments, "--log-format", "json"]


def test_the_command_line(bucket: str, tmp_path: Path) -> None:
    store = VersionStore(bucket)
    publish(store, "zero", numbers(0))
    publish(store, "one", numbers(0))
    ready = tmp_path / "ready.json"
    options = {
        "--listen": TCP,
        "--control": CONTROL,
        "--keep-versions": "1",
        "--poll-seconds": "0.05",
        "--object-cache": str(tmp_path / "cache"),
        "--object-cache-bytes": "1MiB",
        "--ready-file": str(ready),
    }
    words = [word for option in options.items() for word in option]
    with subprocess.Popen(
        serve_command(f"flights={bucket}", *words), stderr=subprocess.PIPE, env=dict(os.environ)
    ) as process:
        try:
            eventually(lambda: ready.exists() or process.poll() is not None, "the daemon")
            uri = json.loads(ready.read_text())["control"]
            with splitarrow.connect(uri) as client:

                def rows() -> list[Any]:
                    with client.read("flights") as stream:
                        return stream.read_all()["n"].to_pylist()

                assert rows() == list(range(10))
                eventually(lambda: store.versions() == [2], "the old version to go")
                assert len(list((tmp_path / "cache").iterdir())) == 1
                publish(store, "two", numbers(5))
                eventually(lambda: rows() == list(range(5, 15)), "the new version")
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("s3://nowhere/flights", "s3://nowhere/flights/_splitarrow/versions: "),
        ("{folder}/empty", "empty: no version of a dataset has been published here"),
    ],
)
def test_what_cannot_be_served_is_said(
    bucket: str, tmp_path: Path, location: str, said: str
) -> None:
    (tmp_path / "empty/_splitarrow/versions").mkdir(parents=True)
    command = serve_command(f"x={location.format(folder=tmp_path)}", "--listen", TCP)
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr
