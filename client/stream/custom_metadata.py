"""The custom metadata of received record batches, for as long as the batches live.

Few streams have any, so the other batches carry nothing.
"""

from __future__ import annotations

import weakref
from typing import NamedTuple

import pyarrow as pa

CustomMetadata = dict[bytes, bytes]
"""The pairs of keys and values of a message."""

_METADATA: dict[int, tuple[weakref.ref[pa.RecordBatch], CustomMetadata]] = {}


class BatchWithMetadata(NamedTuple):
    """A record batch, and the custom metadata of its message."""

    batch: pa.RecordBatch
    """The batch."""
    custom_metadata: CustomMetadata | None
    """The custom metadata; None if the message has none."""


def attach_metadata(batch: pa.RecordBatch, metadata: CustomMetadata | None) -> None:
    """Remember the custom metadata of a batch until the batch is garbage collected."""
    if metadata is not None:
        key = id(batch)
        reference = weakref.ref(batch, lambda _: _METADATA.pop(key, None))
        _METADATA[key] = (reference, metadata)


def find_metadata(batch: pa.RecordBatch) -> CustomMetadata | None:
    """Return the custom metadata of a batch that was received; None if it has none."""
    found = _METADATA.get(id(batch))
    return None if found is None else found[1]
