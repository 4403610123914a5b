"""The encapsulated messages of received record batches, for a caller that passes them on.

A file of Arrow IPC that is written from these messages has what decoding loses: the names of the
children of maps, and dictionaries that several columns share.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from ...protocol.frames import MessageRun
from ...protocol.messages import Message
from ...protocol.tags import BodyType
from .decoders import Decoder
from .remote_bodies import RemoteBodies

_KEPT: dict[int, tuple[weakref.ref[pa.RecordBatch], KeptMessages]] = {}


class KeptMessage(NamedTuple):
    """A message as it arrived."""

    metadata: bytes
    """The FlatBuffer of the message."""
    body: pa.Buffer
    """Its packed body. It keeps the memory that it arrived in alive."""


@dataclass(frozen=True, slots=True)
class KeptMessages:
    """The messages that a record batch was decoded from."""

    schema_metadata: bytes
    """The FlatBuffer of the schema message of the stream."""
    messages: tuple[KeptMessage, ...]
    """The dictionaries that arrived before the batch, and the batch itself."""


def find_messages(batch: pa.RecordBatch) -> KeptMessages | None:
    """Return the messages of a received batch; None if the stream keeps none.

    A slice of a batch has none either.
    """
    found = _KEPT.get(id(batch))
    return None if found is None else found[1]


class KeepingDecoder:
    """A decoder that keeps the messages of each batch until the batch is garbage collected.

    Parameters
    ----------
    decoder : Decoder
        Decodes the messages.
    schema_metadata : bytes
        The FlatBuffer of the schema message of the stream.
    remote_bodies : RemoteBodies, optional
        Resolves bodies of type 1.
    """

    def __init__(
        self, decoder: Decoder, schema_metadata: bytes, remote_bodies: RemoteBodies | None = None
    ) -> None:
        self._decoder = decoder
        self._schema_metadata = schema_metadata
        self._remote_bodies = remote_bodies
        self._pending: list[KeptMessage] = []

    @property
    def schema(self) -> pa.Schema:
        """The schema of the record batches."""
        return self._decoder.schema

    def decode(self, message: Message) -> pa.RecordBatch | None:
        """Return the record batch of a message; see `Decoder.decode`."""
        if message.body_type is BodyType.OFFSETS and self._remote_bodies is not None:
            message = self._remote_bodies.resolve(message)
        batch = self._decoder.decode(message)
        body = message.body
        if body is not None:
            self._pending.append(KeptMessage(message.metadata, body.payload()))
        if batch is not None:
            kept = KeptMessages(self._schema_metadata, tuple(self._pending))
            self._pending.clear()
            key = id(batch)
            reference = weakref.ref(batch, lambda _: _KEPT.pop(key, None))
            _KEPT[key] = (reference, kept)
        return batch

    def decode_run(self, run: MessageRun, batches: list[pa.RecordBatch]) -> bool:
        """Return False: each message of a run is decoded on its own, to keep it."""
        del run, batches
        return False
