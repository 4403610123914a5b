"""Messages of a stream in the form that its readers need."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ....fbs import arrow_generated as fbs
from ..features import Feature, read_features
from ..headers import CODECS
from .batches import BatchRewriter, RewrittenMessage
from .form import Form
from .layouts import read_layout
from .schemas import find_schema, rewrite_schema

_ORDERS = {"little": fbs.Endianness.Little, "big": fbs.Endianness.Big}
_VERSIONS = {"v4": fbs.MetadataVersion.V4, "v5": fbs.MetadataVersion.V5}


class MessageConverter:
    """Converts the messages of one stream.

    Messages that have the form already need no conversion.

    Parameters
    ----------
    schema_metadata : bytes
        The FlatBuffer of the schema message, which `read_schema` has accepted.
    form : Form
        The form to convert to.

    Raises
    ------
    InvalidDataError
        If the schema is malformed.
    """

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
        self._changes_bodies = False
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
            self._changes_bodies = True
            self.schema_metadata = rewrite_schema(
                schema_metadata,
                endianness=None if form.endianness is None else _ORDERS[form.endianness],
                version=version,
                features=_choose_features(read_features(schema), version, compression),
            )

    @property
    def changes_bodies(self) -> bool:
        """Whether messages do not have the form yet."""
        return self._changes_bodies

    def convert(self, metadata: bytes | memoryview, body: memoryview) -> RewrittenMessage:
        """Return a record batch or dictionary batch in its new form, with padded buffers.

        See `BatchRewriter.rewrite`.

        Raises
        ------
        ProtocolError
            If the message is malformed or does not fit the schema.
        """
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
