"""Answers about streaming queries of the reader in the JVM: where micro-batches begin and end.

Offsets cross the process boundary as texts, as Spark stores them: equal texts are equal offsets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ...client.rpc.info import DatasetInfo
from ...errors import UsageError
from ..options import SparkOptions
from ..stream_offsets import (
    INITIAL_OFFSET,
    Describe,
    Offset,
    end_offset,
    find_new_shards,
    next_offset,
)

_NAMED_VERSION = re.compile(r"(\d{1,18})(-[0-9a-f]+)?")


def start_stream(describe: Describe, options: SparkOptions) -> dict[str, Any]:
    """Return the offset at which a query without a checkpoint begins.

    ``startingVersion`` is the first version whose new shards the query reads, so the offset is the
    end of the version before. Raises `UsageError` if the option is wrong, and `RemoteError` if the
    server no longer has that version.
    """
    text = options.text("startingversion")
    if text is None:
        return {"offset": json.dumps(INITIAL_OFFSET)}
    if text.lower() == "latest":
        return {"offset": json.dumps(end_offset(describe(None)))}
    match = _NAMED_VERSION.fullmatch(text)
    if match is None or not int(match[1]):
        raise UsageError(
            f"option 'startingVersion' is {text!r}; it must be latest, or the number or name of a "
            "version of one daemon"
        )
    if match[2] is not None:
        describe(text)
    before = int(match[1]) - 1
    offset = end_offset(describe(str(before))) if before else INITIAL_OFFSET
    return {"offset": json.dumps(offset)}


def find_latest(
    describe: Describe, values: Mapping[str, Any], options: SparkOptions
) -> dict[str, Any]:
    """Return the end of the next micro-batch, which begins at ``start``.

    Without ``start``, it is the end of the current version. ``last`` is an offset after which
    nothing is read. ``limited`` is whether the rates that the options name apply.
    """
    _check_options(options)
    max_shards = options.count("maxshardspertrigger")
    max_bytes = options.nbytes("maxbytespertrigger")
    if values.get("start") is None:
        return {"offset": json.dumps(end_offset(describe(None)))}
    start, last = (_parse(values.get(name)) for name in ("start", "last"))
    assert start is not None
    rates = (max_shards, max_bytes) if values["limited"] else (None, None)
    end = next_offset(describe, start, last, *rates)
    return {"offset": values["start"] if end is start else json.dumps(end)}


def find_batch(describe: Describe, values: Mapping[str, Any]) -> tuple[DatasetInfo, set[int]]:
    """Return the version of a micro-batch between two offsets, and the ordinals of its shards."""
    start, end = (json.loads(values[name]) for name in ("start", "end"))
    info, shards = find_new_shards(describe, start, end)
    return info, set(shards)


def _parse(text: str | None) -> Offset | None:
    return None if text is None else json.loads(text)


def _check_options(options: SparkOptions) -> None:
    """Raise `UsageError` if the options contain one of batch queries alone."""
    for name in ("limit", "version"):
        if options.text(name):
            raise UsageError(f"a streaming read does not support the option {name!r}")
