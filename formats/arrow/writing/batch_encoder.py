"""Encoding of record batches under the schema message of another stream."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from ....fbs import arrow_generated as fbs
from ..bounds import survey_schema
from ..encoder import MessageEncoder
from .batches import BatchRewriter, RewrittenMessage
from .layouts import read_layout
from .schemas import find_schema

_NO_LIMIT = 1 << 62


class BatchEncoder:
    """Encodes record batches so that they fit the schema message of a stream.

    Each batch comes with all of its dictionaries, under the IDs of that stream.

    Parameters
    ----------
    schema_metadata : bytes
        The FlatBuffer of the schema message, which `read_schema` has accepted.
    """

    def __init__(self, schema_metadata: bytes) -> None:
        schema: Any = find_schema(schema_metadata)
        message: Any = fbs.Message.GetRootAs(schema_metadata, 0)
        ids = survey_schema(schema_metadata, max_nesting=1 << 31, max_bytes=_NO_LIMIT)
        # pyarrow numbers dictionaries in the order of their fields.
        self._rewriter = BatchRewriter(
            read_layout(schema),
            swaps=schema.Endianness() == fbs.Endianness.Big,
            version=message.Version(),
            dictionary_ids=dict(enumerate(ids.dictionary_ids)),
        )

    def encode(self, batch: pa.RecordBatch) -> list[RewrittenMessage]:
        """Return the messages of a batch with the schema of the stream.

        Raises
        ------
        InvalidDataError
            If Arrow cannot encode the batch, or it has another schema.
        """
        encoder = MessageEncoder(batch.schema)
        messages = encoder.encode(batch)
        encoder.close()
        return [
            self._rewriter.rewrite(message.metadata, memoryview(b"".join(message.body or [])))
            for message in messages
        ]
