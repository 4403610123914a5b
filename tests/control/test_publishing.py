"""Publishing shard by shard: staged unseen, committed whole, once for each job."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from splitarrow import errors
from splitarrow.client.control import Client, connect
from splitarrow.server.auth.guard import Guard
from splitarrow.server.auth.tickets import TicketOffice
from splitarrow.server.auth.tokens import TokenFile
from splitarrow.server.catalog.versions import VersionStore

from .conftest import Running, running, write_file
from .test_rights import TOKENS


@pytest.fixture
def writable(tmp_path: Path) -> Path:
    folder = tmp_path / "uploads"
    folder.mkdir()
    return folder


@pytest.fixture
def server(writable: Path, arrow_file: Path) -> Iterator[Running]:
    with running({"configured": arrow_file}, writable=writable) as served:
        yield served


@pytest.fixture
def client(server: Running) -> Iterator[Client]:
    with connect(server.uri) as client:
        yield client


def part(number: int, rows: int = 100) -> pa.Table:
    return pa.table({"n": range(number * rows, (number + 1) * rows)})


def publish(client: Client, job: str, numbers: list[int], **options: Any) -> Any:
    for ordinal, number in enumerate(numbers):
        client.put_shard("d", part(number), job=job, ordinal=ordinal)
    return client.publish("d", job=job, ordinals=range(len(numbers)), **options)


def read(client: Client, name: str = "d") -> list[Any]:
    with client.read(name) as stream:
        return stream.read_all()["n"].to_pylist()


def test_shards_are_seen_once_they_are_committed(client: Client) -> None:
    for ordinal in (1, 0):
        stored = client.put_shard("d", part(ordinal), job="one", ordinal=ordinal)
        assert (stored.name, stored.job, stored.ordinal) == ("d", "one", ordinal)
        assert (stored.rows, len(stored.sha256)) == (100, 64)
        assert [info.name for info in client.datasets()] == ["configured"]
    made = client.publish("d", job="one", ordinals=[0, 1])
    assert (made.version, made.shards, made.rows, made.snapshot) == (1, 2, 200, "one")
    assert read(client) == list(range(200))
    info = client.info("d")
    assert (info.rows, info.snapshot, info.shards_total) == (200, "one", 2)
    assert [endpoint.ordinal for endpoint in info.endpoints] == [0, 1]
    assert [endpoint.rows for endpoint in info.endpoints] == [100, 100]
    assert all(endpoint.sha256 for endpoint in info.endpoints)


def test_a_file_keeps_its_compression(client: Client, tmp_path: Path, writable: Path) -> None:
    table = pa.table({"n": [7] * 10_000})
    path = write_file(tmp_path / "x.arrow", table, compression="zstd")
    small = client.put_shard("d", path, job="a", ordinal=0)
    large = client.put_shard("d", path, job="a", ordinal=1, compression="none")
    assert small.bytes < 5_000 < 80_000 < large.bytes
    (tmp_path / "text").write_text("no shard")
    with pytest.raises(errors.DatasetError, match=r"text"):
        client.put_shard("d", tmp_path / "text", job="a", ordinal=2)


def test_dictionaries_make_a_file_too(client: Client) -> None:
    table = pa.table({"word": pa.array(["a", "b", "a"]).dictionary_encode()})
    client.put_shard("words", table, job="a", ordinal=0)
    client.publish("words", job="a", ordinals=[0])
    with client.read("words") as stream:
        assert stream.read_all()["word"].to_pylist() == ["a", "b", "a"]


def test_what_is_sent_again_counts_once(client: Client, writable: Path) -> None:
    for _ in range(3):
        client.put_shard("d", part(0), job="one", ordinal=0)
    client.put_shard("d", part(9), job="one", ordinal=1)
    client.put_shard("d", part(1), job="one", ordinal=1)
    assert len(list(writable.glob("*/_splitarrow/staging/*/*.arrow"))) == 2
    made = client.publish("d", job="one", ordinals=[0, 1])
    again = client.put_shard("d", part(1), job="one", ordinal=1)
    assert again.rows == 100
    with pytest.raises(errors.RemoteError, match="'one' of 'd' is published") as raised:
        client.put_shard("d", part(5), job="one", ordinal=1)
    assert raised.value.code == "FAILED_PRECONDITION"
    assert client.publish("d", job="one", ordinals=[0, 1]) == made
    assert read(client) == list(range(200))
    assert not list(writable.glob("*/_splitarrow/staging/*/*"))


def test_a_missing_shard_is_named(client: Client) -> None:
    client.put_shard("d", part(0), job="one", ordinal=0)
    with pytest.raises(errors.RemoteError, match="shard 2, 3 was not uploaded here") as raised:
        client.publish("d", job="one", ordinals=[0, 2, 3], shards_total=4)
    assert raised.value.code == "FAILED_PRECONDITION"
    with pytest.raises(errors.NotFoundError):
        client.info("d")
    client.put_shard("d", part(2), job="one", ordinal=2)
    client.put_shard("d", part(3), job="one", ordinal=3)
    client.publish("d", job="one", ordinals=[0, 2, 3], shards_total=4)
    assert client.info("d").shards_total == 4


def test_a_job_is_published_one_way_only(client: Client) -> None:
    publish(client, "one", [0, 1])
    with pytest.raises(errors.RemoteError, match="published already, and shard 1"):
        client.publish("d", job="one", ordinals=[0])
    with pytest.raises(errors.RemoteError, match="as snapshot 'one'"):
        client.publish("d", job="one", ordinals=[0, 1], snapshot="x")
    publish(client, "two", [2])
    with pytest.raises(errors.RemoteError, match="version 1, and a later version is without it"):
        client.publish("d", job="one", ordinals=[0, 1])
    assert read(client) == list(range(200, 300))


def test_append_and_overwrite(client: Client) -> None:
    publish(client, "one", [0, 1])
    made = publish(client, "two", [2], mode="append")
    assert (made.version, made.shards, made.rows) == (2, 3, 300)
    assert publish(client, "two", [2], mode="append") == made
    assert read(client) == list(range(300))
    assert [endpoint.ordinal for endpoint in client.info("d").endpoints] == [0, 1, 2]
    client.publish("d", job="one", ordinals=[0, 1])
    client.put_shard("d", pa.table({"m": [1]}), job="three", ordinal=0)
    with pytest.raises(errors.RemoteError, match="another than that of the version before"):
        client.publish("d", job="three", ordinals=[0], mode="append")
    publish(client, "four", [5])
    assert read(client) == list(range(500, 600))


def test_shards_need_one_schema(client: Client) -> None:
    client.put_shard("d", part(0), job="one", ordinal=0)
    client.put_shard("d", pa.table({"m": [1]}), job="one", ordinal=1)
    with pytest.raises(errors.RemoteError, match="shard 1 has another schema"):
        client.publish("d", job="one", ordinals=[0, 1])
    with pytest.raises(errors.RemoteError, match="shard 0 has another schema"):
        client.publish("d", job="one", ordinals=[0], schema=pa.schema([("x", pa.int8())]))
    with pytest.raises(errors.RemoteError, match="no shard that tells the schema"):
        client.publish("d", job="none", ordinals=[])


def test_no_shard_here(client: Client) -> None:
    schema = part(0).schema
    made = client.publish("d", job="none", ordinals=[], shards_total=3, schema=schema)
    assert (made.shards, made.rows) == (0, 0)
    assert client.info("d").shards_total == 3
    assert read(client) == []


def test_names_of_others(client: Client, writable: Path) -> None:
    with pytest.raises(errors.RemoteError, match="'configured'") as raised:
        client.put_shard("configured", part(0), job="one", ordinal=0)
    assert raised.value.code == "ALREADY_EXISTS"
    client.put("plain", part(0))
    with pytest.raises(errors.RemoteError, match="'plain'"):
        client.put_shard("plain", part(0), job="one", ordinal=0)
    publish(client, "one", [0])
    with pytest.raises(errors.RemoteError) as raised:
        client.put("d", part(0))
    assert raised.value.code == "ALREADY_EXISTS"
    for name in ("../d", ".d", "a/b"):
        with pytest.raises(errors.InvalidRequestError):
            client.put_shard(name, part(0), job="one", ordinal=0)
    for job in ("../x", "", "a b", ".x", "a/b", "x" * 129):
        with pytest.raises((errors.InvalidRequestError, errors.UsageError)):
            client.put_shard("e", part(0), job=job, ordinal=0)
    with pytest.raises(errors.InvalidRequestError, match="ordinal"):
        client.put_shard("e", part(0), job="one", ordinal=1 << 40)
    assert sorted(path.name for path in writable.iterdir()) == ["d.published", "plain.arrow"]


@pytest.mark.parametrize(
    "body",
    [
        b"no json",
        b"[]",
        b'{"dataset": "d"}',
        b'{"dataset": "d", "job": "j", "ordinals": [0], "shards_total": 0}',
        b'{"dataset": "d", "job": "j", "ordinals": [true], "shards_total": 2}',
        b'{"dataset": "d", "job": "../j", "ordinals": [0], "shards_total": 1}',
        b'{"dataset": "d", "job": "j", "ordinals": [0], "shards_total": 1, "mode": "x"}',
        b'{"dataset": "d", "job": "j", "ordinals": [0], "shards_total": 1, "other": 1}',
        b'{"dataset": "d", "job": "j", "ordinals": [], "shards_total": 1, "schema": "AAAA"}',
        b'{"dataset": "d", "job": "j", "ordinals": [], "shards_total": 1, "properties": [1]}',
        b'{"dataset": 7, "job": "j", "ordinals": [], "shards_total": 1}',
        b'{"dataset": "d", "job": "j", "ordinals": [], "shards_total": 1e400}',
    ],
)
def test_orders_that_cannot_be_understood(client: Client, body: bytes) -> None:
    with pytest.raises(errors.InvalidRequestError):
        client.act("publish", body)


@pytest.mark.parametrize(
    "command",
    [
        {"dataset": "d"},
        {"dataset": "d", "publish": 1},
        {"dataset": "d", "publish": {"job": "j"}},
        {"dataset": "d", "publish": {"job": "j", "ordinal": -1}},
        {"dataset": "d", "publish": {"job": "j", "ordinal": True}},
        {"dataset": "", "publish": {"job": "j", "ordinal": 0}},
        {"dataset": "d", "publish": {"job": "j", "ordinal": 0}, "columns": ["n"]},
    ],
)
def test_commands_that_cannot_be_understood(server: Running, command: dict[str, Any]) -> None:
    descriptor = flight.FlightDescriptor.for_command(json.dumps(command).encode())
    with server.client() as client:
        writer, _ = client.do_put(descriptor, part(0).schema)
        with pytest.raises(pa.ArrowInvalid):
            writer.close()


def test_a_stock_client_publishes(server: Running, client: Client) -> None:
    command = {"dataset": "d", "publish": {"job": "one", "ordinal": 0}}
    with server.client() as stock:
        descriptor = flight.FlightDescriptor.for_command(json.dumps(command).encode())
        writer, answers = stock.do_put(descriptor, part(0).schema)
        with writer:
            writer.write_table(part(0))
            writer.done_writing()
            told = json.loads(answers.read().to_pybytes())
        order = {"dataset": "d", "job": "one", "ordinals": [0], "shards_total": 1}
        action = flight.Action("publish", json.dumps({**order, "mode": "overwrite"}).encode())
        (result,) = stock.do_action(action)
    assert (told["rows"], told["ordinal"]) == (100, 0)
    assert json.loads(result.body.to_pybytes())["version"] == 1
    assert read(client) == list(range(100))


def test_discard_and_drop(client: Client, writable: Path) -> None:
    client.put_shard("d", part(0), job="one", ordinal=0)
    client.discard("d", "one")
    client.discard("d", "one")
    with pytest.raises(errors.RemoteError, match="shard 0"):
        client.publish("d", job="one", ordinals=[0])
    publish(client, "two", [0, 1])
    client.discard("d", "two")
    assert read(client) == list(range(200))
    client.drop("d")
    with pytest.raises(errors.NotFoundError):
        client.info("d")
    assert list(writable.iterdir()) == []
    publish(client, "two", [3])
    assert read(client) == list(range(300, 400))


def test_sizes_are_bounded(writable: Path) -> None:
    big = pa.table({"n": range(10_000)})
    with (
        running({}, writable=writable, writable_bytes=100_000) as served,
        connect(served.uri) as client,
    ):
        client.put_shard("d", big, job="one", ordinal=0)
        with pytest.raises(errors.ExhaustedError):
            client.put_shard("d", big, job="one", ordinal=1)
        with pytest.raises(errors.ExhaustedError):
            client.put("plain", big)
        client.publish("d", job="one", ordinals=[0])
        with pytest.raises(errors.ExhaustedError):
            client.put("plain", big)
    with (
        running({}, writable=writable, writable_bytes=100_000) as served,
        connect(served.uri) as client,
    ):
        with pytest.raises(errors.ExhaustedError):
            client.put("plain", big)
        client.drop("d")
        client.put("plain", big)
        client.drop("plain")
        client.put_shard("d", big, job="two", ordinal=0)
        client.discard("d", "two")
        client.put("plain", big)
    with (
        running({}, writable=writable, upload_bytes=50_000) as served,
        connect(served.uri) as client,
        pytest.raises(errors.ExhaustedError),
    ):
        client.put_shard("d", big, job="one", ordinal=0)


def test_versions_that_were_removed_take_no_room(writable: Path) -> None:
    big = pa.table({"n": range(10_000)})
    with (
        running({}, writable=writable, writable_bytes=200_000) as served,
        connect(served.uri) as client,
    ):
        for job in ("one", "two"):
            client.put_shard("d", big, job=job, ordinal=0)
            client.publish("d", job=job, ordinals=[0])
        with pytest.raises(errors.ExhaustedError):
            client.put("plain", big)
        assert VersionStore(writable / "d.published").prune(1) == [1]
        client.put("plain", big)


def test_a_new_server_goes_on(writable: Path) -> None:
    with running({}, writable=writable) as served, connect(served.uri) as client:
        publish(client, "one", [0, 1])
        client.put_shard("d", part(2), job="two", ordinal=0)
    (writable / ".upload-left").mkdir()
    with running({}, writable=writable) as served, connect(served.uri) as client:
        assert read(client) == list(range(200))
        assert client.publish("d", job="one", ordinals=[0, 1]).version == 1
        assert client.publish("d", job="two", ordinals=[0], mode="append").version == 2
        assert read(client) == list(range(300))
        assert sorted(path.name for path in writable.iterdir()) == ["d.published"]


def test_rights(tmp_path: Path, writable: Path) -> None:
    path = tmp_path / "tokens.toml"
    path.write_text(TOKENS)
    path.chmod(0o600)
    office = TicketOffice()
    with running({}, writable=writable, guard=Guard(TokenFile(path)), office=office) as served:
        with connect(served.uri, "canary-token-of-anna") as anna:
            anna.put_shard("scores", part(0), job="one", ordinal=0)
            for refused in (
                lambda: anna.put_shard("flights", part(0), job="one", ordinal=0),
                lambda: anna.publish("flights", job="one", ordinals=[0]),
                lambda: anna.discard("flights", "one"),
            ):
                with pytest.raises(errors.DeniedError, match="may not write 'flights'"):
                    refused()
            anna.publish("scores", job="one", ordinals=[0])
            with anna.read("scores", transport="flight") as stream:
                assert stream.read_all().num_rows == 100
        with connect(served.uri, "secret-token-of-berta") as berta:
            with pytest.raises(errors.DeniedError):
                berta.info("scores")
            with pytest.raises(errors.DeniedError):
                berta.publish("scores", job="one", ordinals=[0])
    office.close()


def test_a_server_without_uploads() -> None:
    with running({}) as served, connect(served.uri) as client:
        with pytest.raises(errors.RemoteError, match="no uploads"):
            client.put_shard("d", part(0), job="one", ordinal=0)
        with pytest.raises(errors.RemoteError, match="no uploads"):
            client.publish("d", job="one", ordinals=[0])
