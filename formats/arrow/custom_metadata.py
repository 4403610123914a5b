"""Custom metadata of messages, among them the footer's, which travels in a stream's schema message.

A stream has no footer. The pairs of keys and values become custom metadata of the schema *message*,
with a prefix in front of each key. Readers that do not know the prefix ignore them: Arrow keeps the
metadata of a schema inside the schema, not in its message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import flatbuffers

from ...fbs import arrow_generated as fbs
from .message import read_custom_metadata

PREFIX = b"splitarrow:footer:"
"""The prefix of the keys of a footer in a schema message."""

_ALIGNMENT = 8

Pairs = Sequence[tuple[bytes | None, bytes | None]]
"""Pairs of keys and values."""


def add_footer_metadata(metadata: bytes, footer: Mapping[bytes, bytes]) -> bytes:
    """Return a schema message with the custom metadata of a footer."""
    return add_message_metadata(metadata, {PREFIX + key: value for key, value in footer.items()})


def add_message_metadata(metadata: bytes, added: Mapping[bytes, bytes]) -> bytes:
    """Return a schema message with more custom metadata; see `add_footer_metadata`."""
    return set_message_metadata(metadata, {**read_custom_metadata(metadata), **added})


def set_message_metadata(metadata: bytes, pairs: Mapping[bytes, bytes]) -> bytes:
    """Return a schema message with other custom metadata; see `add_footer_metadata`."""
    message = fbs.Message.GetRootAs(metadata, 0)
    header: Any = message.Header()
    builder: Any = flatbuffers.Builder(2 * len(metadata))
    size = _embed(builder, metadata)
    custom_metadata = write_pairs(builder, [*pairs.items()])
    fbs.MessageStart(builder)
    fbs.MessageAddVersion(builder, message.Version())
    fbs.MessageAddHeaderType(builder, message.HeaderType())
    fbs.MessageAddHeader(builder, size - header.Pos)
    fbs.MessageAddCustomMetadata(builder, custom_metadata)
    builder.Finish(fbs.MessageEnd(builder))
    return bytes(builder.Output())


def make_schema_message(footer: bytes) -> bytes:
    """Return a schema message with the schema of a footer that `read_footer` has accepted."""
    root = fbs.Footer.GetRootAs(footer, 0)
    schema: Any = root.Schema()
    builder: Any = flatbuffers.Builder(len(footer) + 256)
    size = _embed(builder, footer)
    fbs.MessageStart(builder)
    fbs.MessageAddVersion(builder, root.Version())
    fbs.MessageAddHeaderType(builder, fbs.MessageHeader.Schema)
    fbs.MessageAddHeader(builder, size - schema._tab.Pos)
    builder.Finish(fbs.MessageEnd(builder))
    data = bytes(builder.Output())
    return data + bytes(-len(data) % _ALIGNMENT)


def _embed(builder: Any, data: bytes) -> int:
    """Write a FlatBuffer into another one, and return its padded size in bytes.

    A builder writes from the end and counts positions from there: a table at byte `p` of `data` is
    at ``size - p``.
    """
    size = len(data) + -len(data) % _ALIGNMENT
    builder.Prep(_ALIGNMENT, size)
    builder.head -= size
    builder.Bytes[builder.head : builder.head + len(data)] = data
    return size


def find_footer_metadata(metadata: bytes | memoryview) -> dict[bytes, bytes] | None:
    """Return the custom metadata of a footer in a schema message; None if it has none."""
    pairs = read_custom_metadata(metadata).items()
    found = {key[len(PREFIX) :]: value for key, value in pairs if key.startswith(PREFIX)}
    return found or None


def write_pairs(builder: Any, pairs: Pairs) -> int:
    """Write the vector of the custom metadata of a message; return its position."""
    positions: list[int] = []
    for key, value in pairs:
        texts = [None if text is None else builder.CreateString(text) for text in (key, value)]
        fbs.KeyValueStart(builder)
        if texts[0] is not None:
            fbs.KeyValueAddKey(builder, texts[0])
        if texts[1] is not None:
            fbs.KeyValueAddValue(builder, texts[1])
        positions.append(fbs.KeyValueEnd(builder))
    fbs.MessageStartCustomMetadataVector(builder, len(positions))
    for position in reversed(positions):
        builder.PrependUOffsetTRelative(position)
    return builder.EndVector()
