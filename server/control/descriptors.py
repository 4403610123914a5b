"""Flight descriptors, and the criteria of a listing."""

from __future__ import annotations

import re
from fnmatch import translate

from ...errors import InvalidRequestError, ProtocolError, remote_error
from ...formats.flight_data import iter_protobuf_fields
from ...proto import Flight_pb2 as flight
from ...protocol.request import Request

_MAX_CRITERIA_CHARACTERS = 1024
_QUERY_TYPE = b"type.googleapis.com/arrow.flight.protocol.sql.CommandStatementQuery"
_ANY_TYPE, _ANY_VALUE, _QUERY_TEXT = 1, 2, 1
"""The field numbers of google.protobuf.Any and of CommandStatementQuery."""
_ANY_START = re.compile(rb"\x0a.{1,2}type\.googleapis\.com/", re.DOTALL)


def parse_descriptor(descriptor: flight.FlightDescriptor) -> Request:
    """Return the request of a descriptor.

    A PATH has one element, the name of a dataset. A CMD is such a name in UTF-8, or a JSON object
    with the fields of `Request`. Clients of Flight SQL, such as ADBC, send either as the text of
    a query.

    Raises
    ------
    InvalidRequestError
        If the descriptor is malformed.
    """
    if descriptor.type == flight.FlightDescriptor.PATH:
        if len(descriptor.path) != 1:
            raise InvalidRequestError(
                f"the path of the descriptor has {len(descriptor.path)} elements; "
                "it must have one, the name of a dataset"
            )
        return _parse_request(descriptor.path[0].encode(), "path")
    if descriptor.type == flight.FlightDescriptor.CMD:
        return _parse_request(_unwrap_query(descriptor.cmd), "command")
    raise InvalidRequestError("the descriptor is neither a path nor a command")


def _unwrap_query(command: bytes) -> bytes:
    """Return the text of a Flight SQL query. Return any other command unchanged."""
    if not _ANY_START.match(command):
        return command
    if _read_field(command, _ANY_TYPE) != _QUERY_TYPE:
        raise remote_error("UNIMPLEMENTED", "this server supports no Flight SQL except queries")
    return _read_field(_read_field(command, _ANY_VALUE), _QUERY_TEXT)


def _read_field(message: bytes, field: int) -> bytes:
    found = b""
    try:
        for number, value in iter_protobuf_fields(message):
            if number == field and not isinstance(value, int):
                found = bytes(value)
    except ProtocolError as error:
        raise InvalidRequestError(error.message) from None
    return found


def _parse_request(data: bytes, source: str) -> Request:
    """Parse a path or a command. Errors name it, where `Request` names a ticket."""
    try:
        return Request(data.decode()) if source == "path" else Request.parse(data)
    except InvalidRequestError as error:
        problem = error.message.removeprefix("the ticket")
        if problem == error.message:
            raise
        raise InvalidRequestError(f"the {source}{problem}") from None


def compile_criteria(expression: bytes) -> re.Pattern[str]:
    """Return a pattern that matches the names to list.

    Parameters
    ----------
    expression : bytes
        A glob in UTF-8, such as ``flights-*``. An empty one matches every name.

    Raises
    ------
    InvalidRequestError
        If it is not UTF-8, or too long.

    Examples
    --------
    >>> bool(compile_criteria(b"fl*").match("flights")), bool(compile_criteria(b"").match("trips"))
    (True, True)
    """
    try:
        glob = expression.decode()
    except UnicodeDecodeError:
        raise InvalidRequestError("the criteria are not UTF-8") from None
    if len(glob) > _MAX_CRITERIA_CHARACTERS:
        raise InvalidRequestError(
            f"the criteria have {len(glob)} characters; the limit is {_MAX_CRITERIA_CHARACTERS}"
        )
    return re.compile(translate(glob or "*"))
