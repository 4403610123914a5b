"""Damaged Variants: two independent readers agree on which are valid, and on their values."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from helpers.variant_encoding import encode
from splitarrow import variant
from splitarrow.errors import InvalidDataError
from splitarrow.formats.parquet.variant.python_values import decode

SEEDS: list[Any] = [
    {"a": [1, 2, {"b": "x" * 5, "c": None}], "zz": {"a": 1.5, "q": True}},
    [[], {}, [{}], {"k": [1]}],
    {"décimal": Decimal("-12.30"), "big": 10**30, "bytes": b"\0\1\2", "long": "é" * 40},
    [np.float32(1.5), np.int64(7), "", "x", {"": 1}],
]


def _mutate(random_source: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    action = random_source.random()
    at = random_source.randrange(len(changed) + 1)
    if action < 0.6 and at < len(changed):
        changed[at] = random_source.choice([0, 1, 2, 255, random_source.randrange(256)])
    elif action < 0.8:
        del changed[at : at + 1]
    else:
        changed.insert(at, random_source.randrange(256))
    return bytes(changed)


def _make_mutations(seed: int, count: int) -> list[tuple[bytes, bytes]]:
    source = random.Random(seed)
    seeds = [encode(value) for value in SEEDS]
    mutations: list[tuple[bytes, bytes]] = []
    for _ in range(count):
        metadata, value = source.choice(seeds)
        for _ in range(source.randint(1, 3)):
            if source.random() < 0.7:
                value = _mutate(source, value)
            else:
                metadata = _mutate(source, metadata)
        mutations.append((metadata, value))
    return mutations


def _decode(pair: tuple[bytes, bytes]) -> Any:
    try:
        return decode(*pair)
    except InvalidDataError as error:
        return error


def check_mutations(seed: int, count: int, every: int = 1) -> int:
    """Compare both readers over some mutations, and return how many are valid.

    Of those that the reader by columns refuses, the other reads one in `every`.
    """
    mutations = _make_mutations(seed, count)
    column = pa.StructArray.from_arrays(
        [pa.array([pair[part] for pair in mutations], pa.binary()) for part in (0, 1)],
        ["metadata", "value"],
    )
    valid = variant.is_valid(column)
    read = [
        number
        for number, is_valid in enumerate(valid.to_pylist())
        if is_valid or not number % every
    ]
    decoded = [_decode(mutations[number]) for number in read]
    expected = [not isinstance(value, InvalidDataError) for value in decoded]
    assert valid.take(pa.array(read)).to_pylist() == expected
    kept = column.filter(valid)
    values = [value for value in decoded if not isinstance(value, InvalidDataError)]
    texts = variant.to_json(kept).to_pylist()
    again = variant.to_json(variant.from_python(values)).to_pylist()
    for text, other in zip(texts, again, strict=True):
        assert text == other or _parse(text) == _parse(other)
    return len(values)


def _parse(text: str) -> Any:
    """Return a value in which floating-point numbers have 32 bits: Python knows only doubles."""
    with np.errstate(over="ignore"):
        return json.loads(text, parse_float=np.float32)


def test_both_readers_agree_on_20_000_mutations() -> None:
    assert check_mutations(seed=15, count=20_000, every=8) > 1000


@pytest.mark.long
def test_both_readers_agree_on_a_million_mutations() -> None:
    for seed in range(50):
        check_mutations(seed, 20_000)
