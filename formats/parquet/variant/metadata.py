"""The metadata of Variants: dictionaries of field names (Variant Encoding, "Metadata encoding")."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .buffers import (
    ByteBuffer,
    Index,
    Mask,
    RowChecks,
    accumulate,
    binary_parts,
    expand,
    make_binary,
)

_VERSION = 1
_SORTED = 0x10


class Names:
    """The field names of a column.

    Most columns have few different dictionaries. Each one is parsed once.

    Attributes
    ----------
    metadata_of : ndarray of int64, shape (rows,)
        The dictionary of each row.
    metadata : pyarrow.LargeBinaryArray
        The different dictionaries, encoded.
    first, size : ndarray of int64, shape (dictionaries,)
        The entries of each dictionary in `keys`.
    keys : ndarray of int64
        The field names of all dictionaries, as indices into `texts`.
    texts : pyarrow.LargeStringArray
        The different field names, in the order of their UTF-8 bytes. So indices compare as names
        do.
    """

    __slots__ = ("first", "keys", "metadata", "metadata_of", "size", "texts")

    def __init__(self, metadata: Any, checks: RowChecks) -> None:
        """Parse and check the metadata of all rows."""
        encoded = metadata.cast(pa.large_binary()).dictionary_encode()
        self.metadata_of: Index = encoded.indices.to_numpy().astype(np.int64)
        self.metadata = encoded.dictionary
        rows = np.zeros(len(self.metadata), np.int64)
        rows[self.metadata_of[::-1]] = np.arange(len(metadata))[::-1]
        own = RowChecks(len(self.metadata), collect=True)
        self._parse(_DictionaryChecks(checks, own, self.metadata_of, rows))

    def _parse(self, checks: _DictionaryChecks) -> None:
        count = len(self.metadata)
        data, offsets = binary_parts(self.metadata)
        buffer = ByteBuffer(data)
        alive = np.arange(count)
        start, end = offsets[:-1], offsets[1:]
        alive = checks.keep(end - start >= 3, alive, "the metadata has fewer than 3 bytes")
        header = buffer.read_u8(start[alive])
        ok = (header & 0x0F) == _VERSION
        alive = checks.keep(ok, alive, "the metadata must have version 1")
        header = buffer.read_u8(start[alive])
        width = (header >> 6).astype(np.int64) + 1
        size = buffer.read_uint(start[alive] + 1, width)
        body = start[alive] + 1 + width * (size + 2)
        kept = checks.valid(body <= end[alive], alive, "the metadata ends inside of its offsets")
        alive, header = alive[kept], header[kept]
        width, size, body = width[kept], size[kept], body[kept]
        group, position = expand(size + 1)
        at = buffer.read_uint(start[alive][group] + 1 + width[group] * (position + 1), width[group])
        is_last = position == size[group]
        ok = np.ones(len(alive), np.bool_)
        if len(at):
            steps = at[1:] >= at[:-1]
            steps |= is_last[:-1]
            ok[group[:-1][~steps]] = False
            ok &= (at[position == 0] == 0) & (body + at[is_last] == end[alive])
        kept = checks.valid(ok, alive, "the offsets of the metadata do not fit its bytes")
        inside = kept[group] & ~is_last
        sizes = (np.append(at[1:], 0) - at)[inside]
        names = buffer.slice((body[group] + at)[inside], sizes)
        kept_groups = np.cumsum(kept) - 1
        alive, header, size = alive[kept], header[kept], size[kept]
        self.size: Index = np.zeros(count, np.int64)
        self.size[alive] = size
        self.first: Index = accumulate(self.size)[:-1]
        self._rank(names, alive[kept_groups[group[inside]]], checks)
        self._check_sorted(alive[(header & _SORTED) != 0], checks)

    def _rank(self, names: Any, owner: Index, checks: _DictionaryChecks) -> None:
        """Set `keys` and `texts` from the names of all dictionaries."""
        encoded = names.dictionary_encode()
        distinct = encoded.dictionary
        valid = find_utf8(distinct)
        codes = encoded.indices.to_numpy().astype(np.int64)
        if not bool(valid.all()):
            checks.keep(valid[codes], owner, "a field name is not UTF-8")
            distinct = pc.if_else(pa.array(valid), distinct, b"")
        order = pc.sort_indices(distinct).to_numpy().astype(np.int64)
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        self.texts = distinct.take(pa.array(order)).cast(pa.large_string())
        self.keys: Index = rank[codes]

    def _check_sorted(self, dictionaries: Index, checks: _DictionaryChecks) -> None:
        """Check that dictionaries that claim to be sorted are sorted and unique."""
        if not len(dictionaries):
            return
        group, position = expand(np.maximum(self.size[dictionaries] - 1, 0))
        at = self.first[dictionaries][group] + position
        ok = np.ones(len(dictionaries), np.bool_)
        ok[group[self.keys[at] >= self.keys[at + 1]]] = False
        checks.keep(ok, dictionaries, "the metadata claims to be sorted, but is not")

    def text(self, key: int) -> str:
        """Return a field name."""
        return self.texts[key].as_py()

    def find(self, name: str) -> int:
        """Return the index of a field name in `texts`, or -1 if no dictionary has it."""
        return int(pc.index(self.texts, pa.scalar(name, pa.large_string())).as_py())

    def find_ids(self, key: int) -> Index:
        """Return the first field id of a name in each dictionary, or -1 if it has none."""
        ids = np.full(len(self.size), -1, np.int64)
        at = np.flatnonzero(self.keys == key)[::-1]
        owner = np.searchsorted(self.first + self.size, at, side="right")
        ids[owner] = at - self.first[owner]
        return ids


class _DictionaryChecks:
    """Checks of dictionaries, whose failures concern all rows that use them."""

    def __init__(
        self, checks: RowChecks, dictionaries: RowChecks, metadata_of: Index, rows: Index
    ) -> None:
        self._checks = checks
        self._dictionaries = dictionaries
        self._metadata_of = metadata_of
        self._rows = rows

    def valid(self, ok: Mask, dictionaries: Index, problem: str) -> Mask:
        """Return `ok`, after its failures were reported."""
        if not self._dictionaries.require(ok, dictionaries, problem):
            broken = np.zeros(len(self._rows), np.bool_)
            broken[dictionaries[~ok]] = True
            rows = np.flatnonzero(broken[self._metadata_of])
            self._checks.require(np.zeros(len(rows), np.bool_), rows, problem)
        return ok

    def keep(self, ok: Mask, dictionaries: Index, problem: str) -> Index:
        """Return the dictionaries for which `ok` holds, after the failures were reported."""
        return dictionaries[self.valid(ok, dictionaries, problem)]


def find_utf8(values: Any) -> Mask:
    """Return which binary values are UTF-8."""
    data, offsets = binary_parts(values)
    try:
        make_binary(data, offsets, pa.large_string()).validate(full=True)
    except pa.ArrowInvalid:
        pass
    else:
        return np.ones(len(values), np.bool_)
    return np.fromiter((_is_utf8(value) for value in values.to_pylist()), np.bool_, len(values))


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def encode_metadata(names: list[str]) -> bytes:
    """Return the metadata of some field names, sorted if they are in the order of their bytes."""
    encoded = [name.encode() for name in names]
    is_sorted = all(left < right for left, right in pairwise(encoded))
    total = sum(map(len, encoded))
    width = max(1, (max(total, len(encoded)).bit_length() + 7) // 8)
    header = _VERSION | (_SORTED if is_sorted else 0) | (width - 1) << 6
    parts = [bytes([header]), len(encoded).to_bytes(width, "little")]
    at = 0
    parts.append(at.to_bytes(width, "little"))
    for name in encoded:
        at += len(name)
        parts.append(at.to_bytes(width, "little"))
    return b"".join([*parts, *encoded])
