"""The structure of arrays apart from their memory, which need not be host memory.

pyarrow reads offsets to make an array of strings or lists. So an array in the memory of a device is
not a ``pyarrow.Array``, but an `ArrayLayout` with buffers that only have addresses.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

import pyarrow as pa

UNKNOWN = -1
"""The null count of an array whose nulls were not counted."""
_from_buffers: Any = cast("Any", pa.Array).from_buffers


@dataclass(frozen=True, slots=True)
class ArrayLayout:
    """An array without an offset: its type, its length, and its buffers."""

    type: Any
    """The type; for an extension type, its children, buffers and dictionary are those of the
    storage."""
    length: int
    null_count: int
    buffers: tuple[pa.Buffer | None, ...]
    """The buffers of the array itself, as ``pyarrow.Array.buffers`` orders them."""
    children: tuple[ArrayLayout, ...] = ()
    dictionary: ArrayLayout | None = None

    @classmethod
    def of(cls, array: Any) -> ArrayLayout:
        """Return the layout of an array in host memory, which must have no offset."""
        kind = array.type
        if isinstance(kind, pa.BaseExtensionType):
            return replace(cls.of(array.storage), type=kind)
        if pa.types.is_dictionary(kind):
            codes = cls.of(array.indices)
            return replace(codes, type=kind, dictionary=cls.of(array.dictionary))
        children = tuple(cls.of(child) for child in _children(array))
        buffers = array.buffers()
        own = buffers[: kind.num_buffers] if children else buffers
        return cls(kind, len(array), array.null_count, tuple(own), children)

    @property
    def storage_type(self) -> Any:
        """The type without extensions."""
        kind = self.type
        while isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        return kind

    @property
    def is_aligned(self) -> bool:
        """Whether all values of a fixed width begin at a multiple of it, up to 8 bytes."""
        data = self.buffers[1] if len(self.buffers) > 1 else None
        width = min(find_value_width(self.storage_type), 8)
        if data is not None and data.address % width:
            return False
        return all(child.is_aligned for child in self.children)

    def list_buffers(self) -> Iterator[pa.Buffer]:
        """Iterate over all buffers that are not empty."""
        yield from (buffer for buffer in self.buffers if buffer is not None and buffer.size)
        for child in self.children:
            yield from child.list_buffers()
        if self.dictionary is not None:
            yield from self.dictionary.list_buffers()

    def move(self, place: Callable[[pa.Buffer], pa.Buffer]) -> ArrayLayout:
        """Return the same array in other buffers: `place` gets each that is not empty."""
        buffers = [place(each) if each is not None and each.size else each for each in self.buffers]
        return ArrayLayout(
            self.type,
            self.length,
            self.null_count,
            tuple(buffers),
            tuple([child.move(place) for child in self.children]) if self.children else (),
            self.dictionary and self.dictionary.move(place),
        )

    def slice(self, begin: int, length: int) -> ArrayLayout:
        """Return some of the rows, in the same buffers, which are not read.

        The null counts become unknown. Offsets keep their values, and so refer to the whole values.
        """
        kind, own, children = self.storage_type, list(self.buffers), self.children

        def cut(index: int, bits: int, count: int = length) -> None:
            buffer = own[index]
            if buffer is not None and buffer.size:
                own[index] = buffer.slice(begin * bits // 8, -(-count * bits // 8))

        cut(0, 1)
        if self.dictionary is not None:
            cut(1, kind.index_type.bit_width)
        elif (width := find_offset_width(kind)) is not None:
            cut(1, 8 * width, length + 1)
        elif pa.types.is_struct(kind):
            children = tuple(child.slice(begin, length) for child in children)
        elif pa.types.is_fixed_size_list(kind):
            size = kind.list_size
            children = (children[0].slice(begin * size, length * size),)
        elif len(own) > 1:
            cut(1, kind.bit_width)
        count = self.null_count and UNKNOWN
        return replace(self, length=length, null_count=count, buffers=tuple(own), children=children)

    def without_values(self) -> ArrayLayout:
        """Return an array of the same structure and no rows, with the same buffers."""
        return replace(
            self,
            length=0,
            null_count=UNKNOWN,  # pyarrow drops the validity if it knows that there are no nulls
            children=tuple(child.without_values() for child in self.children),
            dictionary=self.dictionary and self.dictionary.without_values(),
        )

    def to_array(self) -> Any:
        """Return the array, whose buffers must be in host memory."""
        kind = self.type
        if isinstance(kind, pa.BaseExtensionType):
            storage = replace(self, type=kind.storage_type)
            return pa.ExtensionArray.from_storage(kind, storage.to_array())
        if self.dictionary is not None:
            codes = replace(self, type=kind.index_type, dictionary=None).to_array()
            return pa.DictionaryArray.from_arrays(
                codes, self.dictionary.to_array(), ordered=kind.ordered, safe=False
            )
        children = [child.to_array() for child in self.children]
        return _from_buffers(
            kind, self.length, list(self.buffers), self.null_count, 0, children or None
        )


def find_offset_width(kind: Any) -> int | None:
    """Return the size of an offset in bytes; None if arrays of the type have no offsets."""
    types = pa.types
    if types.is_string(kind) or types.is_binary(kind) or types.is_list(kind) or types.is_map(kind):
        return 4
    is_large = types.is_large_string(kind) or types.is_large_binary(kind)
    return 8 if is_large or types.is_large_list(kind) else None


def find_value_width(kind: Any) -> int:
    """Return the size of a number, time or decimal in bytes; 1 for all other types."""
    types = pa.types
    if types.is_primitive(kind) or types.is_decimal(kind):
        return max(kind.bit_width // 8, 1)
    return 1


def without_offsets(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch, with copies of those of its columns that have an offset."""
    found = batch.columns
    # With one array alone, pyarrow would return that array.
    columns = [
        column if _has_no_offset(column) else pa.concat_arrays([column, column[:0]])
        for column in found
    ]
    if all(map(operator.is_, columns, found)):
        return batch
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _has_no_offset(array: Any) -> bool:
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _has_no_offset(array.storage)
    if pa.types.is_dictionary(kind):
        return _has_no_offset(array.indices) and _has_no_offset(array.dictionary)
    return array.offset == 0 and all(_has_no_offset(child) for child in _children(array))


def _children(array: Any) -> list[Any]:
    """Return the children of an array, which is neither an extension nor a dictionary array."""
    kind = array.type
    if pa.types.is_run_end_encoded(kind):
        return [array.run_ends, array.values]
    if pa.types.is_struct(kind) or pa.types.is_union(kind):
        return [array.field(index) for index in range(kind.num_fields)]
    return [array.values] if kind.num_fields else []
