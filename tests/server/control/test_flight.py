"""A stock Flight client lists, describes and reads datasets."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import flight

from helpers.control_plane import VARIED, running
from helpers.files import write_file, write_stream
from splitarrow.proto import Flight_pb2 as pb

PATH, COMMAND = flight.FlightDescriptor.for_path, flight.FlightDescriptor.for_command


def test_a_listing_describes_every_dataset(arrow_file: Path, table: pa.Table) -> None:
    with running({"numbers": arrow_file, "more": table}) as server, server.client() as client:
        infos = {info.descriptor.path[0]: info for info in client.list_flights()}
        assert sorted(infos) == [b"more", b"numbers"]
        assert infos[b"numbers"].total_records == 3000
        assert infos[b"numbers"].schema == table.schema
        assert infos[b"numbers"].total_bytes == arrow_file.stat().st_size


@pytest.mark.parametrize(
    ("criteria", "names"),
    [
        (b"", ["flights-1", "flights-2", "trips"]),
        (b"flights-*", ["flights-1", "flights-2"]),
        (b"*[!12]", ["trips"]),
        (b"trips", ["trips"]),
        (b"trip", []),
        (b"FLIGHTS*", []),
    ],
)
def test_criteria_select_names_by_a_glob(
    criteria: bytes, names: list[str], table: pa.Table
) -> None:
    datasets: dict[str, Any] = dict.fromkeys(("flights-1", "flights-2", "trips"), table)
    with running(datasets) as server, server.client() as client:
        found = [info.descriptor.path[0].decode() for info in client.list_flights(criteria)]
    assert found == names


def test_criteria_must_be_utf8(table: pa.Table) -> None:
    refused = pytest.raises(pa.ArrowInvalid, match="criteria are not UTF-8")
    with running({"a": table}) as server, server.client() as client, refused:
        list(client.list_flights(b"\xff"))


@pytest.mark.parametrize("descriptor", [PATH("numbers"), COMMAND(b"numbers")], ids=["path", "cmd"])
def test_flight_info_describes_the_data_and_its_locations(
    descriptor: flight.FlightDescriptor, arrow_file: Path, table: pa.Table
) -> None:
    with running({"numbers": arrow_file}) as server, server.client() as client:
        info = client.get_flight_info(descriptor)
        assert info.descriptor == descriptor
        assert info.schema == table.schema
        assert info.total_records == 3000
        assert info.total_bytes == arrow_file.stat().st_size
        assert info.ordered
        assert json.loads(info.app_metadata)["dataset"] == "numbers"
        assert json.loads(info.app_metadata)["kind"] == "arrow file"
        (endpoint,) = info.endpoints
        assert endpoint.ticket.ticket == b"numbers"
        assert endpoint.expiration_time is None
        uris = [location.uri.decode() for location in endpoint.locations]
        assert uris == [
            server.daemon.uri("numbers").removesuffix("&ticket=numbers"),
            "arrow-flight-reuse-connection://?",
        ]
        assert client.do_get(endpoint.ticket).read_all() == table


def test_a_command_can_select_columns_and_rows(arrow_file: Path, table: pa.Table) -> None:
    command = {"dataset": "numbers", "columns": ["text"], "limit": 1500, "batch_rows": 400}
    with running({"numbers": arrow_file}) as server, server.client() as client:
        info = client.get_flight_info(COMMAND(json.dumps(command).encode()))
        assert info.schema == pa.schema({"text": pa.string()})
        assert info.total_records == 1500
        assert info.total_bytes == -1
        reader = client.do_get(info.endpoints[0].ticket)
        batches = [chunk.data for chunk in reader]
    assert max(batch.num_rows for batch in batches) == 400
    assert pa.Table.from_batches(batches) == table.select(["text"]).slice(0, 1500)


def test_get_schema_returns_the_schema_of_the_result(table: pa.Table) -> None:
    with running({"numbers": table}) as server, server.client() as client:
        assert client.get_schema(PATH("numbers")).schema == table.schema
        some = COMMAND(b'{"dataset": "numbers", "columns": ["n"]}')
        assert client.get_schema(some).schema == table.select(["n"]).schema


def test_unknown_totals_are_minus_one(table: pa.Table) -> None:
    with running({"reader": table.to_reader()}) as server, server.client() as client:
        info = client.get_flight_info(PATH("reader"))
        assert (info.total_records, info.total_bytes) == (-1, -1)
        assert client.do_get(info.endpoints[0].ticket).read_all() == table


MONTHS = pa.month_day_nano_interval()


@pytest.mark.parametrize("kind", ["memory", "file", "stream"])
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_doget_returns_equal_data_for_all_types(
    kind: str, compression: str | None, tmp_path: Path
) -> None:
    source = {
        "memory": lambda: VARIED,
        "file": lambda: write_file(tmp_path / "v.arrow", VARIED, compression=compression),
        "stream": lambda: write_stream(tmp_path / "v.arrows", VARIED, compression=compression),
    }[kind]()
    request = {"dataset": "varied", "compression": compression}
    with running({"varied": source}) as server, server.client() as client:
        info = client.get_flight_info(COMMAND(json.dumps(request).encode()))
        got = client.do_get(info.endpoints[0].ticket).read_all()
    got.validate(full=True)
    assert got.schema.equals(VARIED.schema, check_metadata=True)
    assert got.equals(VARIED)


def test_dictionaries_can_grow_and_be_replaced(tmp_path: Path) -> None:
    columns = [["a", "b"], ["a", "b", "c"], ["z", "a"]]
    batches = [pa.record_batch({"d": pa.array(values).dictionary_encode()}) for values in columns]
    path = tmp_path / "deltas.arrows"
    write_stream(path, batches, emit_dictionary_deltas=True)
    with running({"deltas": path}) as server, server.client() as client:
        got = client.do_get(flight.Ticket(b"deltas")).read_all()
    assert got["d"].to_pylist() == [value for values in columns for value in values]


@pytest.mark.parametrize("rows", [0, 1])
def test_tables_without_rows_or_columns_are_returned(rows: int) -> None:
    for columns in ({}, {"a": pa.array(range(rows), pa.int32())}):
        small = pa.table(columns)
        with running({"small": small}) as server, server.client() as client:
            got = client.do_get(flight.Ticket(b"small")).read_all()
        assert got == small


def test_large_batches_are_read_from_the_file(tmp_path: Path) -> None:
    large = pa.table({"x": pa.array([os.urandom(1) * 8 for _ in range(400_000)])})
    path = write_file(tmp_path / "large.arrow", large)
    with running({"large": path}) as server, server.client() as client:
        assert client.do_get(flight.Ticket(b"large")).read_all() == large
        assert server.daemon.stats()["rows"] == 400_000
        assert server.daemon.stats()["bytes_sent"] >= path.stat().st_size - 4096
        assert server.daemon.stats()["streams_total"] == 1


def test_a_cancelled_read_does_not_affect_the_next(tmp_path: Path) -> None:
    many = pa.table({"x": pa.array(np.arange(2_000_000))})
    path = write_file(tmp_path / "many.arrow", many)
    with running({"many": path}) as server, server.client() as client:
        reader = client.do_get(flight.Ticket(b'{"dataset": "many", "batch_rows": 1000}'))
        assert next(reader).data.num_rows == 1000
        reader.cancel()
        assert client.do_get(flight.Ticket(b"many")).read_all() == many


def test_concurrent_reads_return_equal_data(arrow_file: Path, table: pa.Table) -> None:
    with running({"numbers": arrow_file}) as server, server.client() as client:
        readers = [client.do_get(flight.Ticket(b"numbers")) for _ in range(24)]
        assert all(reader.read_all() == table for reader in reversed(readers))


@pytest.fixture
def directory(tmp_path: Path, table: pa.Table) -> Path:
    """The table as a directory of three shards."""
    folder = tmp_path / "shards"
    folder.mkdir()
    for index in range(3):
        write_file(folder / f"part-{index}.arrow", table.slice(1000 * index, 1000))
    return folder


def test_each_shard_has_an_endpoint(directory: Path, table: pa.Table) -> None:
    with running({"numbers": directory}) as server, server.client() as client:
        info = client.get_flight_info(PATH("numbers"))
        assert info.ordered
        assert info.total_records == 3000
        assert len(info.endpoints) == 3
        readers = [client.do_get(endpoint.ticket) for endpoint in info.endpoints]
        parts = [reader.read_all() for reader in reversed(readers)]
        assert pa.concat_tables(reversed(parts)) == table


@pytest.mark.parametrize(
    ("fields", "endpoints", "rows"),
    [
        ({"limit": 1500}, 1, (0, 1500)),
        ({"offset": 500}, 1, (500, 3000)),
        ({"offset": 2900, "limit": 500}, 1, (2900, 3000)),
        ({"shard": 1}, 1, (1000, 2000)),
        ({"shard": 1, "offset": 100, "limit": 10}, 1, (1100, 1110)),
        ({"columns": ["n", "text"], "batch_rows": 10}, 3, (0, 3000)),
    ],
)
def test_bounded_requests_have_one_endpoint(
    fields: dict[str, Any], endpoints: int, rows: tuple[int, int], directory: Path, table: pa.Table
) -> None:
    command = json.dumps({"dataset": "numbers", **fields}).encode()
    with running({"numbers": directory}) as server, server.client() as client:
        info = client.get_flight_info(COMMAND(command))
        assert len(info.endpoints) == endpoints
        assert info.total_records == rows[1] - rows[0]
        parts = [client.do_get(endpoint.ticket).read_all() for endpoint in info.endpoints]
    assert pa.concat_tables(parts) == table.slice(rows[0], rows[1] - rows[0])


def test_a_missing_shard_is_refused(directory: Path) -> None:
    absent = COMMAND(b'{"dataset": "numbers", "shard": 3}')
    refused = pytest.raises(pa.ArrowInvalid, match="no shard 3; the dataset has 3")
    with running({"numbers": directory}) as server, server.client() as client, refused:
        client.get_flight_info(absent)


def test_a_filter_selects_rows(directory: Path, table: pa.Table) -> None:
    expression = (pc.field("n") > 500) & (pc.field("n") < 2500)
    text = base64.urlsafe_b64encode(expression.to_substrait(table.schema)).decode()
    command = json.dumps({"dataset": "numbers", "filter": text, "columns": ["text"]}).encode()
    with running({"numbers": directory}) as server, server.client() as client:
        info = client.get_flight_info(COMMAND(command))
        assert info.total_records == -1
        parts = [client.do_get(endpoint.ticket).read_all() for endpoint in info.endpoints]
    assert pa.concat_tables(parts) == table.filter(expression).select(["text"])


def test_a_changed_dataset_refuses_its_old_version(arrow_file: Path, table: pa.Table) -> None:
    with running({"numbers": arrow_file}) as server, server.client() as client:
        info = client.get_flight_info(PATH("numbers"))
        version = json.loads(info.app_metadata)["version"]
        command = COMMAND(json.dumps({"dataset": "numbers", "version": version}).encode())
        same = client.get_flight_info(command)
        write_file(arrow_file, table.slice(1))
        with pytest.raises(pa.ArrowInvalid, match="the dataset 'numbers' has changed"):
            client.get_flight_info(command)
        with pytest.raises(pa.ArrowInvalid, match="the dataset 'numbers' has changed"):
            client.do_get(same.endpoints[0].ticket).read_all()


def test_the_first_poll_is_complete(table: pa.Table) -> None:
    with running({"numbers": table}) as server, server.channel() as channel:
        poll = channel.unary_unary(
            "/arrow.flight.protocol.FlightService/PollFlightInfo",
            request_serializer=pb.FlightDescriptor.SerializeToString,
            response_deserializer=pb.PollInfo.FromString,
        )
        kind = pb.FlightDescriptor.PATH
        got = poll(pb.FlightDescriptor(type=kind, path=["numbers"]), timeout=10)
    assert got.progress == 1.0
    assert not got.HasField("flight_descriptor")
    assert got.info.total_records == 3000


def any_of(kind: str, text: str) -> bytes:
    """Return a Flight SQL command: a type, and a message with one string."""
    url = f"type.googleapis.com/arrow.flight.protocol.sql.{kind}".encode()
    message = b"\x0a" + bytes([len(text)]) + text.encode()
    return b"\x0a" + bytes([len(url)]) + url + b"\x12" + bytes([len(message)]) + message


@pytest.mark.parametrize("query", ["numbers", '{"dataset": "numbers", "limit": 10}'])
def test_a_flight_sql_query_can_name_a_dataset(query: str, table: pa.Table) -> None:
    with running({"numbers": table}) as server, server.client() as client:
        info = client.get_flight_info(COMMAND(any_of("CommandStatementQuery", query)))
        got = client.do_get(info.endpoints[0].ticket).read_all()
    assert got == table.slice(0, 10 if "limit" in query else None)


def test_other_flight_sql_commands_are_refused(table: pa.Table) -> None:
    with running({"numbers": table}) as server, server.client() as client:
        with pytest.raises(pa.ArrowNotImplementedError, match="no Flight SQL except queries"):
            client.get_flight_info(COMMAND(any_of("CommandGetTables", "numbers")))
        for cut in range(1, 40):
            with pytest.raises((KeyError, pa.ArrowInvalid, pa.ArrowNotImplementedError)):
                client.get_flight_info(COMMAND(any_of("CommandStatementQuery", "numbers")[:-cut]))


def test_adbc_reads_a_dataset(arrow_file: Path, table: pa.Table) -> None:
    dbapi = pytest.importorskip("adbc_driver_flightsql.dbapi")
    with running({"numbers": arrow_file}) as server, connected(dbapi, server.uri) as cursor:
        cursor.execute("numbers")
        assert cursor.fetch_arrow_table() == table
        with pytest.raises(dbapi.Error, match="no dataset 'nubmers'"):
            cursor.execute("nubmers")


@contextmanager
def connected(dbapi: Any, uri: str) -> Generator[Any]:
    with dbapi.connect(uri, autocommit=True) as connection, connection.cursor() as cursor:
        yield cursor
