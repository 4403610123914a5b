"""A relay between real daemons and readers: what crosses the network, and what readers get."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

import splitarrow
from helpers.control_plane import TOKENS
from helpers.daemons import StartDaemon
from helpers.files import write_file
from helpers.http_downloads import download
from helpers.pki import Pki
from helpers.proxy import link_to
from helpers.publication import publish
from helpers.relays import CONTROL, sent_bytes, start_relay
from helpers.shm import find_mappings
from helpers.tensors import dense_values, encapsulate_tensor, make_source, make_tensor
from helpers.waiting import wait_until
from splitarrow.errors import InvalidRequestError, NotFoundError, SplitArrowError
from splitarrow.publication.version_store import VersionStore
from splitarrow.testing import Daemon

LINK = "127.0.0.2"
"""The address of an upstream behind a link that is cut."""
ROWS = 3000
TABLE = pa.table(
    {"n": pa.array(range(ROWS), pa.int64()), "text": [f"row {n}" for n in range(ROWS)]}
)


@pytest.fixture
def published(tmp_path: Path) -> str:
    location = str(tmp_path / "published")
    shards = (TABLE.slice(begin, 1000) for begin in range(0, ROWS, 1000))
    publish(VersionStore(location), "first", *shards)
    return location


@pytest.fixture
def upstream(tmp_path: Path, published: str, daemon: StartDaemon) -> Daemon:
    plain = write_file(tmp_path / "plain.arrow", TABLE, batch_rows=500)
    return daemon({"trips": published, "plain": plain}, control=CONTROL)


@pytest.fixture
def relay(tmp_path: Path, upstream: Daemon, daemon: StartDaemon) -> Daemon:
    return start_relay(tmp_path, upstream, daemon)


def numbers(table: pa.Table) -> list[Any]:
    return table["n"].to_pylist()


@pytest.mark.parametrize(
    "transport",
    ["tcp", *(pytest.param(each, marks=pytest.mark.slow) for each in ("shm", "flight"))],
)
def test_readers_get_what_the_upstream_has(upstream: Daemon, relay: Daemon, transport: str) -> None:
    with (
        splitarrow.connect(str(upstream.control_uri)) as origin,
        splitarrow.connect(str(relay.control_uri)) as client,
    ):
        for name in ("trips", "plain"):
            ours, theirs = client.info(name), origin.info(name)
            assert (ours.version, ours.rows, ours.kind) == (
                theirs.version,
                theirs.rows,
                theirs.kind,
            )
            with client.read(name, transport=transport) as stream:
                assert stream.read_all() == TABLE
            selected: Any = {"columns": ["text"], "filter": "n >= 1998 and n < 2001"}
            with client.read(name, transport=transport, **selected) as stream:
                assert stream.read_all()["text"].to_pylist() == ["row 1998", "row 1999", "row 2000"]
            with client.read(name, transport=transport, limit=7, batch_rows=2) as stream:
                assert stream.read_all() == TABLE.slice(0, 7)
            assert client.count_rows(name, filter="n < 1234") == origin.count_rows(
                name, filter="n < 1234"
            )
            assert client.list_lengths(name, "text") == origin.list_lengths(name, "text")


def test_a_stock_flight_client_reads_through_the_relay(relay: Daemon) -> None:
    with flight.connect(str(relay.control_uri)) as client:
        for name in ("trips", "plain"):
            info = client.get_flight_info(flight.FlightDescriptor.for_path(name))
            tables = [client.do_get(endpoint.ticket).read_all() for endpoint in info.endpoints]
            assert pa.concat_tables(tables) == TABLE


def test_a_shard_crosses_the_network_once(
    tmp_path: Path, upstream: Daemon, relay: Daemon, daemon: StartDaemon
) -> None:
    stored = sum(path.stat().st_size for path in (tmp_path / "published" / "data").rglob("*.arrow"))
    with splitarrow.connect(str(relay.control_uri)) as client:
        for _ in range(3):
            assert numbers(client.read("trips").read_all()) == list(range(ROWS))
        assert client.read("trips", filter="n = 5").read_all()["n"].to_pylist() == [5]
    assert stored <= sent_bytes(upstream, "trips") < 1.1 * stored + 4096
    relay.stop()
    again = start_relay(tmp_path, upstream, daemon)
    with splitarrow.connect(str(again.control_uri)) as client:
        assert numbers(client.read("trips").read_all()) == list(range(ROWS))
    assert sent_bytes(upstream, "trips") < 1.1 * stored + 4096


def test_rows_are_counted_without_a_shard(tmp_path: Path, upstream: Daemon, relay: Daemon) -> None:
    with splitarrow.connect(str(relay.control_uri)) as client:
        assert client.count_rows("trips") == {shard: [1000] for shard in range(3)}
        assert client.count_rows("trips", filter="n < 1003") == {0: [1000], 1: [3], 2: [0]}
        assert not list((tmp_path / "cache").glob("objects/*"))
        client.read("trips").read_all()
        upstream.stop()
        assert client.count_rows("trips", filter="n < 1003") == {0: [1000], 1: [3], 2: [0]}


def test_a_relay_follows_versions_and_serves_the_old_one(
    published: str, upstream: Daemon, relay: Daemon
) -> None:
    with splitarrow.connect(str(relay.control_uri)) as client:
        old = client.info("trips").version
        assert client.read("trips", shards=[0]).read_all().num_rows == 1000
        publish(VersionStore(published), "second", TABLE.slice(10))
        wait_until(lambda: client.info("trips").version != old)
        assert numbers(client.read("trips").read_all()) == list(range(10, ROWS))
        assert numbers(client.read("trips", version=old).read_all()) == list(range(ROWS))


@pytest.mark.slow
def test_a_dataset_that_is_published_anew_has_lower_versions(
    tmp_path: Path, published: str, upstream: Daemon, relay: Daemon, daemon: StartDaemon
) -> None:
    store = VersionStore(published)
    publish(store, "second", TABLE.slice(0, 20))
    with splitarrow.connect(str(relay.control_uri)) as client:
        wait_until(lambda: client.info("trips").rows == 20)
        upstream.stop()
        shutil.rmtree(published)
        publish(VersionStore(published), "again", TABLE.slice(0, 30))
        upstream.start()
        wait_until(lambda: client.info("trips").rows == 30)
        assert client.read("trips").read_all() == TABLE.slice(0, 30)
    relay.stop()
    upstream.stop()
    again = start_relay(tmp_path, upstream, daemon)
    with splitarrow.connect(str(again.control_uri)) as client:
        assert client.read("trips").read_all() == TABLE.slice(0, 30)


@pytest.mark.slow
def test_datasets_come_and_go(tmp_path: Path, daemon: StartDaemon) -> None:
    served = tmp_path / "served"
    served.mkdir()
    upstream = daemon(control=CONTROL, writable=served)
    relay = start_relay(tmp_path, upstream, daemon)
    with (
        splitarrow.connect(str(upstream.control_uri)) as origin,
        splitarrow.connect(str(relay.control_uri)) as client,
    ):
        assert list(client) == []
        origin.put("new", TABLE)
        wait_until(lambda: "new" in client)
        assert client.read("new").read_all() == TABLE
        origin.drop("new")
        wait_until(lambda: "new" not in client)
        with pytest.raises(NotFoundError, match="no dataset 'new'"):
            client.read("new")


@pytest.mark.slow
def test_complete_versions_are_served_while_the_upstream_is_away(
    tmp_path: Path, upstream: Daemon, relay: Daemon, daemon: StartDaemon
) -> None:
    with splitarrow.connect(str(relay.control_uri)) as client:
        assert client.read("trips", shards=[0, 1]).read_all().num_rows == 2000
        upstream.stop()
        assert client.read("trips", shards=[0, 1]).read_all() == TABLE.slice(0, 2000)
        with pytest.raises(SplitArrowError, match="cannot connect to"):
            client.read("plain").read_all()
        with pytest.raises(SplitArrowError, match="cannot connect to"):
            client.read("trips", shards=[2], resume_attempts=0).read_all()
    relay.stop()
    again = start_relay(tmp_path, upstream, daemon)
    with splitarrow.connect(str(again.control_uri)) as client:
        assert list(client) == ["trips"]
        assert client.read("trips", shards=[1]).read_all() == TABLE.slice(1000, 1000)
        upstream.start()
        wait_until(lambda: "plain" in client)
        assert client.read("trips").read_all() == TABLE


@pytest.mark.slow
def test_an_offline_relay_may_refuse(tmp_path: Path, upstream: Daemon, daemon: StartDaemon) -> None:
    relay = start_relay(tmp_path, upstream, daemon, "--offline", "refuse")
    with splitarrow.connect(str(relay.control_uri)) as client:
        assert client.read("trips").read_all() == TABLE
        upstream.stop()

        def is_refused() -> bool:
            try:
                client.read("trips", resume_attempts=0).read_all()
            except SplitArrowError as error:
                return "cannot be reached" in str(error)
            return False

        wait_until(is_refused)


@pytest.mark.parametrize(
    "damage",
    ["a byte", *(pytest.param(each, marks=pytest.mark.slow) for each in ("the end", "all"))],
)
def test_a_damaged_shard_is_found_after_a_start(
    tmp_path: Path, upstream: Daemon, relay: Daemon, daemon: StartDaemon, damage: str
) -> None:
    with splitarrow.connect(str(relay.control_uri)) as client:
        assert client.read("trips").read_all() == TABLE
    relay.stop()
    files = sorted((tmp_path / "cache" / "objects").iterdir())
    assert len(files) == 3
    for path in files:
        data = bytearray(path.read_bytes())
        if damage == "a byte":
            data[len(data) // 2] ^= 1
        path.write_bytes(
            data[:-9] if damage == "the end" else data[: -len(data)] if damage == "all" else data
        )
    again = start_relay(tmp_path, upstream, daemon)
    with splitarrow.connect(str(again.control_uri)) as client:
        assert client.read("trips").read_all() == TABLE


@pytest.mark.slow
def test_announced_shards_are_fetched_ahead(
    tmp_path: Path, upstream: Daemon, relay: Daemon
) -> None:
    with splitarrow.connect(relay.control_uri) as client:
        version = client.info("trips").version
        assert client.announce("trips", [2, 0], reader="r", version=version)
        wait_for_shards(tmp_path, 2)
        upstream.stop()
        for shard in (2, 0):
            expected = TABLE.slice(1000 * shard, 1000)
            assert client.read("trips", shards=[shard]).read_all() == expected
        assert not client.announce("plain", [0], reader="r")


def wait_for_shards(tmp_path: Path, count: int) -> None:
    objects = tmp_path / "cache" / "objects"
    wait_until(lambda: sum(len(path.name) == 64 for path in objects.glob("*")) == count)


@pytest.mark.slow
def test_the_rate_bounds_what_is_fetched_ahead(
    tmp_path: Path, published: str, upstream: Daemon, daemon: StartDaemon
) -> None:
    nbytes = min(path.stat().st_size for path in (Path(published) / "data").rglob("*.arrow"))
    relay = start_relay(tmp_path, upstream, daemon, "--rate", str(4 * nbytes))
    with splitarrow.connect(relay.control_uri) as client:
        begin = time.monotonic()
        client.announce("trips", [0, 1, 2], reader="r")
        wait_for_shards(tmp_path, 3)
    assert time.monotonic() - begin > 0.49


@pytest.mark.slow
def test_nothing_is_fetched_ahead_if_so_chosen(
    tmp_path: Path, upstream: Daemon, daemon: StartDaemon
) -> None:
    relay = start_relay(tmp_path, upstream, daemon, "--prefetch-bytes", "0")
    with splitarrow.connect(relay.control_uri) as client:
        assert client.announce("trips", [0, 1, 2], reader="r")
        client.read("trips", shards=[2]).read_all()
    wait_for_shards(tmp_path, 1)


@pytest.mark.slow
def test_a_killed_relay_leaves_no_incomplete_shard(
    tmp_path: Path, upstream: Daemon, relay: Daemon, daemon: StartDaemon
) -> None:
    relay.kill()
    objects = tmp_path / "cache" / "objects"
    objects.mkdir(exist_ok=True)
    (objects / ".tmp-1234").write_bytes(b"incomplete")
    again = start_relay(tmp_path, upstream, daemon)
    with splitarrow.connect(str(again.control_uri)) as client:
        assert client.read("trips").read_all() == TABLE
    assert all(len(path.name) == 64 for path in objects.iterdir())


def test_two_relays_cannot_use_one_cache(tmp_path: Path, upstream: Daemon, relay: Daemon) -> None:
    command = [sys.executable, "-P", "-m", "splitarrow", "relay", str(upstream.control_uri)]
    command += ["--cache", str(tmp_path / "cache"), "--control", CONTROL]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith("splitarrow: error: another relay uses the cache")
    assert relay.is_running


@pytest.mark.slow
def test_only_the_user_of_the_relay_reads_the_cache(tmp_path: Path, relay: Daemon) -> None:
    with splitarrow.connect(str(relay.control_uri)) as client:
        client.read("trips").read_all()
    assert os.stat(tmp_path / "cache").st_mode & 0o077 == 0


@pytest.mark.slow
def test_a_relay_of_a_relay(
    tmp_path: Path, upstream: Daemon, relay: Daemon, daemon: StartDaemon
) -> None:
    (tmp_path / "second").mkdir()
    second = start_relay(tmp_path / "second", relay, daemon)
    with splitarrow.connect(str(second.control_uri)) as client:
        for name in ("trips", "plain"):
            assert client.read(name).read_all() == TABLE


@pytest.mark.slow
def test_shards_of_several_daemons_become_one_dataset(
    tmp_path: Path, daemons: Any, daemon: StartDaemon
) -> None:
    from helpers.cluster import join_uris, make_numbered_shards
    from helpers.files import write_shards
    from splitarrow.client.cluster.publication import publish_shards

    tables = make_numbered_shards(6, 100, batch_rows=50)
    three = daemons(3)
    uris = join_uris(*three)
    publish_shards("trips", write_shards(tmp_path / "s", tables), uris, replicas=2)
    options = ["--cache", str(tmp_path / "cache")]
    relay = daemon(control=CONTROL, upstream=uris, arguments=options)
    with splitarrow.connect(str(relay.control_uri)) as client:
        three[1].kill()
        assert sorted(numbers(client.read("trips").read_all())) == list(range(600))


@pytest.mark.slow
def test_an_upstream_with_tls_and_tokens(
    tmp_path: Path, published: str, daemon: StartDaemon
) -> None:
    pki = Pki(tmp_path)
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(TOKENS)
    tokens.chmod(0o600)
    upstream = daemon(
        {"trips": published},
        listen=["tcp+tls://127.0.0.1:0"],
        control="grpc+tls://127.0.0.1:0",
        token_file=tokens,
        tls_cert=pki.path("server"),
    )
    options = ["--tls-ca", str(pki.path("ca")), "--token"]
    relay = start_relay(tmp_path, upstream, daemon, *options, "secret-token-of-berta")
    with splitarrow.connect(str(relay.control_uri)) as client:
        assert client.read("trips").read_all() == TABLE
    (tmp_path / "other").mkdir()
    with pytest.raises(SplitArrowError, match="token"):
        start_relay(tmp_path / "other", upstream, daemon, *options, "a wrong token")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["grpc://127.0.0.1:1"], "--cache is missing"),
        (["grpc://127.0.0.1:1", "--cache", "c"], "cannot connect to grpc://127.0.0.1:1"),
        (["grpc://127.0.0.1:1", "--cache", "c", "--cache-bytes", "big"], "cache"),
        (["grpc://127.0.0.1:1", "--cache", "c", "--prefetch-bytes", "big"], "not a size"),
        (["grpc://127.0.0.1:1", "--cache", "c", "--rate", "0"], "--rate is 0"),
        (["trips.arrow", "--cache", "c"], "trips.arrow"),
    ],
)
def test_wrong_arguments_are_explained(tmp_path: Path, arguments: list[str], message: str) -> None:
    command = [sys.executable, "-P", "-m", "splitarrow", "relay", *arguments]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path
    )
    assert ended.returncode in (1, 2)
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
def test_shards_that_do_not_fit_pass_through(
    tmp_path: Path, published: str, upstream: Daemon, daemon: StartDaemon
) -> None:
    http = "http://127.0.0.1:0"
    relay = start_relay(tmp_path, upstream, daemon, "--cache-bytes", "1KiB", http=http)
    path = "/v1/datasets/trips/shards/1/data?format=arrow-file"
    downloaded = download(str(relay.http_uri), path)
    assert pa.ipc.open_file(downloaded.body).read_all() == TABLE.slice(1000, 1000)
    with splitarrow.connect(str(relay.control_uri)) as client:
        for transport in ("tcp", "shm", "flight"):
            assert client.read("trips", transport=transport).read_all() == TABLE
        found = client.read("trips", shards=[1], filter="n < 1003", columns=["text"]).read_all()
        assert found["text"].to_pylist() == ["row 1000", "row 1001", "row 1002"]
        assert client.count_rows("trips", filter="n < 1003") == {0: [1000], 1: [3], 2: [0]}
        part = client.read("trips", format="file", shards=[1], rows=(7, 1000)).read_all()
        (path,) = (Path(published) / "data").rglob("00001-*.arrow")
        assert bytes(part["bytes"].to_numpy()) == path.read_bytes()[7:1000]
    assert not any((tmp_path / "cache" / "objects").glob("*"))
    below = start_relay(tmp_path / "below", relay, daemon)
    with splitarrow.connect(str(below.control_uri)) as client:
        assert client.read("trips").read_all() == TABLE
    wait_for_shards(tmp_path / "below", 3)


@pytest.mark.slow
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_shard_is_mapped_while_it_arrives(
    tmp_path: Path, daemon: StartDaemon, *, is_killed: bool
) -> None:
    rows, batch_rows = 1 << 20, 1 << 15
    table = pa.table({"n": pa.array(np.arange(rows))})
    batches = table.to_batches(max_chunksize=batch_rows)
    publish(VersionStore(str(tmp_path / "large")), "first", pa.Table.from_batches(batches))
    upstream = daemon({"large": tmp_path / "large"}, control=CONTROL, advertise=LINK)
    objects = tmp_path / "cache" / "objects"
    with ExitStack() as stack:
        links = [
            stack.enter_context(link_to(uri, LINK))
            for uri in (upstream.control_uri, upstream.uri("large"))
        ]
        relay = start_relay(tmp_path, f"grpc://{LINK}:{links[0].target}", daemon)
        links[1].delay = 0.02
        client = stack.enter_context(splitarrow.connect(str(relay.control_uri)))
        stream = stack.enter_context(
            client.read("large", transport="shm", resume_attempts=0 if is_killed else 3)
        )
        found = [next(stream)]
        (arriving,) = objects.iterdir()
        assert len(arriving.name) != 64  # that of a SHA-256
        (mapping,) = find_mappings(found)
        assert mapping.inode == arriving.stat().st_ino
        assert list(objects.iterdir()) == [arriving]
        if is_killed:
            relay.kill()
            with pytest.raises(SplitArrowError):
                list(stream)
            arriving.unlink()  # as the next relay does
            assert found[0].equals(batches[0])
            return
        links[1].delay = 0
        found += stream
        assert pa.Table.from_batches(found) == table
        (shard,) = objects.iterdir()
        assert shard.stat().st_ino == mapping.inode
        assert {each.inode for each in find_mappings(found)} == {mapping.inode}


@pytest.mark.slow
def test_a_shard_that_passes_through_continues_after_a_cut(
    tmp_path: Path, daemon: StartDaemon
) -> None:
    location = str(tmp_path / "large")
    rows = 1 << 20
    tables = [pa.table({"n": range(at, at + rows)}) for at in range(0, 3 * rows, rows)]
    publish(VersionStore(location), "first", *tables)
    upstream = daemon({"large": location}, control=CONTROL, batch_rows=1024, advertise=LINK)
    with ExitStack() as stack:
        uris = (upstream.control_uri, upstream.uri("large"))
        links = [stack.enter_context(link_to(uri, LINK)) for uri in uris]
        relay = start_relay(
            tmp_path,
            f"grpc://{LINK}:{links[0].target}",
            daemon,
            "--cache-bytes",
            "1KiB",
            batch_rows=1024,
        )
        client = stack.enter_context(splitarrow.connect(str(relay.control_uri)))
        for shard, expected in enumerate(tables):
            stream = stack.enter_context(
                client.read("large", shards=[shard], window_bytes=1 << 16, transport="tcp")
            )
            found = [next(stream)]
            for is_cut in (True, False):
                for link in links:
                    link.is_cut = is_cut
                time.sleep(0.2)
            found += stream
            assert pa.Table.from_batches(found)["n"].equals(expected["n"])


def run_cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "splitarrow", "relay", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
def test_shards_are_fetched_before_they_are_needed(
    tmp_path: Path, upstream: Daemon, relay: Daemon
) -> None:
    objects = tmp_path / "cache" / "objects"
    uri = str(relay.control_uri)
    ended = run_cli("warm", uri, "trips", "--shards", "0,2")
    assert (ended.returncode, ended.stderr) == (0, "trips: 2 shards in the cache\n")
    assert len(list(objects.iterdir())) == 2
    assert run_cli("warm", uri, "trips").returncode == 0
    assert len(list(objects.iterdir())) == 3
    upstream.stop()
    with splitarrow.connect(uri) as client:
        assert client.read("trips").read_all() == TABLE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plain"], "'plain' is not a published dataset, which a relay caches"),
        (["trips", "--shards", "1,7"], "there is no shard 7"),
        (["trips", "--shards", "one"], "--shards is 'one'; expected ordinals such as 0-9,12"),
        (["missing"], "no dataset 'missing'"),
    ],
)
def test_what_cannot_be_fetched_is_explained(
    relay: Daemon, arguments: list[str], message: str
) -> None:
    ended = run_cli("warm", str(relay.control_uri), *arguments)
    assert ended.returncode in (1, 2)
    assert message in ended.stderr


@pytest.mark.slow
def test_scrub_removes_damaged_shards(tmp_path: Path, relay: Daemon) -> None:
    cache = tmp_path / "cache"
    with splitarrow.connect(str(relay.control_uri)) as client:
        client.read("trips").read_all()
        ended = run_cli("scrub", "--cache", str(cache))
        assert (ended.returncode, ended.stderr) == (0, "3 shards checked, 0 damaged\n")
        damaged = sorted((cache / "objects").iterdir())[1]
        data = bytearray(damaged.read_bytes())
        data[100] ^= 1
        damaged.write_bytes(data)
        ended = run_cli("scrub", "--cache", str(cache))
        assert ended.returncode == 1
        assert f"removed {damaged}, which was damaged" in ended.stderr
        assert not damaged.exists()
        assert client.read("trips").read_all() == TABLE
    assert "is not the cache of a relay" in run_cli("scrub", "--cache", str(tmp_path)).stderr


def test_tensors_pass_through(tmp_path: Path, daemon: StartDaemon) -> None:
    folder = tmp_path / "tensors"
    folder.mkdir()
    for kind in ("dense", "csr", "csf"):
        tensor = make_tensor(make_source(kind), kind)
        (folder / f"{kind}.arrow").write_bytes(encapsulate_tensor(tensor))
    swapped = np.arange(6, dtype=">f4").reshape(2, 3)
    np.save(tmp_path / "swapped.npy", swapped)
    datasets = {"tensors": folder, "swapped": tmp_path / "swapped.npy"}
    upstream = daemon(datasets, control=CONTROL)
    relay = start_relay(tmp_path, upstream, daemon)
    with (
        splitarrow.connect(str(upstream.control_uri)) as above,
        splitarrow.connect(str(relay.control_uri)) as client,
    ):
        for transport in ("tcp", "shm"):
            with client.read("swapped", transport=transport) as stream:
                assert dense_values(stream.read_tensor()).tolist() == swapped.tolist()
            selections: list[dict[str, Any]] = [{}, {"batches": (1, 3)}]
            for options in selections:
                with above.read("tensors", **options) as stream:
                    expected = list(stream.tensors())
                with client.read("tensors", transport=transport, **options) as stream:
                    found = list(stream.tensors())
                assert [(each.name, each.layout) for each in found] == [
                    (each.name, each.layout) for each in expected
                ]
                for one, other in zip(found, expected, strict=True):
                    assert (dense_values(one) == dense_values(other)).all()
        relayed, own = client.info("tensors"), above.info("tensors")
        assert (relayed.tensors, relayed.tensor_count) == (own.tensors, own.tensor_count)
        assert own.tensor_count == 3
        with pytest.raises(InvalidRequestError, match="have no rows and columns"):
            client.read("tensors", limit=3)


def test_a_relay_serves_what_it_cannot_store(
    tmp_path: Path, upstream: Daemon, daemon: StartDaemon
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "manifests").touch()
    (cache / "catalog.json").mkdir()
    relay = start_relay(tmp_path, upstream, daemon)
    with splitarrow.connect(str(relay.control_uri)) as client:
        assert numbers(client.read("trips").read_all()) == [*range(ROWS)]
    assert "catalog not stored" in relay.log()
