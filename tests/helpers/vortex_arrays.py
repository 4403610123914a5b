"""Arrays of vortex-data in many encodings, drawn at random."""

from __future__ import annotations

import decimal
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import vortex

from splitarrow.errors import InvalidDataError
from splitarrow.formats.vortex.decoder import encode_array
from splitarrow.formats.vortex.message import Message

_SIZES = (0, 1, 5, 100, 1023, 1024, 1025, 3000)
_INTEGERS = ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")


def _outliers(rng: Any, n: int, values: Any, other: Any) -> Any:
    values[rng.random(n) < 0.02] = other
    return values


def _texts(rng: Any, n: int) -> pa.Array:
    most = 9 ** int(rng.integers(1, 9))
    return pa.array([f"text {rng.integers(0, most)} with an end" for _ in range(n)], pa.string())


def _structs(rng: Any, n: int) -> pa.Array:
    values = [{"a": int(x), "b": [str(x % 7)] * int(x % 3)} for x in rng.integers(0, 50, n)]
    return pa.array(values, pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))]))


def _decimals(rng: Any, n: int) -> pa.Array:
    values = [decimal.Decimal(int(x)) / 100 for x in rng.integers(-(10**9), 10**9, n)]
    return pa.array(values, pa.decimal128(int(rng.choice([12, 20, 38])), 2))


def _dictionaries(rng: Any, n: int) -> Any:
    indices: Any = pa.array(rng.integers(0, 3, n).astype("i1"))
    return pa.DictionaryArray.from_arrays(indices, pa.array(["aa", "b", None]))


_MAKERS: list[Callable[[Any, int], Any]] = [
    lambda rng, n: pa.array(rng.integers(0, 100, n).astype(rng.choice(_INTEGERS))),
    lambda rng, n: pa.array(_outliers(rng, n, rng.integers(0, 10, n), 1 << 40)),
    lambda rng, n: pa.array(np.zeros(n, "i4") - rng.integers(0, 50, n).astype("i4")),
    lambda rng, n: pa.array(np.round(rng.normal(size=n), 2)),
    lambda rng, n: pa.array(_outliers(rng, n, np.round(rng.normal(size=n), 1), np.pi)),
    lambda rng, n: pa.array(rng.normal(size=n).astype(rng.choice(["f4", "f8"]))),
    lambda rng, n: pa.array(np.repeat(rng.integers(0, 9, n // 10 + 1), 10)[:n]),
    lambda rng, n: pa.array(_outliers(rng, n, np.zeros(n, "i8"), 7)),
    lambda rng, n: pa.array(rng.integers(0, 1 << 34, n), pa.timestamp("us", "UTC")),
    lambda rng, n: pa.array(1_600_000_000_000_000 + np.cumsum(rng.integers(0, 1 << 22, n))).cast(
        pa.timestamp("us")
    ),
    lambda rng, n: pa.array(
        [list(range(int(k))) for k in rng.integers(0, 5, n)], pa.list_(pa.int32())
    ),
    lambda rng, n: pa.array(
        [[1, 2, int(k)] for k in rng.integers(0, 5, n)], pa.list_(pa.int16(), 3)
    ),
    lambda rng, n: pa.array(rng.random(n) < 0.1),
    lambda rng, n: pa.array([rng.bytes(int(k)) for k in rng.integers(0, 30, n)], pa.binary()),
    _texts,
    _structs,
    _decimals,
    _dictionaries,
]


def draw_array(random_numbers: random.Random) -> pa.Array:
    """Return an Arrow array, with nulls or a slice of another in some cases."""
    rng = np.random.default_rng(random_numbers.randrange(1 << 32))
    n = int(rng.choice(_SIZES))
    found: Any = random_numbers.choice(_MAKERS)(rng, n)
    if rng.random() < 0.4 and not pa.types.is_dictionary(found.type):
        is_null: Any = pa.array(rng.random(n) < rng.choice([0.01, 0.3, 0.99]))
        found = pc.if_else(is_null, pa.scalar(None, found.type), found)
    if rng.random() < 0.3:
        found = found.slice(n // 3)
    return found


def draw_messages(random_numbers: random.Random) -> tuple[Message, Message] | None:
    """Return the messages of an array, compressed or not; None if the library refuses it."""
    found: Any = draw_array(random_numbers)
    how = random_numbers.randrange(4)
    try:
        array: Any = vortex.array(found)
        if how:
            array = vortex.compress(array)
        if how == 3 and len(array) > 3:
            array = vortex.compress(array.slice(1, len(array) - 1))
        return encode_array(array)
    except (InvalidDataError, ValueError, RuntimeError):
        return None  # some slices and arrays of nulls
