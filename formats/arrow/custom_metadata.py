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
from ..flatbuffer import embed, write_references
from .message import align, read_custom_metadata

PREFIX = b"splitarrow:footer:"
"""The prefix of the keys of a footer in a schema message."""

Pairs = Sequence[tuple[bytes | None, bytes | None]]
"""Pairs of keys and values."""


def add_footer_metadata(metadata: bytes, footer: Mapping[bytes, bytes]) -> bytes:
    """Return a schema message with the custom metadata of a footer."""
    return add_message_metadata(metadata, {PREFIX + key: value for key, value in footer.items()})


def find_footer_metadata(metadata: bytes | memoryview) -> dict[bytes, bytes] | None:
    """Return the custom metadata of a footer in a schema message; None if it has none."""
    pairs = read_custom_metadata(metadata).items()
    found = {key[len(PREFIX) :]: value for key, value in pairs if key.startswith(PREFIX)}
    return found or None


def add_message_metadata(metadata: bytes, added: Mapping[bytes, bytes]) -> bytes:
    """Return a schema message with more custom metadata."""
    return set_message_metadata(metadata, {**read_custom_metadata(metadata), **added})


def set_message_metadata(metadata: bytes, pairs: Mapping[bytes, bytes]) -> bytes:
    """Return a schema message with other custom metadata."""
    message = fbs.Message.GetRootAs(metadata, 0)
    header: Any = message.Header()
    builder: Any = flatbuffers.Builder(2 * len(metadata))
    size = embed(builder, metadata)
    custom = write_pairs(builder, [*pairs.items()])
    position = size - header.Pos
    return finish_message(builder, message.Version(), message.HeaderType(), position, custom=custom)


def make_schema_message(footer: bytes) -> bytes:
    """Return a schema message with the schema of a footer that `read_footer` has accepted."""
    root = fbs.Footer.GetRootAs(footer, 0)
    schema: Any = root.Schema()
    builder: Any = flatbuffers.Builder(len(footer) + 256)
    position = embed(builder, footer) - schema._tab.Pos
    return pad(finish_message(builder, root.Version(), fbs.MessageHeader.Schema, position))


def pad(metadata: bytes) -> bytes:
    """Return metadata padded to the alignment of messages."""
    return metadata.ljust(align(len(metadata)), b"\0")


def write_pairs(builder: Any, pairs: Pairs) -> int:
    """Write custom metadata, and return its position; 0 if there are no pairs."""
    if not pairs:
        return 0
    positions: list[int] = []
    for key, value in pairs:
        texts = [None if text is None else builder.CreateString(text) for text in (key, value)]
        fbs.KeyValueStart(builder)
        if texts[0] is not None:
            fbs.KeyValueAddKey(builder, texts[0])
        if texts[1] is not None:
            fbs.KeyValueAddValue(builder, texts[1])
        positions.append(fbs.KeyValueEnd(builder))
    return write_references(builder, positions)


def finish_message(
    builder: Any, version: int, kind: int, header: int, body_length: int = 0, *, custom: int = 0
) -> bytes:
    """Write the table ``Message``, and return the FlatBuffer.

    `kind` is a number of ``fbs.MessageHeader``. `header` and `custom` are the positions of the
    header and of the custom metadata; 0 means that there is none.
    """
    fbs.MessageStart(builder)
    fbs.MessageAddVersion(builder, version)
    fbs.MessageAddHeaderType(builder, kind)
    fbs.MessageAddHeader(builder, header)
    fbs.MessageAddBodyLength(builder, body_length)
    if custom:
        fbs.MessageAddCustomMetadata(builder, custom)
    builder.Finish(fbs.MessageEnd(builder))
    return bytes(builder.Output())
