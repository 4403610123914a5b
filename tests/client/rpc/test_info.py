"""A FlightInfo of any server becomes a description, or an error that names the dataset."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from splitarrow.client.rpc.info import Endpoint, encode_command, parse_info, parse_schema
from splitarrow.errors import InvalidDataError, ProtocolError
from splitarrow.proto import Flight_pb2 as flight
from splitarrow.protocol.request import Request

SCHEMA = pa.schema([("n", pa.int64())])


def message(app_metadata: Any = None, endpoints: Any = (), **fields: Any) -> bytes:
    """Return a FlightInfo."""
    text = app_metadata if isinstance(app_metadata, bytes) else json.dumps(app_metadata).encode()
    info = flight.FlightInfo(
        schema=SCHEMA.serialize().to_pybytes(), app_metadata=text, endpoint=endpoints, **fields
    )
    return info.SerializeToString()


def endpoint(app_metadata: Any = None, *uris: str) -> flight.FlightEndpoint:
    locations = [flight.Location(uri=uri) for uri in uris]
    ticket = flight.Ticket(ticket=b"t")
    text = json.dumps(app_metadata).encode()
    return flight.FlightEndpoint(ticket=ticket, location=locations, app_metadata=text)


def test_all_fields_are_read() -> None:
    described = {"dataset": "d", "kind": "k", "version": "v", "snapshot": "s", "shards_total": 2}
    part = {"ordinal": 1, "rows": 7, "bytes": 8, "sha256": "ab", "metadata": "tcp://m", "body": "b"}
    info = parse_info(
        message(
            {**described, "writers": "refused"},
            [endpoint(part, "tcp://x"), endpoint()],
            total_records=0,
            total_bytes=5,
        )
    )
    assert (info.name, info.rows, info.bytes, info.schema) == ("d", 0, 5, SCHEMA)
    assert (info.kind, info.version, info.snapshot) == ("k", "v", "s")
    assert (info.shards_total, info.writers) == (2, "refused")
    first, second = info.endpoints
    pair = ("tcp://m", "b")
    assert first == Endpoint(b"t", ("tcp://x",), pair, ordinal=1, rows=7, nbytes=8, sha256="ab")
    assert second == Endpoint(b"t", ("arrow-flight-reuse-connection://?",))


def test_unknown_totals_are_none() -> None:
    info = parse_info(message(total_records=-1, total_bytes=-1))
    assert (info.rows, info.bytes, info.shards_total) == (None, None, None)


def test_no_rows_and_no_bytes_are_known_totals() -> None:
    info = parse_info(message({"shards_total": 0}, total_records=0, total_bytes=0))
    assert (info.rows, info.bytes, info.shards_total) == (0, 0, 0)
    assert (info.kind, info.version, info.snapshot, info.writers) == ("", "", "", "")


def test_a_description_shows_what_is_known_and_no_ticket() -> None:
    known = parse_info(
        message({"dataset": "d", "kind": "arrow file"}, total_records=1234, total_bytes=24)
    )
    unknown = parse_info(message({"dataset": "d"}, total_records=-1, total_bytes=-1))
    for text in (repr(known), known._repr_html_()):
        assert "1,234 rows" in text
        assert "24 B" in text
        assert "arrow file" in text
        assert "'d'" in text or "d" in text
    assert "rows" not in repr(unknown)
    assert "None" not in repr(unknown)
    assert "ticket" not in repr(Endpoint(b"t", ()))


@pytest.mark.parametrize("value", [-1, True, "3", 1.0, None])
def test_a_count_that_is_none_is_ignored(value: Any) -> None:
    info = parse_info(message({"shards_total": value}, [endpoint({"ordinal": value})]))
    assert (info.shards_total, info.endpoints[0].ordinal) == (None, None)


@pytest.mark.parametrize("part", [{"metadata": "tcp://m"}, {"body": "tcp://b"}, {"metadata": ""}])
def test_half_a_pair_is_no_pair(part: dict[str, str]) -> None:
    assert parse_info(message(None, [endpoint(part)])).endpoints[0].pair is None


@pytest.mark.parametrize("text", [b"", b"{", b"[1]", b"\xff", b"[" * 100_000])
def test_other_application_metadata_is_ignored(text: bytes) -> None:
    descriptor = flight.FlightDescriptor(path=["p"])
    assert parse_info(message(text, flight_descriptor=descriptor)).name == "p"
    assert parse_info(message(text, flight_descriptor=descriptor), "asked").name == "asked"
    assert parse_info(message(text)).name == "?"


def test_a_malformed_message_is_an_error() -> None:
    with pytest.raises(ProtocolError, match="malformed FlightInfo") as caught:
        parse_info(b"\xff", "d")
    assert caught.value.stream == "d"


@pytest.mark.parametrize("data", [b"", b"\xff\xff\xff\xff\x08\0\0\0", b"abc"])
def test_a_malformed_schema_is_an_error(data: bytes) -> None:
    with pytest.raises(InvalidDataError) as caught:
        parse_schema(data, "d")
    assert caught.value.stream == "d"


def test_a_message_that_is_no_schema_is_an_error() -> None:
    batch = pa.record_batch({"n": [1]})
    with pytest.raises(ProtocolError) as caught:
        parse_schema(batch.serialize().to_pybytes(), "d")
    assert caught.value.stream == "d"


def test_locations_are_shown_without_secrets() -> None:
    shown = Endpoint(
        b"t",
        (
            "tcp://h:1?want_data=0x10000000001&ticket=secret",
            "arrow-flight-reuse-connection://?ticket=secret",
            "no uri?ticket=secret",
        ),
        ("tcp://m:1?want_data=0x10000000001&ticket=secret", "tcp://b:2?want_data=0x10000000001"),
    ).redacted_locations
    assert "secret" not in "".join(shown)
    assert shown[1] == "arrow-flight-reuse-connection://?"
    assert [text.partition("?")[0] for text in shown] == [
        "tcp://h:1",
        "arrow-flight-reuse-connection://",
        "no uri",
        "tcp://m:1",
        "tcp://b:2",
    ]


@pytest.mark.parametrize("name", ["flights", '{"dataset": "x"}', "ü / ?"])
def test_a_command_is_a_json_object_that_parses_as_its_request(name: str) -> None:
    request = Request(name, columns=("a", "b"), limit=3, version="7")
    for each in (Request(name), request):
        assert Request.parse(encode_command(each)) == each
    assert json.loads(encode_command(Request(name))) == {"dataset": name}
    assert encode_command(Request("ü")) == '{"dataset": "ü"}'.encode()
