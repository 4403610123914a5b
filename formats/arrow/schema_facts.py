"""What follows from a schema message alone, so that it holds for all streams that begin with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pyarrow as pa

from .array_plans import BatchPlan
from .dictionaries import read_dictionary_types
from .schema import is_native_endian, is_self_contained

_MAX_KEPT = 32

PlanCache = dict[tuple[int | None, bool], BatchPlan]
"""The arrays of a message, by its dictionary and by whether it has the metadata version 5."""


class SchemaFacts(NamedTuple):
    """What follows from a schema message."""

    is_fixed_width: bool
    """Whether all columns are of primitive types."""
    swaps_bytes: bool
    """Whether the batches have the other byte order than this machine."""
    dictionary_types: Mapping[int, pa.DataType]
    """The type of the values of each dictionary, by its ID."""
    plans: PlanCache
    """The plans that were made so far; see `MessageChecker`."""


_kept: dict[bytes, SchemaFacts] = {}


def find_schema_facts(metadata: bytes, schema: pa.Schema) -> SchemaFacts:
    """Return what follows from a schema message. That of a repeated message is kept.

    Parameters
    ----------
    metadata : bytes
        The FlatBuffer of the message.
    schema : pyarrow.Schema
        The result of `read_schema`.

    Raises
    ------
    InvalidDataError
        As `read_dictionary_types` does.
    """
    is_kept = type(metadata) is bytes and is_self_contained(metadata)
    facts = _kept.get(metadata) if is_kept else None
    if facts is None:
        facts = SchemaFacts(
            all(pa.types.is_primitive(field.type) for field in schema),
            not is_native_endian(metadata),
            read_dictionary_types(metadata, schema),
            {},
        )
        if is_kept:
            if len(_kept) >= _MAX_KEPT:
                _kept.clear()
            _kept[metadata] = facts
    return facts
