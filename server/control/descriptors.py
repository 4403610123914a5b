"""What a caller asks for: flight descriptors, and the criteria of a listing."""

from __future__ import annotations

import re
from fnmatch import translate

from ...errors import InvalidRequestError, remote_error
from ...proto import Flight_pb2 as flight
from ...protocol.request import Request
from .wire import fields

_LONGEST_CRITERIA = 1024
_QUERY_TYPE = b"type.googleapis.com/arrow.flight.protocol.sql.CommandStatementQuery"
_ANY_TYPE, _ANY_VALUE, _QUERY_TEXT = 1, 2, 1
_ANY_START = re.compile(rb"\x0a.{1,2}type\.googleapis\.com/", re.DOTALL)


def described(descriptor: flight.FlightDescriptor) -> Request:
    """Return what a descriptor asks for.

    A PATH has one element, the name of a dataset. A CMD is a name in UTF-8, or a JSON object with
    the fields of `Request`; a client of Flight SQL, such as ADBC, gives either in place of a
    query.

    Raises
    ------
    InvalidRequestError
        If it cannot be understood.
    """
    if descriptor.type == flight.FlightDescriptor.PATH:
        if len(descriptor.path) != 1:
            raise InvalidRequestError(
                f"the path of a descriptor is the name of a dataset; this one has "
                f"{len(descriptor.path)} elements"
            )
        return _request(descriptor.path[0].encode(), plain=True)
    if descriptor.type == flight.FlightDescriptor.CMD:
        return _request(_query(descriptor.cmd), plain=False)
    raise InvalidRequestError("the descriptor is neither a path nor a command")


def _query(command: bytes) -> bytes:
    """Return what stands in a Flight SQL query; any other command is returned as it is."""
    if not _ANY_START.match(command):
        return command
    if _field(command, _ANY_TYPE) != _QUERY_TYPE:
        raise remote_error("UNIMPLEMENTED", "this server knows no Flight SQL but plain queries")
    return _field(_field(command, _ANY_VALUE), _QUERY_TEXT)


def _field(message: bytes, wanted: int) -> bytes:
    found = b""
    for number, value in fields(message):
        if number == wanted and not isinstance(value, int):
            found = bytes(value)
    return found


def _request(asked: bytes, *, plain: bool) -> Request:
    try:
        return Request(asked.decode()) if plain else Request.parse(asked)
    except InvalidRequestError as error:
        what = error.message.removeprefix("the ticket")
        if what == error.message:
            raise
        raise InvalidRequestError(f"the {'path' if plain else 'command'}{what}") from None


def criteria(expression: bytes) -> re.Pattern[str]:
    """Return what matches the names that a listing is to show.

    Parameters
    ----------
    expression : bytes
        A glob in UTF-8, such as ``flights-*``; nothing means all.

    Raises
    ------
    InvalidRequestError
        If it is no text, or too long.

    Examples
    --------
    >>> bool(criteria(b"fl*").match("flights")), bool(criteria(b"").match("trips"))
    (True, True)
    """
    try:
        glob = expression.decode()
    except UnicodeDecodeError:
        raise InvalidRequestError("the criteria are not UTF-8") from None
    if len(glob) > _LONGEST_CRITERIA:
        raise InvalidRequestError(f"the criteria have {len(glob)} characters")
    return re.compile(translate(glob or "*"))
