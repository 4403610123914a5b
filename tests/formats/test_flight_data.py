"""FlightData is packed and parsed as protobuf does; our Flight.proto equals Arrow's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given
from hypothesis import strategies as st

from splitarrow.errors import ExhaustedError, ProtocolError
from splitarrow.formats.flight_data import (
    encode_varint,
    iter_protobuf_fields,
    pack_flight_data,
    parse_flight_data,
)
from splitarrow.proto import Flight_pb2 as pb
from splitarrow.protocol.splitter import PackedRun, SourceMessage
from splitarrow.server.control.do_get import build_flight_data, build_flight_run
from splitarrow.transport.memory.files import FileSpan, SourceFile


def flight_data(message: SourceMessage) -> bytes:
    """Return the FlightData that is sent after the prefix of gRPC, which has its size."""
    data = b"".join(build_flight_data(message))
    assert data[:5] == b"\0" + (len(data) - 5).to_bytes(4, "big")
    return data[5:]


@given(st.binary(), st.integers(1, 3), st.sampled_from([1, 100, 16 << 10]))
def test_a_run_is_the_flight_data_of_its_messages(header: bytes, count: int, size: int) -> None:
    bodies = np.arange(count * size, dtype=np.uint64).astype(np.uint8).reshape(count, size)
    run = PackedRun(header, 7, bodies)
    expected = b"".join(part for message in run for part in build_flight_data(message))
    assert b"".join(build_flight_run(run)) == expected


@given(st.binary(), st.none() | st.lists(st.binary()))
def test_a_packed_message_is_flight_data(header: bytes, body: list[bytes] | None) -> None:
    size = sum(map(len, body or ()))
    data = pb.FlightData.FromString(flight_data(SourceMessage(header, body, size)))
    assert data == pb.FlightData(data_header=header, data_body=b"".join(body or ()))


@pytest.mark.parametrize("value", [b"", b"x" * 127, b"x" * 128])
@pytest.mark.parametrize("field", ["descriptor", "header", "app_metadata", "body"])
def test_each_field_is_packed_alone(field: str, value: bytes) -> None:
    given: dict[str, Any] = {field: value}
    if field == "body":
        given = {"body": [value], "body_length": len(value)}
    data = parse_flight_data(pack_flight_data(**given))
    found = {name: bytes(getattr(data, name) or b"") for name in given if name != "body_length"}
    assert found == {field: value}
    assert sum(len(getattr(data, name) or b"") for name in data._fields) == len(value)
    assert bool(pack_flight_data(**given)) is (field == "body" or bool(value))


def test_parts_may_be_views_buffers_and_regions(tmp_path: Path) -> None:
    path = tmp_path / "body"
    path.write_bytes(bytes(range(100)))
    file = SourceFile(path)
    parts: list[Any] = [memoryview(b"view"), pa.py_buffer(b"buffer"), FileSpan(file, 10, 20)]
    data = flight_data(SourceMessage(memoryview(b"header"), parts, 4 + 6 + 20))
    assert pb.FlightData.FromString(data).data_body == b"viewbuffer" + bytes(range(10, 30))
    file.close()


def test_a_large_region_is_read_in_pieces(tmp_path: Path) -> None:
    contents = np.arange(5 << 17).tobytes()  # 5 MiB
    path = tmp_path / "body"
    path.write_bytes(contents)
    file = SourceFile(path)
    nbytes = len(contents) - 100
    _, *pieces = build_flight_data(SourceMessage(b"", [FileSpan(file, 100, nbytes)], nbytes))
    file.close()
    assert b"".join(pieces) == contents[100:]
    assert len(pieces) == 5


def test_a_message_beyond_the_limit_of_grpc_is_refused() -> None:
    with pytest.raises(ExhaustedError, match="batch_rows"):
        flight_data(SourceMessage(b"", (), 1 << 31))


@given(st.binary(), st.binary(), st.binary(), st.lists(st.text(min_size=1)))
def test_a_parsed_message_equals_the_original(
    header: bytes, app_metadata: bytes, body: bytes, path: list[str]
) -> None:
    descriptor = pb.FlightDescriptor(type=pb.FlightDescriptor.PATH, path=path)
    whole = pb.FlightData(
        flight_descriptor=descriptor, data_header=header, app_metadata=app_metadata, data_body=body
    )
    data = parse_flight_data(whole.SerializeToString())
    assert data.descriptor is not None
    assert pb.FlightDescriptor.FromString(bytes(data.descriptor)) == descriptor
    assert (data.header, data.app_metadata or b"", data.body) == (header, app_metadata, body)


def test_unknown_fields_are_skipped() -> None:
    known = pb.FlightData(data_header=b"header").SerializeToString()
    others = bytes([8, 150, 1]) + b"\x71" + bytes(8) + b"\x7d" + bytes(4) + b"\x82\x01\x01x"
    data = parse_flight_data(others + known)
    assert data.header == b"header"
    assert data.descriptor is None


def test_fixed_numbers_have_4_or_8_bytes() -> None:
    data = b"\x71" + bytes(range(1, 9)) + b"\x7d" + bytes(range(1, 5)) + b"\x08\x07"
    fields = [(n, v if isinstance(v, int) else bytes(v)) for n, v in iter_protobuf_fields(data)]
    assert fields == [(14, bytes(range(1, 9))), (15, bytes(range(1, 5))), (1, 7)]


@given(st.binary(max_size=64))
def test_garbage_raises_one_kind_of_error(data: bytes) -> None:
    try:
        list(iter_protobuf_fields(data))
        parse_flight_data(data)
    except ProtocolError:
        pass


@given(st.binary(min_size=1), st.data())
def test_a_truncated_message_is_refused_or_has_no_body(body: bytes, data: st.DataObject) -> None:
    whole = flight_data(SourceMessage(b"header", [body], len(body)))
    cut = data.draw(st.integers(0, len(whole) - 1))
    try:
        assert parse_flight_data(whole[:cut]).body == b""
    except ProtocolError:
        pass


@given(st.integers(0, (1 << 64) - 1))
def test_varints_round_trip(value: int) -> None:
    assert list(iter_protobuf_fields(b"\x08" + encode_varint(value))) == [(1, value)]


@pytest.mark.parametrize(
    ("value", "packed"),
    [(0, "00"), (127, "7f"), (128, "8001"), ((1 << 64) - 1, "ffffffffffffffffff01")],
)
def test_a_varint_has_as_few_bytes_as_it_needs(value: int, packed: str) -> None:
    assert encode_varint(value).hex() == packed


def test_a_varint_has_at_most_10_bytes() -> None:
    assert list(iter_protobuf_fields(b"\x08" + b"\x80" * 9 + b"\x00")) == [(1, 0)]
    for number in (b"\x80" * 10 + b"\x00", b"\x80" * 3):
        with pytest.raises(ProtocolError, match="a number is truncated or too long"):
            list(iter_protobuf_fields(b"\x08" + number))


def test_a_body_without_parts_is_an_empty_field() -> None:
    data = pack_flight_data(body=())
    assert data == bytes.fromhex("c23e00")
    assert pb.FlightData.FromString(data) == pb.FlightData(data_body=b"")


def arrows_declaration() -> descriptor_pb2.FileDescriptorProto:
    """Return the declaration of Flight that is built into pyarrow."""
    start = b"\n\x0cFlight.proto\x12\x15arrow.flight.protocol"
    for library in Path(pa.get_library_dirs()[0]).glob("libarrow_flight.so*"):
        data = library.read_bytes()
        begin = data.find(start)
        if begin >= 0:
            end = begin
            while data[end] in (0x0A, 0x12, 0x1A, 0x22, 0x2A, 0x32, 0x42, 0x62):
                _, (number, value) = (
                    data[end],
                    next(iter(iter_protobuf_fields(data[end : end + (1 << 16)]))),
                )
                assert not isinstance(value, int)
                end += (
                    len(encode_varint(number << 3 | 2))
                    + len(encode_varint(len(value)))
                    + len(value)
                )
            return descriptor_pb2.FileDescriptorProto.FromString(data[begin:end])
    pytest.skip("pyarrow carries no declaration of Flight")


def test_our_declaration_equals_that_of_arrow() -> None:
    ours = descriptor_pb2.FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(ours)
    theirs = arrows_declaration()
    known = {message.name: message for message in theirs.message_type}
    for message in ours.message_type:
        assert numbers(message) == numbers(known[message.name])
    assert ours.enum_type[0] in theirs.enum_type
    assert methods(ours) == methods(theirs)


def methods(file: descriptor_pb2.FileDescriptorProto) -> set[tuple[str, str, bool, str, bool]]:
    return {
        (
            method.name,
            method.input_type,
            method.client_streaming,
            method.output_type,
            method.server_streaming,
        )
        for method in file.service[0].method
    }


def numbers(message: descriptor_pb2.DescriptorProto) -> set[tuple[str, int, int, int, str]]:
    return {
        (field.name, field.number, field.type, field.label, field.type_name)
        for field in message.field
    }
