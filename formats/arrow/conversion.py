"""Conversion of messages to the byte order, metadata version and compression of a `Form`.

`BatchEncoder` encodes record batches under the schema message of another stream.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pyarrow as pa

from ...fbs import arrow_generated as fbs
from .batch_rewriter import BatchRewriter, RewrittenMessage, read_layout
from .encoder import MessageEncoder
from .form import Form
from .message import CODECS
from .metadata_limits import survey_schema
from .schema import Feature, find_schema, read_features
from .schema_rewriter import rewrite_schema

_ORDERS = {"little": fbs.Endianness.Little, "big": fbs.Endianness.Big}
_VERSIONS = {"v4": fbs.MetadataVersion.V4, "v5": fbs.MetadataVersion.V5}


class MessageConverter:
    """Converts the messages of one stream."""

    def __init__(self, schema_metadata: bytes, form: Form) -> None:
        schema = find_schema(schema_metadata)
        message: Any = fbs.Message.GetRootAs(schema_metadata, 0)
        order: Any = schema.Endianness()
        swaps = form.endianness is not None and _ORDERS[form.endianness] != order
        version = None if form.version is None else _VERSIONS[form.version]
        compression = "none" if form.version == "v4" else form.compression
        if compression in CODECS.values():
            version = fbs.MetadataVersion.V5  # readers look for a compression only there
        self._rewriter: BatchRewriter | None = None
        self.changes_bodies = False
        """Whether messages do not have the form yet."""
        self.schema_metadata = schema_metadata
        """The FlatBuffer of the schema message in its new form."""
        changes_version = version is not None and version != message.Version()
        if swaps or changes_version or compression is not None:
            self._rewriter = BatchRewriter(
                read_layout(schema),
                is_big=order == fbs.Endianness.Big,
                swaps=swaps,
                version=version,
                compression=compression,
            )
            self.changes_bodies = True
            self.schema_metadata = rewrite_schema(
                schema_metadata,
                endianness=None if form.endianness is None else _ORDERS[form.endianness],
                version=version,
                features=_choose_features(read_features(schema), version, compression),
            )

    def convert(self, metadata: bytes | memoryview, body: memoryview) -> RewrittenMessage:
        """Return a batch in its new form, with padded buffers; see `BatchRewriter.rewrite`."""
        if self._rewriter is None:
            self._rewriter = BatchRewriter(read_layout(find_schema(self.schema_metadata)))
        return self._rewriter.rewrite(metadata, body)


def _choose_features(
    declared: Collection[int], version: int | None, compression: str | None
) -> Collection[int]:
    """Return the features to declare; readers of V4 know none."""
    if version == fbs.MetadataVersion.V4:
        return ()
    if compression is None:
        return declared
    others = set(declared) - {Feature.COMPRESSED_BODY}
    return others if compression == "none" else {*others, Feature.COMPRESSED_BODY}


class BatchEncoder:
    """Encodes record batches so that they fit the schema message of a stream.

    Each batch comes with all of its dictionaries, under the IDs of that stream.
    """

    def __init__(self, schema_metadata: bytes) -> None:
        schema = find_schema(schema_metadata)
        message: Any = fbs.Message.GetRootAs(schema_metadata, 0)
        ids = survey_schema(schema_metadata, max_nesting=1 << 31, max_bytes=1 << 62)
        # pyarrow numbers dictionaries in the order of their fields.
        self._rewriter = BatchRewriter(
            read_layout(schema),
            swaps=schema.Endianness() == fbs.Endianness.Big,
            version=message.Version(),
            dictionary_ids=dict(enumerate(ids.dictionary_ids)),
        )

    def encode(self, batch: pa.RecordBatch) -> list[RewrittenMessage]:
        """Return the messages of a batch with the schema of the stream."""
        encoder = MessageEncoder(batch.schema)
        messages = encoder.encode(batch)
        encoder.close()
        return [
            self._rewriter.rewrite(message.metadata, memoryview(b"".join(message.body or [])))
            for message in messages
        ]
