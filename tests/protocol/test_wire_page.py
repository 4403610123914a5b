"""docs/wire.md agrees with the code: its constants, tables, diagrams and example bytes."""

from __future__ import annotations

import re
import runpy
from dataclasses import fields
from enum import IntEnum

import pytest

from helpers.framing import push
from helpers.package import ROOT
from helpers.streams import decode_messages, reassembled
from splitarrow.formats.arrow.message import HeaderType
from splitarrow.protocol.frames import IncomingFrame, ReceivedFrame
from splitarrow.protocol.limits import DEFAULT_LIMITS, Limits
from splitarrow.protocol.messages import MetadataType, pack_metadata
from splitarrow.protocol.request import COMPRESSIONS, Request
from splitarrow.protocol.tags import (
    RESERVED_MASK,
    SEQUENCE_MASK,
    TYPE_SHIFT,
    BodyType,
    is_request_tag,
)
from splitarrow.protocol.uri import TCP_PORT, DataUri
from splitarrow.server.catalog.dataset import GROUP_BYTES
from splitarrow.server.catalog.messages.message_index import REGION_BYTES
from splitarrow.transport.frame_decoder import DIRECT_BYTES, RUN_BYTES, FrameDecoder
from splitarrow.transport.framing import HEADER, PREFACE, TAGGED, UNTAGGED

PAGE = (ROOT / "docs" / "wire.md").read_text()
NOTES = " ".join((ROOT / "benchmarks" / "README.md").read_text().split())
UNITS = {"": 1, " KiB": 1 << 10, " MiB": 1 << 20, " GiB": 1 << 30}


def block(name: str) -> str:
    """Return the text between the markers of a block."""
    found = re.findall(rf"<!-- begin {name} -->\n(.*?)\n<!-- end {name} -->", PAGE, re.DOTALL)
    assert len(found) == 1, f"the page has to have one block {name!r}"
    return found[0]


def rows(name: str) -> list[list[str]]:
    """Return the cells of the table in a block, without its head."""
    lines = block(name).splitlines()[2:]
    return [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines]


def hexadecimal(name: str) -> bytes:
    """Return the bytes of a block in hexadecimal digits, without its remarks."""
    lines = block(name).splitlines()
    assert (lines[0], lines[-1]) == ("```text", "```")
    return bytes.fromhex(" ".join(line.partition("#")[0] for line in lines[1:-1]))


def test_the_built_page_has_the_diagrams_of_the_tables() -> None:
    hook = runpy.run_path(str(ROOT / "docs" / "hooks" / "generated_parts.py"))
    page = hook["on_page_markdown"](PAGE)
    assert page.count("```mermaid\nstateDiagram-v2\n") == 2
    assert " states -->" not in page


@pytest.mark.parametrize(
    ("name", "types"), [("metadata types", MetadataType), ("body types", BodyType)]
)
def test_the_types_are_those_of_the_code(name: str, types: type[IntEnum]) -> None:
    assert [(int(row[0]), row[1]) for row in rows(name)] == [(t.value, t.name) for t in types]


def test_the_fields_of_tickets_are_those_of_the_code() -> None:
    assert [row[0] for row in rows("ticket fields")] == [field.name for field in fields(Request)]


def test_the_limits_are_the_defaults() -> None:
    listed: dict[str, int] = {}
    for name, value, _ in rows("limits"):
        number, unit = re.fullmatch(r"(\d+)(.*)", value).groups()  # pyright: ignore[reportOptionalMemberAccess]
        listed[name] = int(number) * UNITS[unit]
    assert listed == {field.name: getattr(DEFAULT_LIMITS, field.name) for field in fields(Limits)}


def test_the_preface_is_that_of_the_code() -> None:
    assert hexadecimal("preface") == PREFACE
    assert f"`{PREFACE[:7].decode()}`" in PAGE
    assert f"version, {PREFACE[7]}" in PAGE


def test_the_header_is_that_of_the_code() -> None:
    places = [(int(offset), int(size)) for offset, size, _ in rows("header")]
    assert [offset for offset, _ in places] == [0, 1, 8, 16]
    assert sum(size for _, size in places) == HEADER.size
    assert f"a header of {HEADER.size} bytes" in PAGE
    header = HEADER.pack(TAGGED, 0x1112_1314, 0x2122_2324_2526_2728)
    kind, zeros, length, tag = (header[at : at + size] for at, size in places)
    assert (kind, zeros) == (b"\1", bytes(7))
    assert int.from_bytes(length, "little") == 0x1112_1314
    assert int.from_bytes(tag, "little") == 0x2122_2324_2526_2728
    assert rows("header")[0][2] == f"kind: {UNTAGGED} untagged, {TAGGED} tagged"


def test_masks_and_shift_are_those_of_the_code() -> None:
    assert f"`0x{SEQUENCE_MASK:016X}`" in PAGE
    assert f"`0x{RESERVED_MASK:016X}`" in PAGE
    assert f"`tag = type << {TYPE_SHIFT} | sequence`" in PAGE
    assert f"| {TYPE_SHIFT} to 63 | the type of the body |" in PAGE


@pytest.mark.parametrize(
    "statement",
    [
        f"bodies under {DIRECT_BYTES >> 10} KiB through a staging buffer",
        f"one call receives up to {RUN_BYTES >> 10} KiB",
        f"bodies under {REGION_BYTES >> 10} KiB, up to {GROUP_BYTES >> 10} KiB, into one send",
    ],
)
def test_the_numbers_of_system_calls_are_those_of_the_code(statement: str) -> None:
    assert statement in NOTES


@pytest.mark.parametrize(
    "statement",
    [
        f"exactly {len(pack_metadata(0, 0))} bytes",
        f"at most {DEFAULT_LIMITS.failure_bytes >> 10} KiB",
        f"The default port is {TCP_PORT}.",
        "| `compression` | " + ", ".join(f"`{c}`" for c in COMPRESSIONS[:-1]) + ", or `auto`",
    ],
)
def test_other_numbers_are_those_of_the_code(statement: str) -> None:
    assert statement in PAGE


def test_every_message_with_a_body_is_named() -> None:
    words = [kind.name.replace("_", " ").lower() for kind in HeaderType if kind.has_body]
    assert words == ["dictionary batch", "record batch", "tensor", "sparse tensor"]
    assert "Record batches, dictionary batches, tensors and\nsparse tensors have a body" in PAGE


def test_the_ticket_of_the_page_is_understood() -> None:
    (ticket,) = re.findall(r'^\{"dataset".*\}$', PAGE, re.MULTILINE)
    request = Request.parse(ticket.encode())
    assert (request.dataset, request.columns, request.limit) == ("flights", ("delay",), 1000)


def received(data: bytes) -> list[IncomingFrame]:
    decoder = FrameDecoder(DEFAULT_LIMITS)
    push(decoder, data)
    assert decoder.at_boundary
    return decoder.take()


def test_the_request_of_the_example_is_what_a_server_understands() -> None:
    (text,) = re.findall(r"`tcp://…(\?want_data=\S+)`", PAGE)
    uri = DataUri.parse("tcp://host" + text)
    (frame,) = received(hexadecimal("request"))
    assert isinstance(frame, ReceivedFrame)
    assert (frame.tag, bytes(frame.body)) == (uri.want_data, uri.ticket)
    assert is_request_tag(frame.tag)


def test_the_answer_of_the_example_is_what_a_reader_decodes() -> None:
    schema, (batch,) = decode_messages(reassembled(received(hexadecimal("answer"))))
    assert str(schema) == "n: int32 not null"
    assert batch.to_pydict() == {"n": [1, 2, 3]}
