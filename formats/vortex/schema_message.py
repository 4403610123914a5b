"""The mark of a stream whose record batches are Vortex arrays.

The first message of such a stream is an Arrow schema message, as in any other stream. The custom
metadata of the *message* has the pair ``splitarrow:format`` = ``vortex``, so that a reader knows
the format before an array arrives. With the pair ``splitarrow:storage`` = ``none``, the arrays have
the types of the schema, instead of their storage.
"""

from __future__ import annotations

from ..arrow.footer_metadata import add_message_metadata, set_message_metadata
from ..arrow.message import read_custom_metadata

_KEY, _VORTEX = b"splitarrow:format", b"vortex"
_STORAGE_KEY, _NO_STORAGE = b"splitarrow:storage", b"none"


def mark_schema(metadata: bytes, *, has_storage: bool = True) -> bytes:
    """Return the schema message of a stream of Vortex arrays.

    Parameters
    ----------
    metadata : bytes
        The FlatBuffer of a schema message, which pyarrow has accepted.
    has_storage : bool
        Whether the arrays have the storage of the schema, rather than the types of the schema.
    """
    pairs = {_KEY: _VORTEX} if has_storage else {_KEY: _VORTEX, _STORAGE_KEY: _NO_STORAGE}
    return add_message_metadata(metadata, pairs)


def unmark_schema(metadata: bytes) -> bytes:
    """Return the schema message of a stream of record batches in Arrow; see `mark_schema`."""
    pairs = read_custom_metadata(metadata)
    if pairs.pop(_KEY, None) is None:
        return metadata
    pairs.pop(_STORAGE_KEY, None)
    return set_message_metadata(metadata, pairs)


def is_marked(metadata: bytes | memoryview) -> bool:
    """Return whether the stream of a schema message has Vortex arrays.

    Parameters
    ----------
    metadata : bytes-like
        The FlatBuffer of a schema message, which `bounds.survey_schema` has accepted.
    """
    return read_custom_metadata(metadata).get(_KEY) == _VORTEX


def has_storage(metadata: bytes | memoryview) -> bool:
    """Return whether the arrays of a marked schema message have the storage of the schema."""
    return read_custom_metadata(metadata).get(_STORAGE_KEY) != _NO_STORAGE
