"""Metadata of messages, parsed and checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ..errors import LimitError, ProtocolError
from .limits import Limits
from .messages import MessageFormat, MetadataType


class ParsedMetadata(NamedTuple):
    """The metadata of one message, and the properties that reassembly needs."""

    message_type: int
    """The format of the message, as the type of its metadata message."""
    payload: bytes
    """The FlatBuffer of the message."""
    name: str
    """The type of the message in its format, for errors."""
    has_body: bool
    """Whether a body follows the metadata."""
    body_length: int
    """The declared size of the packed body in bytes."""


def parse_metadata(
    formats: Mapping[MetadataType, MessageFormat],
    limits: Limits,
    message_type: int,
    sequence: int,
    payload: bytes,
    *,
    is_first: bool,
) -> ParsedMetadata:
    """Parse and check the metadata of a message.

    Parameters
    ----------
    formats : mapping of MetadataType to MessageFormat
        Reads the metadata of each format. Contains `message_type`.
    limits : Limits
        Bounds the size of the body.
    message_type, sequence : int
        The prefix of the metadata message.
    payload : bytes
        The FlatBuffer of the message.
    is_first : bool
        Whether the message is the first of its stream, which must be the schema.

    Raises
    ------
    ProtocolError
        If the metadata is malformed, or a schema is missing or out of place.
    LimitError
        If the metadata declares a body larger than ``limits.body_bytes``.
    """
    try:
        summary = formats[MetadataType(message_type)](payload)
    except ProtocolError as error:
        error.sequence = sequence
        raise
    name, is_schema, has_body, body_length, is_array = summary
    if body_length > limits.body_bytes and not is_array:
        raise LimitError(
            f"the metadata declares a body of {body_length} bytes; "
            f"the limit is {limits.body_bytes} bytes",
            sequence=sequence,
        )
    if is_first and not is_schema:
        raise ProtocolError(f"the first message is a {name}, not a schema", sequence=sequence)
    if is_schema and not is_first:
        raise ProtocolError("received a second schema", sequence=sequence)
    return ParsedMetadata(message_type, payload, name, has_body, body_length)
