"""The mark of a stream whose record batches are Vortex arrays.

The first message of such a stream is an Arrow schema message, as in any other stream. The custom
metadata of the *message* has the pair ``splitarrow:format`` = ``vortex``, so that a reader knows
the format before an array arrives.
"""

from __future__ import annotations

from ..arrow.footer_metadata import add_message_metadata, set_message_metadata
from ..arrow.message import read_custom_metadata

_KEY, _VORTEX = b"splitarrow:format", b"vortex"


def mark_schema(metadata: bytes) -> bytes:
    """Return the schema message of a stream of Vortex arrays.

    Parameters
    ----------
    metadata : bytes
        The FlatBuffer of a schema message, which pyarrow has accepted.
    """
    return add_message_metadata(metadata, {_KEY: _VORTEX})


def unmark_schema(metadata: bytes) -> bytes:
    """Return the schema message of a stream of record batches in Arrow; see `mark_schema`."""
    pairs = read_custom_metadata(metadata)
    if pairs.pop(_KEY, None) is None:
        return metadata
    return set_message_metadata(metadata, pairs)


def is_marked(metadata: bytes | memoryview) -> bool:
    """Return whether the stream of a schema message has Vortex arrays.

    Parameters
    ----------
    metadata : bytes-like
        The FlatBuffer of a schema message, which `bounds.survey_schema` has accepted.
    """
    return read_custom_metadata(metadata).get(_KEY) == _VORTEX
