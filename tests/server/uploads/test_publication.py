"""Publishing shard by shard: shards are staged invisibly and committed once for each job."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from helpers.control_plane import TOKENS, Running, running
from helpers.files import write_file
from helpers.uploads import find_upload, list_uploads, make_incomplete_path
from splitarrow import errors
from splitarrow.client.connect import connect
from splitarrow.client.dataset.client import Client
from splitarrow.publication.version_store import VersionStore
from splitarrow.server.auth.access_control import AccessControl, Authenticator
from splitarrow.server.auth.tickets import TicketSigner
from splitarrow.server.auth.token_file import TokenFile


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


def test_shards_are_invisible_until_they_are_committed(client: Client) -> None:
    for ordinal in (1, 0):
        stored = client.put_shard("d", part(ordinal), job="one", ordinal=ordinal)
        assert (stored.name, stored.job, stored.ordinal) == ("d", "one", ordinal)
        assert (stored.rows, len(stored.sha256)) == (100, 64)
        assert [info.name for info in client.datasets()] == ["configured"]
    published = client.publish("d", job="one", ordinals=[0, 1])
    assert (published.version, published.shards, published.rows, published.snapshot) == (
        1,
        2,
        200,
        "one",
    )
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


def test_shards_with_dictionaries_are_files(client: Client) -> None:
    table = pa.table({"word": pa.array(["a", "b", "a"]).dictionary_encode()})
    client.put_shard("words", table, job="a", ordinal=0)
    client.publish("words", job="a", ordinals=[0])
    with client.read("words") as stream:
        assert stream.read_all()["word"].to_pylist() == ["a", "b", "a"]


def test_a_repeated_upload_or_publication_counts_once(client: Client, writable: Path) -> None:
    for _ in range(3):
        client.put_shard("d", part(0), job="one", ordinal=0)
    client.put_shard("d", part(9), job="one", ordinal=1)
    client.put_shard("d", part(1), job="one", ordinal=1)
    assert len(list(writable.glob("*/_splitarrow/staging/*/*.arrow"))) == 2
    published = client.publish("d", job="one", ordinals=[0, 1])
    again = client.put_shard("d", part(1), job="one", ordinal=1)
    assert again.rows == 100
    with pytest.raises(errors.RemoteError, match="'one' of 'd' is already published") as raised:
        client.put_shard("d", part(5), job="one", ordinal=1)
    assert raised.value.code == "FAILED_PRECONDITION"
    assert client.publish("d", job="one", ordinals=[0, 1]) == published
    assert read(client) == list(range(200))
    assert not list(writable.glob("*/_splitarrow/staging/*/*"))


def test_a_missing_shard_is_named_in_the_error(client: Client) -> None:
    client.put_shard("d", part(0), job="one", ordinal=0)
    with pytest.raises(errors.RemoteError, match="this server has no shards 2, 3") as raised:
        client.publish("d", job="one", ordinals=[0, 2, 3], shards_total=4)
    assert raised.value.code == "FAILED_PRECONDITION"
    with pytest.raises(errors.NotFoundError):
        client.info("d")
    client.put_shard("d", part(2), job="one", ordinal=2)
    client.put_shard("d", part(3), job="one", ordinal=3)
    client.publish("d", job="one", ordinals=[0, 2, 3], shards_total=4)
    assert client.info("d").shards_total == 4


def test_a_job_cannot_be_published_in_two_forms(client: Client) -> None:
    publish(client, "one", [0, 1])
    with pytest.raises(errors.RemoteError, match="already published with other shards: shard 1"):
        client.publish("d", job="one", ordinals=[0])
    with pytest.raises(errors.RemoteError, match="as snapshot 'one'"):
        client.publish("d", job="one", ordinals=[0, 1], snapshot="x")
    publish(client, "two", [2])
    with pytest.raises(errors.RemoteError, match="version 1, which a later version has replaced"):
        client.publish("d", job="one", ordinals=[0, 1])
    assert read(client) == list(range(200, 300))


def test_append_keeps_the_shards_that_overwrite_replaces(client: Client) -> None:
    publish(client, "one", [0, 1])
    published = publish(client, "two", [2], mode="append")
    assert (published.version, published.shards, published.rows) == (2, 3, 300)
    assert publish(client, "two", [2], mode="append") == published
    assert read(client) == list(range(300))
    assert [endpoint.ordinal for endpoint in client.info("d").endpoints] == [0, 1, 2]
    client.publish("d", job="one", ordinals=[0, 1])
    client.put_shard("d", pa.table({"m": [1]}), job="three", ordinal=0)
    with pytest.raises(errors.RemoteError, match="schema differs from that of version 2"):
        client.publish("d", job="three", ordinals=[0], mode="append")
    publish(client, "four", [5])
    assert read(client) == list(range(500, 600))


def test_all_shards_must_have_one_schema(client: Client) -> None:
    client.put_shard("d", part(0), job="one", ordinal=0)
    client.put_shard("d", pa.table({"m": [1]}), job="one", ordinal=1)
    with pytest.raises(errors.RemoteError, match="schema of shard 1 differs"):
        client.publish("d", job="one", ordinals=[0, 1])
    with pytest.raises(errors.RemoteError, match="schema of shard 0 differs"):
        client.publish("d", job="one", ordinals=[0], schema=pa.schema([("x", pa.int8())]))
    with pytest.raises(errors.RemoteError, match="no shard and no schema"):
        client.publish("d", job="none", ordinals=[])


def test_a_server_can_have_no_shard_of_a_publication(client: Client) -> None:
    schema = part(0).schema
    published = client.publish("d", job="none", ordinals=[], shards_total=3, schema=schema)
    assert (published.shards, published.rows) == (0, 0)
    assert (client.info("d").shards_total, client.info("d").shards_held) == (3, 0)
    with pytest.raises(errors.DatasetError, match="has 0 of the 3 shards of 'd'"):
        read(client)


def test_names_of_other_datasets_and_paths_are_refused(client: Client, writable: Path) -> None:
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
    for ordinal in (1 << 20, 1 << 40):
        with pytest.raises(errors.InvalidRequestError, match="ordinal"):
            client.put_shard("e", part(0), job="one", ordinal=ordinal)
    assert list_uploads(writable) == ["d.published", "plain.arrow"]


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
        b'{"dataset": "d", "job": "j", "ordinals": [], "shards_total": 0, "snapshot": "%s"}'
        % (b"x" * 1025),
    ],
)
def test_malformed_publish_requests_are_refused(client: Client, body: bytes) -> None:
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
def test_malformed_upload_commands_are_refused(server: Running, command: dict[str, Any]) -> None:
    descriptor = flight.FlightDescriptor.for_command(json.dumps(command).encode())
    with server.client() as client:
        writer, _ = client.do_put(descriptor, part(0).schema)
        with pytest.raises(pa.ArrowInvalid):
            writer.close()


def test_a_stock_client_can_publish(server: Running, client: Client) -> None:
    command = {"dataset": "d", "publish": {"job": "one", "ordinal": 0}}
    with server.client() as stock:
        descriptor = flight.FlightDescriptor.for_command(json.dumps(command).encode())
        writer, answers = stock.do_put(descriptor, part(0).schema)
        with writer:
            writer.write_table(part(0))
            writer.done_writing()
            response = json.loads(answers.read().to_pybytes())
        request = {"dataset": "d", "job": "one", "ordinals": [0], "shards_total": 1}
        action = flight.Action("publish", json.dumps({**request, "mode": "overwrite"}).encode())
        (result,) = stock.do_action(action)
        assert (response["rows"], response["ordinal"]) == (100, 0)
        assert json.loads(result.body.to_pybytes())["version"] == 1
        client.put_shard("d", part(1), job="two", ordinal=0)
        list(
            stock.do_action(
                flight.Action("publish", json.dumps({**request, "job": "two"}).encode())
            )
        )
    assert read(client) == list(range(100, 200))  # a version without a mode replaces


def test_discard_removes_staged_shards_and_drop_removes_everything(
    client: Client, writable: Path
) -> None:
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
    assert list_uploads(writable) == []
    publish(client, "two", [3])
    assert read(client) == list(range(300, 400))


def test_staged_and_committed_shards_count_towards_the_quota(writable: Path) -> None:
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


def test_large_properties_are_refused(client: Client, writable: Path) -> None:
    client.put_shard("d", part(0), job="one", ordinal=0)
    big = {"ä": "x" * (1 << 16)}
    with pytest.raises(errors.InvalidRequestError, match="has 65538 bytes; at most 65536 are"):
        client.publish("d", job="one", ordinals=[0], properties=big)
    with pytest.raises(errors.InvalidDataError, match="has 65538 bytes; at most 65536 are"):
        VersionStore(writable / "local").commit(
            "one", part(0).schema, [], append=False, properties=big
        )
    client.publish("d", job="one", ordinals=[0], properties={"ä": "x" * ((1 << 16) - 2)})


def publish_nothing(client: Client, number: int) -> None:
    schema, properties = part(0).schema, {"note": "x" * 60_000}
    client.publish("d", job=f"{number}", ordinals=[], schema=schema, properties=properties)


def stage_wide(client: Client, number: int) -> None:
    wide = pa.table({f"column {n}": ["ä" * 64] for n in range(60)})
    client.put_shard("d", wide, job="one", ordinal=number)


@pytest.mark.parametrize("add", [publish_nothing, stage_wide])
def test_manifests_and_records_count_towards_the_quota(writable: Path, add: Any) -> None:
    limit = 300_000
    for first in (0, 100):
        with (
            running({}, writable=writable, writable_bytes=limit) as served,
            connect(served.uri) as client,
        ):
            numbers = range(first, first + 20)
            with pytest.raises(errors.ExhaustedError, match=f"of {limit} bytes are available"):
                all(add(client, number) is None for number in numbers)
            files = [path for path in writable.rglob("*") if path.is_file()]
            assert 100_000 < sum(path.stat().st_size for path in files) <= limit


def test_a_repeated_upload_over_the_quota_keeps_the_staged_shard(writable: Path) -> None:
    with running({}, writable=writable) as served, connect(served.uri) as client:
        stage_wide(client, 0)
    folder = find_upload(writable, "d.published")
    used = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    with (
        running({}, writable=writable, writable_bytes=2 * used - 1) as served,
        connect(served.uri) as client,
    ):
        with pytest.raises(errors.ExhaustedError, match="the publication has at least"):
            stage_wide(client, 0)  # room for the file, but not for its record
        client.publish("d", job="one", ordinals=[0])
        with client.read("d") as stream:
            assert stream.read_all().num_rows == 1


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_version_needs_room_for_its_schema(writable: Path, mode: Any) -> None:
    wide = pa.schema([(f"column {n}", pa.int64()) for n in range(200)])
    with running({}, writable=writable) as served, connect(served.uri) as client:
        client.publish("d", job="one", ordinals=[], schema=wide)
    folder = find_upload(writable, "d.published")
    used = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    schema = None if mode == "append" else wide  # a version that appends keeps the schema
    with (
        running({}, writable=writable, writable_bytes=used + 12_000) as served,
        connect(served.uri) as client,
    ):
        with pytest.raises(errors.ExhaustedError):
            client.publish("d", job="two", ordinals=[], schema=schema, mode=mode)
        for number in range(3):  # none keeps the room that it has reserved
            client.publish("d", job=f"{number}", ordinals=[], schema=pa.schema([]))


def test_the_limit_of_an_upload_does_not_hold_for_a_manifest(writable: Path) -> None:
    with (
        running({}, writable=writable, upload_bytes=20_000) as served,
        connect(served.uri) as client,
    ):
        publish_nothing(client, 0)


def test_pruned_versions_do_not_count_towards_the_quota(writable: Path) -> None:
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
        assert VersionStore(find_upload(writable, "d.published")).prune(1) == [1]
        client.put("plain", big)


def test_a_restarted_server_continues_with_staged_shards(writable: Path) -> None:
    with running({}, writable=writable) as served, connect(served.uri) as client:
        publish(client, "one", [0, 1])
        client.put_shard("d", part(2), job="two", ordinal=0)
    make_incomplete_path(writable).mkdir()
    with running({}, writable=writable) as served, connect(served.uri) as client:
        assert read(client) == list(range(200))
        assert client.publish("d", job="one", ordinals=[0, 1]).version == 1
        assert client.publish("d", job="two", ordinals=[0], mode="append").version == 2
        assert read(client) == list(range(300))
        assert list_uploads(writable) == ["d.published"]


def test_what_a_killed_server_leaves_of_a_published_job_is_removed(writable: Path) -> None:
    with running({}, writable=writable) as served, connect(served.uri) as client:
        client.put_shard("d", part(0), job="one", ordinal=0)
        staging = find_upload(writable, "d.published") / "_splitarrow" / "staging" / "one"
        files = {path.name: path.read_bytes() for path in staging.iterdir()}
        client.publish("d", job="one", ordinals=[0])
    for remove in ("publish", "discard"):
        staging.mkdir()
        for name, data in files.items():
            (staging / name).write_bytes(data)
        with running({}, writable=writable) as served, connect(served.uri) as client:
            if remove == "publish":
                client.publish("d", job="one", ordinals=[0])
            else:
                client.discard("d", "one")
            assert not staging.exists()
            assert read(client) == list(range(100))


def test_publishing_needs_a_grant(tmp_path: Path, writable: Path) -> None:
    path = tmp_path / "tokens.toml"
    path.write_text(TOKENS)
    path.chmod(0o600)
    access = AccessControl(Authenticator(TokenFile(path)), TicketSigner())
    with running({}, writable=writable, access=access) as served:
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


def test_a_server_without_uploads_refuses_shards() -> None:
    with running({}) as served, connect(served.uri) as client:
        with pytest.raises(errors.RemoteError, match="no uploads"):
            client.put_shard("d", part(0), job="one", ordinal=0)
        with pytest.raises(errors.RemoteError, match="no uploads"):
            client.publish("d", job="one", ordinals=[0])
